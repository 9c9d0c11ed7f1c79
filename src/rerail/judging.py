"""Evidence -> verdict: pure functions of data, in a process that never runs a learner's code.

The order is fixed: the code ran on every case; the evidence has the names and kinds of the solution's; then the checks,
in the order of the file, each over all cases. The first failure counts.
"""

from __future__ import annotations

import ast
import inspect
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from types import ModuleType
from typing import Any

import numpy as np

from rerail.checks import Failed, Trap, edited
from rerail.course import Exercise
from rerail.evidence import Evidence
from rerail.report import Finding, Frame, Report
from rerail.talk import Ran

Batches = tuple[Any, ...]


def judge(
    report: Report, exercise: Exercise, source: bytes, run: Ran, reference: Ran, batches: Batches
) -> Report:  # fmt: skip
    """Fill a report with the verdict on what two children did: one ran the submission, one the solution."""
    report = replace(report, cases=len(batches), output=run.output, cut_bytes=run.cut_bytes)
    if reference.how != "evidence":
        message = f"the solution gave no evidence: {reference.how} {reference.problem or ''}"
        return replace(report, outcome="defect", reason="reference", message=message)
    if run.how != "evidence":
        return _stopped(report, run, source, batches)
    odd = _first_odd(run.evidence, reference.evidence, batches, shapes=False)
    if odd:
        return replace(report, outcome="not yet", reason="unusable", message=odd)
    odd = _first_odd(run.evidence, reference.evidence, batches)
    cases = [
        {"run": r, "reference": s, "batch": b}
        for r, s, b in zip(run.evidence, reference.evidence, batches, strict=True)
    ]
    report = _question(report, exercise, source, cases, [_place(case, batches) for case in range(len(cases))], odd)
    if report.outcome == "pass" and odd:
        return replace(report, outcome="not yet", reason="unusable", message=odd, findings=())
    return report


def judge_sheet(report: Report, exercise: Exercise, source: bytes) -> Report:
    """Fill a report with the verdict on an answer sheet: the literal after `ANSWER =`, read and never executed."""
    report = replace(report, cases=1)
    try:
        answer = read_answer(source)
    except ValueError as error:
        return replace(report, outcome="not yet", reason="unusable", message=str(error))
    odd = _odd_answer("ANSWER", answer, read_answer(exercise.solution))
    return _question(report, exercise, source, [{"answer": answer}], [""], odd)


def _odd_answer(name: str, answer: Any, form: Any) -> str:
    """Tell where an answer is not built like the solution's: another type, other keys."""
    if type(answer) is not type(form):
        return f"{name} must be a {type(form).__name__}, got {type(answer).__name__} {str(answer)[:40]}"
    if isinstance(form, dict):
        strangers = form.keys() ^ answer.keys()
        if strangers:
            return f"{name} must have the keys {', '.join(map(str, form))}; look at {sorted(map(str, strangers))[0]!r}"
        odd = [_odd_answer(f"{name}[{key!r}]", answer[key], form[key]) for key in form]
        return next(filter(None, odd), "")
    return ""


def _question(
    report: Report, exercise: Exercise, source: bytes, cases: list[dict[str, Any]], places: list[str], odd: str
) -> Report:
    """Ask every check of every case; `odd` says how the evidence differs from what the checks were promised."""
    grader = exercise.loaded_grader()
    for name, check in checks_of(grader).items():
        for given, place in zip(cases, places, strict=True):
            try:
                _ask(check, given)
            except Failed as failed:
                return replace(
                    report,
                    outcome="not yet",
                    reason=name,
                    message=f"{failed.message} (on {place})" if place else failed.message,
                    show=failed.show,
                    hint=failed.hint,
                    says=_says(grader, name, source, exercise.shipped),
                    findings=_findings(grader, name, "fail"),
                )
            except Exception as error:  # a defect, unless the evidence is not what the check was promised
                if odd:
                    return replace(report, outcome="not yet", reason="unusable", message=odd)
                message = f"our check `{name}` raised {type(error).__name__}: {error}; please report it"
                found = _findings(grader, name, "defect")
                return replace(report, outcome="defect", reason=name, message=message, findings=found)
    return replace(report, findings=_findings(grader, "", "pass"))


