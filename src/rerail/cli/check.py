"""`rerail check`: judge a script, and remember the outcome."""

from __future__ import annotations

import difflib
import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import click

from rerail.cli.settings import INSTALL, Problem, Settings, lacks_torch
from rerail.cli.waiting import Background, Stoppable
from rerail.course import Exercise

if TYPE_CHECKING:
    from rerail.grading import Grader
    from rerail.progress import Progress
    from rerail.report import Report
    from rerail.workspace import Workspace

WORST_FIRST = (4, 3, 1, 0)
AT_ONCE = min(os.cpu_count() or 1, 4)  # exercises judged at once; each runs two children


@click.command(name="check")
@click.argument("exercise", required=False, metavar="[ID]")
@click.option("--all", "everything", is_flag=True, help="Check all exercises; this also rebuilds lost progress.")
@click.pass_obj
def command(settings: Settings, exercise: str | None, everything: bool) -> None:
    """Judge your script. On the fixed batch, and on batches that it has not seen."""
    if everything and exercise:
        raise Problem(f"--all checks every exercise; leave out either it or {exercise!r}")
    workspace = settings.workspace()
    chosen = settings.exercises() if everything else [settings.exercise(exercise)]
    if not everything:
        read(workspace, chosen[0])  # tell what cannot be read before torch is loaded
    with opened(settings, any(not e.is_sheet for e in chosen)) as grader:
        if everything:
            _check_all(settings, workspace, chosen, grader)
        else:
            source = read(workspace, chosen[0])
            report = Background(lambda: judged(workspace, chosen[0], grader, source)).result()
            tell(settings, workspace, chosen[0], report, source)
            settings.exit_code = report.exit_code


class opened:
    """A grader with a warm engine, closed at the end; no engine where only answer sheets are judged."""

    def __init__(self, settings: Settings, needs_engine: bool) -> None:
        self._settings, self._needs = settings, needs_engine
        self.engine: Stoppable | None = None

    def __enter__(self) -> Grader:
        if self._needs:
            if lacks_torch():
                raise Problem(f"PyTorch is not installed for {sys.executable}, nothing can be run; {INSTALL}", 3)
            from rerail.engine import EngineError, open_engine

            try:
                self.engine = Stoppable(open_engine())  # first of all: warming torch is what costs
            except EngineError as error:
                raise Problem(f"{error}; `rerail doctor` looks closer", 3) from None
            if not self._settings.as_json and not self._settings.quiet and sys.stderr.isatty():
                click.echo("loading PyTorch, about 3 s", err=True)
        from rerail.grading import Grader

        return Grader(self.engine)

    def __exit__(self, *details: object) -> None:
        if self.engine is not None:
            self.engine.close()


def read(workspace: Workspace, exercise: Exercise) -> bytes:
    """Return the learner's script; a missing or unreadable one is the end of the command."""
    from rerail.workspace import WorkspaceError

    try:
        return workspace.read(exercise)
    except WorkspaceError as error:
        raise Problem(str(error), 3) from None


def judged(workspace: Workspace, exercise: Exercise, grader: Grader, source: bytes) -> Report:
    """Judge a script."""
    from rerail.grading import Submission

    return grader.grade(exercise, Submission(source, workspace.shown(exercise)))


def tell(settings: Settings, workspace: Workspace, exercise: Exercise, report: Report, source: bytes) -> None:
    """Record an outcome, and print the verdict with what to do next."""
    was_done = workspace.progress().status(exercise.name) == "done"
    settings.warn(record(workspace, report))
    if not settings.as_json:
        settings.say(report.text() + "\n" + _what_next(settings, workspace, exercise, report, source, was_done))
        return
    entry = workspace.progress().of(exercise.name)
    hints = {"seen": entry["hints"], "total": len(exercise.meta["HINTS"])}
    settings.say("", **report.to_json(), attempt=entry["attempts"], status=entry["status"], hints=hints)


