"""Submission -> evidence -> checks -> Report. Start reading here.

A submission is frozen bytes. A child runs it on the exercise's cases and sends evidence; a second child runs the solution on the
same cases at the same time. The checks then question that evidence in this process, which never runs a learner's code.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

from rerail.checks import Failed, Trap
from rerail.course import CourseError, Exercise
from rerail.engine import FLOOR_SECONDS, Engine, EngineError, Job, Ran
from rerail.evidence import Evidence
from rerail.report import Finding, Frame, Report

REFERENCE_FACTOR = 20  # a run may take this many times the solution's time, where that is more than the floor
REFERENCE_SECONDS = 300.0  # the solution itself must end by then
LIMIT_SOURCE = 1 << 20


@dataclass(frozen=True)
class Submission:
    """The frozen bytes of one file, and the name under which its owner knows it."""

    source: bytes
    shown: str


@dataclass
class Grader:
    """
    Grade submissions with one engine, keeping the solutions' evidence in memory.

    Args:
        engine: Where code runs; None grades answer sheets only.
        threads: Of torch in the children; verdicts do not depend on it.
        floor_seconds: No run is stopped before.
    """

    engine: Engine | None
    threads: int = 1
    floor_seconds: float = FLOOR_SECONDS
    _references: dict[tuple[Any, ...], Ran] = field(default_factory=dict)

    def grade(self, exercise: Exercise, submission: Submission, *, seed: int | None = None) -> Report:
        """
        Judge one submission.

        Args:
            exercise: Whose grader judges.
            submission: What is judged.
            seed: Of the cases that the code has not seen; by default one that belongs to this version of the grader.

        Returns:
            A report; a fault of the environment or of the course is a report too (`blocked`, `defect`).
        """
        begin = time.monotonic()
        seed = default_seed(exercise) if seed is None else seed
        report = Report(
            exercise.name, exercise.number, exercise.title, submission.shown, "pass",
            possible=exercise.meta["POINTS"], level=self.engine.level if self.engine else "none", seed=seed,
            submission=hashlib.sha256(submission.source).hexdigest(),
            grader=hashlib.sha256(exercise.grader.encode()).hexdigest(),
        )  # fmt: skip
        if len(submission.source) > LIMIT_SOURCE:
            message = f"the file has {len(submission.source)} bytes; a submission may have {LIMIT_SOURCE}"
            report = replace(report, outcome="not yet", reason="unusable", message=message)
        else:
            try:
                report = self._judged(exercise, submission, seed, report)
            except EngineError as error:
                report = replace(report, outcome="blocked", message=f"{error}; `rerail doctor` looks closer")
            except CourseError as error:
                report = replace(report, outcome="defect", message=str(error))
            except OSError as error:  # no room on the disk, no more processes: nothing of the learner's
                report = replace(report, outcome="blocked", message=f"{error}; make room and check again")
        points = report.possible if report.outcome == "pass" else 0
        return replace(report, points=points, seconds=time.monotonic() - begin)

    def _judged(self, exercise: Exercise, submission: Submission, seed: int, report: Report) -> Report:
        if exercise.is_sheet:
            return _judged_sheet(exercise, submission, report)
        missing = [name for name in exercise.meta["REQUIRES"] if not _importable(name)]
        if missing:
            install = f"pip install 'rerail[{missing[0]}]'"
            return replace(
                report, outcome="blocked", message=f"this exercise needs {missing[0]}; install it with {install}"
            )
        grader = exercise.loaded_grader()
        batches = tuple(grader.cases(seed))
        run, reference = self._both(exercise, submission, batches, seed)
        report = replace(report, cases=len(batches), output=run.output, cut_bytes=run.cut_bytes)
        if reference.how != "evidence":
            message = f"the solution gave no evidence: {reference.how} {reference.problem or ''}"
            return replace(report, outcome="defect", reason="reference", message=message)
        if run.how != "evidence":
            return _stopped(report, run, exercise, batches)
        return _checked(report, grader, run.evidence, reference.evidence, batches, submission, exercise)

    def _both(self, exercise: Exercise, submission: Submission, batches: tuple[Any, ...], seed: int) -> tuple[Ran, Ran]:
        """Run the submission and the solution at the same time; what the solution needs decides how long the other may take."""
        if self.engine is None:
            raise EngineError("no engine was opened to run code")
        key = (exercise.name, exercise.grader, exercise.solution, seed, self.threads)
        engine, reference = self.engine, self._references.get(key)
        done: list[Ran] = [reference] if reference else []
        since = time.monotonic()

        def limit() -> float | None:
            if done:
                return max(self.floor_seconds, REFERENCE_FACTOR * done[0].seconds)
            return None if time.monotonic() - since > self.floor_seconds else self.floor_seconds

        def job(source: bytes, shown: str) -> Job:
            file = str(exercise.path("exercises"))
            return Job(source, shown, file, exercise.probe_half, exercise.meta["GRADED"], batches, self.threads)

        with ThreadPoolExecutor(1) as pool:
            if not done:
                future = pool.submit(engine.run, job(exercise.solution, "solution.py"), lambda: REFERENCE_SECONDS)
                future.add_done_callback(lambda done_: None if done_.exception() else done.append(done_.result()))
            run = engine.run(job(submission.source, submission.shown), limit)
            if not reference:
                reference = future.result()
        assert reference is not None
        if reference.how == "evidence":
            self._references[key] = reference
        return run, reference


def default_seed(exercise: Exercise) -> int:
    """Return the seed of the unseen cases that belongs to this version of the grader: the same verdict on every run."""
    return int.from_bytes(hashlib.sha256(exercise.grader.encode()).digest()[:4], "little") % 10**6 + 1


def _importable(name: str) -> bool:
    import importlib.util

    return importlib.util.find_spec(name) is not None


def checks_of(grader: Any) -> dict[str, Callable[..., None]]:
    """Return the checks of a loaded grader by name, in the order of the file."""
    return {name: value for name, value in vars(grader).items() if name.startswith("check_") and callable(value)}


def _all_findings(grader: Any, upto: str = "", status: str = "fail") -> tuple[Finding, ...]:
    """Everything before `upto` passed, it has that status, what follows was not reached; "" stands for all passed."""
    findings, state = [], "pass"
    for name, check in checks_of(grader).items():
        state = status if name == upto else "not reached" if state != "pass" else "pass"
        findings.append(Finding(name, (inspect.getdoc(check) or name).strip(), state))
    return tuple(findings)


def _checked(
    report: Report, grader: Any, runs: tuple[Evidence, ...], references: tuple[Evidence, ...], batches: tuple[Any, ...],
    submission: Submission, exercise: Exercise,
) -> Report:  # fmt: skip
    for case, (run, reference) in enumerate(zip(runs, references, strict=True)):
        odd = mismatch(run, reference, shapes=False)
        if odd:
            message = f"{odd}, on {_where(case, batches)}"
            return replace(report, outcome="not yet", reason="unusable", message=message)
    for name, check in checks_of(grader).items():
        for case, (run, reference, batch) in enumerate(zip(runs, references, batches, strict=True)):
            given = {"run": run, "reference": reference, "batch": batch}
            odd = mismatch(run, reference)
            try:
                _ask(check, given)
            except Failed as failed:
                return _failed(report, grader, name, failed, submission, exercise, _where(case, batches))
            except Exception as error:
                if odd:  # the check met evidence of another shape than it was promised: the learner's, not ours
                    return replace(
                        report, outcome="not yet", reason="unusable", message=f"{odd}, on {_where(case, batches)}"
                    )
                return _defect(report, grader, name, error)
    for case, (run, reference) in enumerate(zip(runs, references, strict=True)):
        odd = mismatch(run, reference)
        if odd:
            message = f"{odd}, on {_where(case, batches)}"
            return replace(report, outcome="not yet", reason="unusable", message=message)
    return replace(report, findings=_all_findings(grader))


def _ask(check: Callable[..., None], given: Mapping[str, Any]) -> None:
    check(**{name: given[name] for name in inspect.signature(check).parameters})


def _defect(report: Report, grader: Any, name: str, error: Exception) -> Report:
    message = f"our check `{name}` raised {type(error).__name__}: {error}. Not this file's fault; report it"
    return replace(
        report, outcome="defect", reason=name, message=message, findings=_all_findings(grader, name, "defect")
    )


def _failed(
    report: Report, grader: Any, name: str, failed: Failed, submission: Submission, exercise: Exercise, where: str
) -> Report:
    traps = [trap for trap in getattr(grader, "TRAPS", {}).values() if trap.caught_by == name]
    says = next(
        (trap.says for trap in traps if trap.says and recognised(trap, submission.source, exercise.shipped)), ""
    )
    message = f"{failed.message} (on {where})" if where else failed.message
    return replace(
        report, outcome="not yet", reason=name, message=message, show=failed.show, hint=failed.hint, says=says,
        findings=_all_findings(grader, name),
    )  # fmt: skip


def recognised(trap: Trap, source: bytes, shipped: bytes) -> bool:
    """Tell whether all that a trap writes stands in a source, and something of it not in the shipped exercise."""
    theirs, original = _lines(source.decode("utf-8", "replace")), _lines(shipped.decode())
    texts = [lines for lines in map(_lines, trap.new_texts) if lines.strip()]
    return any(text not in original for text in texts) and all(text in theirs for text in texts)


def _lines(text: str) -> str:
    """Strip what does not matter to a reader: indentation and blank lines."""
    return "\n" + "\n".join(line.strip() for line in text.splitlines() if line.strip()) + "\n"


def mismatch(run: Evidence, reference: Evidence, *, shapes: bool = True) -> str:
    """
    Compare names, kinds and shapes with those of the solution's evidence, which is the schema.

    An array that is absent passes (its check sees None); a name that begins with an underscore is free in shape.
    Returns what differs, or "".
    """
    strangers = run.names() ^ reference.names()
    if strangers:
        return f"the evidence differs in what it has: {', '.join(sorted(strangers)[:3])}"
    for name, expected in reference.arrays.items():
        got = run.arrays.get(name)
        if got is None and name not in run.absent:
            return f"{name!r} came back as a text"
        if got is not None and (got.dtype.kind == "b") != (expected.dtype.kind == "b"):
            return f"{name!r} must hold {expected.dtype}, got {got.dtype}"
        free = not shapes or name.rpartition("/")[2].startswith("_")
        if not free and (got is None or got.shape != expected.shape):
            return f"{name!r} must have shape {expected.shape}, got {'nothing' if got is None else got.shape}"
    return ""


def _where(case: int, batches: tuple[Any, ...]) -> str:
    if len(batches) == 1:
        return ""
    return f"the fixed batch: {_sizes(batches[0])}" if case == 0 else f"another batch: {_sizes(batches[case])}"


def _sizes(batch: Any) -> str:
    if isinstance(batch, Mapping):
        shapes = {name: value.shape for name, value in batch.items() if getattr(value, "ndim", 0) > 0}
        return (
            ", ".join(f"{name} {'x'.join(map(str, shape))}" for name, shape in list(shapes.items())[:3]) or "no arrays"
        )
    return f"{len(batch)} rows" if hasattr(batch, "__len__") else type(batch).__name__


def _stopped(report: Report, run: Ran, exercise: Exercise, batches: tuple[Any, ...]) -> Report:
    """The submission gave no evidence: say why in its own words."""
    problem = run.problem or {}
    where = _where(min(run.case, len(batches) - 1), batches)
    on = f" (on {where})" if where else ""
    said = f"{problem.get('type', '')}: {problem.get('text', '')}".strip(": ")
    reason, message = {
        "crash": ("crash", f"{said}{on}"),
        "memory": ("memory", f"{said}{on}"),
        "unusable": ("unusable", f"{problem.get('text') if problem.get('plain') else said}{on}"),
        "contract": ("contract", f"the file has no function {' and no '.join(map(repr, problem.get('missing', [])))}, which is graded"),
        "timeout": ("timeout", f"the run was stopped after {problem.get('seconds', 0):.0f} s{on}"),
        "died": ("crash", f"the process ended by itself, with exit code {problem.get('code')}, before it gave a result{on}"),
        "garbage": ("unusable", f"what came back is no evidence: {problem.get('text')}{on}"),
    }[run.how]  # fmt: skip
    if run.how == "crash" and "File too large" in message:
        reason = "blocked action"
    frames = [Frame(int(f["line"] or 0), str(f["function"]), str(f["code"])) for f in problem.get("frames", [])]
    if run.how == "timeout" and run.hung_at:
        frames = [Frame(run.hung_at, "", _line(report, run.hung_at))]
        message += f"; it was in line {run.hung_at}"
    return replace(
        report, outcome="not yet", reason=reason, message=message, frames=tuple(frames),
        names={str(k): str(v) for k, v in problem.get("names", {}).items()}, hidden_frames=int(problem.get("hidden", 0)),
    )  # fmt: skip


def _line(report: Report, number: int) -> str:
    return ""


def _judged_sheet(exercise: Exercise, submission: Submission, report: Report) -> Report:
    """Judge an answer sheet: the literal after `ANSWER =`, read and never executed."""
    grader = exercise.loaded_grader()
    report = replace(report, cases=1)
    try:
        answer = read_answer(submission.source)
    except ValueError as error:
        return replace(report, outcome="not yet", reason="unusable", message=str(error))
    for name, check in checks_of(grader).items():
        try:
            check(answer)
        except Failed as failed:
            return _failed(report, grader, name, failed, submission, exercise, "")
        except Exception as error:
            return _defect(report, grader, name, error)
    return replace(report, findings=_all_findings(grader))


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
    values = [
        node.value for node in tree.body
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "ANSWER" for t in node.targets)
    ]  # fmt: skip
    if len(values) != 1:
        raise ValueError(
            f"the sheet must assign ANSWER once, got {len(values)} assignments; reset brings the form back"
        )
    try:
        return ast.literal_eval(values[0])
    except (ValueError, RecursionError, TypeError):
        raise ValueError("ANSWER must be written out: texts, numbers, lists and mappings, no computation") from None