def _ask(check: Callable[..., None], given: Mapping[str, Any]) -> None:
    """Call a check with what it names; numpy's words on nan and overflow are for nobody."""
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check(**{wanted: given[wanted] for wanted in inspect.signature(check).parameters})


def checks_of(grader: ModuleType) -> dict[str, Callable[..., None]]:
    """Return the checks of a loaded grader by name, in the order of the file."""
    return {name: value for name, value in vars(grader).items() if name.startswith("check_") and callable(value)}


def sentence(check: Callable[..., None]) -> str:
    """Return what a check says must hold: its docstring as one line."""
    return " ".join((inspect.getdoc(check) or check.__name__).split())


def _findings(grader: ModuleType, last: str, status: str) -> tuple[Finding, ...]:
    """List every check: those before `last` passed, `last` has that status, those after it were not reached."""
    findings, state = [], "pass"
    for name, check in checks_of(grader).items():
        state = status if name == last else "not reached" if state != "pass" else "pass"
        findings.append(Finding(name, sentence(check), state))
    return tuple(findings)


def _says(grader: ModuleType, check: str, source: bytes, shipped: bytes) -> str:
    traps: Iterable[Trap] = getattr(grader, "TRAPS", {}).values()
    known = [trap.says for trap in traps if trap.caught_by == check and trap.says and recognised(trap, source, shipped)]
    return known[0] if known else ""


def recognised(trap: Trap, source: bytes, shipped: bytes) -> bool:
    """
    Tell whether a source has every line that a trap writes and none of those that it takes away.

    A trap that only moves lines is recognised by the whole text.
    """
    original = shipped.decode()
    theirs, before, then = map(_lines, (source.decode("utf-8", "replace"), original, edited(original, trap.edits)))
    written, taken = set(then) - set(before), set(before) - set(then)
    if not written and not taken:
        return theirs == then
    return not written - set(theirs) and not taken & set(theirs)


def _lines(text: str) -> list[str]:
    """Return the lines without indentation: what a reader would look for."""
    return [line.strip() for line in text.splitlines() if line.strip()]


def _first_odd(
    runs: tuple[Evidence, ...], references: tuple[Evidence, ...], batches: Batches, *, shapes: bool = True
) -> str:
    for case, (run, reference) in enumerate(zip(runs, references, strict=True)):
        odd = mismatch(run, reference, shapes=shapes)
        if odd:
            place = _place(case, batches)
            return f"{odd} (on {place})" if place else odd
    return ""


def mismatch(run: Evidence, reference: Evidence, *, shapes: bool = True) -> str:
    """
    Compare names, kinds and shapes with those of the solution's evidence, which is the schema.

    An array that is absent is no stranger (its check sees None); a name whose last part begins with an underscore is
    free in shape. Returns what differs, or "".
    """
    strangers = run.names() ^ reference.names()
    if strangers:
        return f"what was recorded differs from what a working script gives in {', '.join(sorted(strangers)[:3])}"
    for name, expected in reference.arrays.items():
        got = run.arrays.get(name)
        if got is None and name not in run.absent:
            return f"{name!r} must be numbers, got a text"
        if got is not None and (got.dtype.kind == "b") != (expected.dtype.kind == "b"):
            return f"{name!r} must hold {expected.dtype}, got {got.dtype}"
        free = not shapes or name.rpartition("/")[2].startswith("_")
        if not free and (got is None or got.shape != expected.shape):
            return f"{name!r} must have shape {expected.shape}, got {'nothing' if got is None else got.shape}"
    return ""


