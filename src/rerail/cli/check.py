"""`rerail check`: judge a script, and remember the outcome."""

from __future__ import annotations

import difflib
import json
import sys
from typing import TYPE_CHECKING

import click

from rerail.cli.settings import Problem, Settings
from rerail.course import Exercise

if TYPE_CHECKING:
    from rerail.grading import Grader
    from rerail.report import Report
    from rerail.workspace import Progress, Workspace

WORST_FIRST = (4, 3, 1, 0)


@click.command(name="check")
@click.argument("exercise", required=False, metavar="[ID]")
@click.option("--all", "everything", is_flag=True, help="Check all exercises; this also rebuilds lost progress.")
@click.pass_obj
def command(settings: Settings, exercise: str | None, everything: bool) -> None:
    """Judge your script on the fixed batch, and on batches that it has not seen."""
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
            report = check(settings, workspace, chosen[0], grader)
            settings.exit_code = report.exit_code


class opened:
    """A grader with a warm engine, closed at the end; no engine where only answer sheets are judged."""

    def __init__(self, settings: Settings, needs_engine: bool) -> None:
        self._settings, self._needs = settings, needs_engine

    def __enter__(self) -> Grader:
        engine = None
        if self._needs:
            from rerail.engine import EngineError, open_engine

            try:
                engine = open_engine()  # first of all: warming torch is what costs
            except EngineError as error:
                raise Problem(str(error), 3) from None
            if not self._settings.as_json and sys.stderr.isatty():
                click.echo("loading PyTorch, about 3 s", err=True)
        from rerail.grading import Grader

        self.grader = Grader(engine)
        return self.grader

    def __exit__(self, *details: object) -> None:
        if self.grader.engine is not None:
            self.grader.engine.close()


def read(workspace: Workspace, exercise: Exercise) -> bytes:
    """Return the learner's script; a missing or unreadable one is the end of the command."""
    from rerail.workspace import WorkspaceError

    try:
        return workspace.read(exercise)
    except WorkspaceError as error:
        raise Problem(str(error), 3) from None


def check(settings: Settings, workspace: Workspace, exercise: Exercise, grader: Grader) -> Report:
    """Judge one script, record the outcome, and print the verdict with what to do next."""
    from rerail.grading import Submission

    source = read(workspace, exercise)
    report = grader.grade(exercise, Submission(source, workspace.shown(exercise)))
    settings.warn(record(workspace, report))
    if settings.as_json:
        settings.say("", **report.to_json())
    else:
        settings.say(report.text() + "\n" + _what_next(settings, workspace, exercise, report, source))
    return report


def record(workspace: Workspace, report: Report) -> str:
    """Remember an outcome; what is not the learner's doing is not counted."""
    if report.outcome not in ("pass", "not yet"):
        return ""

    def change(progress: Progress) -> None:
        progress.attempted(report.exercise, report.outcome, report.reason, report.submission)

    return workspace.update(change)


def _what_next(settings: Settings, workspace: Workspace, exercise: Exercise, report: Report, source: bytes) -> str:
    progress, name = workspace.progress(), exercise.name
    entry = progress.of(name)
    if report.outcome == "pass":
        changed = sum(line[0] in "+-" for line in difflib.ndiff(
            exercise.shipped.decode().splitlines(), source.decode("utf-8", "replace").splitlines()))  # fmt: skip
        everything = settings.exercises()
        done = sum(progress.status(e.name) == "done" for e in everything)
        return (
            f"  attempts {entry['attempts']}, hints {entry['hints']}, lines changed {changed}\n\n"
            f"  Compare  rerail solution {name}\n"
            f"  Next     rerail next   ({done} of {len(everything)} done)"
        )
    if report.outcome != "not yet":
        return ""
    seen, total = entry["hints"], len(exercise.meta["HINTS"])
    hint = f"Hint {min(seen + 1, total)} of {total}: rerail hint {name}"
    if entry["last"].get("count", 0) >= 3 and seen < total:
        return f"\n  Three times the same finding. {hint}"
    return f"\n  Look closer: rerail run {name}   {hint}"


def _check_all(settings: Settings, workspace: Workspace, exercises: list[Exercise], grader: Grader) -> None:
    from rerail.grading import Submission

    reports, regressions, codes = [], [], []
    width = max((len(e.name) for e in exercises), default=2)
    for exercise in exercises:
        try:
            source = read(workspace, exercise)
        except Problem as problem:
            codes.append(3)
            settings.warn(problem.message)
            continue
        report = grader.grade(exercise, Submission(source, workspace.shown(exercise)))
        was_done = workspace.progress().status(exercise.name) == "done"
        settings.warn(record(workspace, report))
        reports.append(report)
        codes.append(report.exit_code)
        if was_done and report.outcome == "not yet":
            regressions.append(exercise.name)
        if not settings.as_json:
            why = f"   {report.reason}" if report.reason else ""
            settings.say(f"{report.outcome.upper():<8} {exercise.number:>5} {exercise.name:<{width}}{why}")
    settings.exit_code = next(code for code in WORST_FIRST if code in codes or code == 0)
    if settings.as_json:
        click.echo(json.dumps({"schema": "rerail.results/1", "results": [report.to_json() for report in reports],
                               "regressions": regressions, "exit_code": settings.exit_code}))  # fmt: skip
        return
    if regressions:
        settings.say(f"\npassed before and does not now: {', '.join(regressions)}; they stay done")
    settings.say(f"\n{sum(r.outcome == 'pass' for r in reports)} of {len(exercises)} pass")