def record(workspace: Workspace, report: Report, *, counts: bool = True) -> str:
    """Remember an outcome, and return what is to be warned of; what is not the learner's doing is not remembered."""
    if report.outcome not in ("pass", "not yet"):
        return ""

    def change(progress: Progress) -> None:
        progress.attempted(report.exercise, report.outcome, report.reason, report.submission, counts=counts)
        if counts:
            progress.current = report.exercise  # what was worked at is at hand

    return workspace.update(change)


def _what_next(
    settings: Settings, workspace: Workspace, exercise: Exercise, report: Report, source: bytes, was_done: bool
) -> str:
    progress, name = workspace.progress(), exercise.name
    entry = progress.of(name)
    if report.outcome == "pass":
        everything = settings.exercises()
        done = sum(progress.status(e.name) == "done" for e in everything)
        changed = changed_lines(exercise.shipped.decode(), source.decode("utf-8", "replace"))
        facts = counted(entry["attempts"], "attempt"), counted(entry["hints"], "hint"), counted(changed, "line")
        return (
            f"  {', '.join(facts)} changed\n\n"
            f"  Compare  rerail solution {name} --diff\n"
            f"  Next     rerail next   ({done} of {len(everything)} done)"
        )
    if report.outcome != "not yet":
        return ""
    seen, total = entry["hints"], len(exercise.meta["HINTS"])
    hint = f"Hint {min(seen + 1, total)} of {total}: rerail hint {name}"
    again = "\n  It passed before, and stays done." if was_done else ""
    if entry["last"].get("count", 0) >= 3 and seen < total:
        what = "The same check failed" if report.reason.startswith("check_") else "It ended in this way"
        return f"{again}\n  {what} {entry['last']['count']} times. {hint}"
    return f"{again}\n  Look closer: rerail run {name}   {hint}"


def counted(count: int, what: str) -> str:
    """Write a count with its noun."""
    return f"{count} {what}{'' if count == 1 else 's'}"


def changed_lines(before: str, after: str) -> int:
    """Count the lines that differ; one that was rewritten counts once."""
    blocks = difflib.SequenceMatcher(None, before.splitlines(), after.splitlines(), autojunk=False).get_opcodes()
    return sum(max(a1 - a0, b1 - b0) for tag, a0, a1, b0, b1 in blocks if tag != "equal")


def _check_all(settings: Settings, workspace: Workspace, exercises: list[Exercise], grader: Grader) -> None:
    reports, regressions, codes = [], [], []
    width = max((len(e.name) for e in exercises), default=2)

    def look(exercise: Exercise) -> Report | Problem:
        try:
            return judged(workspace, exercise, grader, read(workspace, exercise))
        except Problem as problem:
            return problem

    pool = ThreadPoolExecutor(AT_ONCE)
    try:
        for exercise, future in [(e, pool.submit(look, e)) for e in exercises]:
            report = Background(future.result).result()
            if isinstance(report, Problem):
                codes.append(3)
                settings.warn(report.message)
                continue
            was_done = workspace.progress().status(exercise.name) == "done"
            settings.warn(record(workspace, report, counts=False))
            reports.append(report)
            codes.append(report.exit_code)
            if was_done and report.outcome == "not yet":
                regressions.append(exercise.name)
            if not settings.as_json:
                why = f"   {report.first or report.message}" if report.outcome != "pass" else ""
                settings.say(f"{report.outcome.upper():<8} {exercise.number:>5} {exercise.name:<{width}}{why}".rstrip())
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
    settings.exit_code = next(code for code in WORST_FIRST if code in codes or code == 0)
    if settings.as_json:
        click.echo(json.dumps({"schema": "rerail.results/1", "results": [report.to_json() for report in reports],
                               "regressions": regressions, "exit_code": settings.exit_code}))  # fmt: skip
        return
    if regressions:
        settings.say(f"\npassed before and does not now: {', '.join(regressions)}; they stay done")
    settings.say(f"\n{sum(r.outcome == 'pass' for r in reports)} of {len(exercises)} pass")