def _place(case: int, batches: Batches) -> str:
    """Name a case by the sizes of its batch; "" where there is one case only."""
    if len(batches) == 1:
        return ""
    batch = batches[case]
    if isinstance(batch, Mapping):
        shapes = [(name, value.shape) for name, value in batch.items() if getattr(value, "ndim", 0) > 0]
        sizes = ", ".join(f"{name} {'x'.join(map(str, shape))}" for name, shape in shapes[:3])
    else:
        sizes = f"{len(batch)} rows" if hasattr(batch, "__len__") else ""
    which = "the grader's fixed batch" if case == 0 else f"batch {case + 1}"
    return f"{which}: {sizes}" if sizes else which


def _stopped(report: Report, run: Ran, source: bytes, batches: Batches) -> Report:
    """Say why a submission gave no evidence, in its own words."""
    problem = run.problem or {}
    place = _place(min(run.case, len(batches) - 1), batches)
    said = f"{problem.get('type', '')}: {problem.get('text', '')}".strip(": ")
    missing = " and no ".join(map(repr, problem.get("missing", [])))
    message = {
        "unusable": str(problem.get("text")) if problem.get("plain") else said,
        "contract": f"the file has no function {missing}, which is graded",
        "timeout": f"the run was stopped after {problem.get('seconds', 0):.0f} s",
        "died": f"the process ended by itself, with exit code {problem.get('code')}, before it gave a result",
        "garbage": f"what came back is no evidence: {problem.get('text')}",
    }.get(run.how, said)
    reason = {"died": "crash", "garbage": "unusable"}.get(run.how, run.how)
    if run.how == "crash" and "File too large" in said:
        reason, message = "blocked action", f"{said}; a run may write 64 MiB"
    if problem.get("type") == "SystemExit":
        message = f"the script ended the run itself ({said}), before it gave a result"
    if problem.get("type") == "SyntaxError" and "null byte" in said:
        message = f"{said}; it is no text: `rerail reset {report.exercise}` puts the shipped script back"
    frames = [Frame(int(f["line"] or 0), str(f["function"]), str(f["code"])) for f in problem.get("frames", [])]
    if run.how == "timeout" and run.hung_at:
        frames = [Frame(run.hung_at, "", _line(source, run.hung_at))]
    began = run.how != "contract" and not said.startswith("SyntaxError")  # else no batch had a part in it
    return replace(
        report,
        outcome="not yet",
        reason=reason,
        exception=str(problem.get("type", "")) if reason == "crash" else "",
        message=f"{message} (on {place})" if place and began else message,
        frames=tuple(frames),
        names={str(name): str(shape) for name, shape in problem.get("names", {}).items()},
        hidden_frames=int(problem.get("hidden", 0)),
    )


def _line(source: bytes, number: int) -> str:
    lines = source.decode("utf-8", "replace").splitlines()
    return lines[number - 1].rstrip() if 0 < number <= len(lines) else ""


def read_answer(source: bytes) -> Any:
    """
    Read the value of ANSWER from the text of an answer sheet.

    Raises:
        ValueError: If the file is no Python, has no ANSWER, or its value is more than a literal.
    """
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = f" in line {error.lineno}" if isinstance(error, SyntaxError) else ""
        raise ValueError(f"the sheet cannot be read{line}: {getattr(error, 'msg', error)}") from None
    values = []
    for node in tree.body:
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        if any(isinstance(target, ast.Name) and target.id == "ANSWER" for target in targets):
            values.append(node.value)  # type: ignore[attr-defined]  # both kinds of assignment have it
    if len(values) != 1:
        raise ValueError(
            f"the sheet must assign ANSWER once, got {len(values)} assignments; reset brings the form back"
        )
    try:
        return ast.literal_eval(values[0])
    except (ValueError, RecursionError, TypeError):
        raise ValueError("ANSWER must be written out: texts, numbers, lists, mappings; nothing is computed") from None
