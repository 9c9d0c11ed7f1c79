"""`rerail run`: see the symptom, and what the probe records of it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rerail.cli.check import opened, read
from rerail.cli.settings import Problem, Settings
from rerail.course import Exercise

if TYPE_CHECKING:
    from rerail.evidence import Evidence
    from rerail.workspace import Workspace

SECONDS = 60  # the scripts of the course take a few
ROWS = 12  # of a table; the steps between are left out
OUTPUT_CHARACTERS = 20_000


@click.command(name="run")
@click.argument("exercise", required=False, metavar="[ID]")
@click.option("--plot", metavar="FILE", help='Draw what was recorded step by step; "show" opens a window.')
@click.pass_obj
def command(settings: Settings, exercise: str | None, plot: str | None) -> None:
    """Run your script, then show what its probe records on the fixed batch. No verdict, no attempt counted."""
    workspace, found = settings.workspace(), settings.exercise(exercise)
    source = read(workspace, found)
    if found.is_sheet:
        _show_sheet(settings, workspace, found, source)
        return
    with opened(settings, True) as grader:
        said, code = _run_script(settings, workspace, found)
        from rerail.engine import EngineError
        from rerail.grading import Submission

        try:
            ran = grader.evidence(found, Submission(source, workspace.shown(found)))
        except EngineError as error:
            raise Problem(f"{error}; `rerail doctor` looks closer", 3) from None
    if not ran.evidence:
        problem = ran.problem or {}
        why = f"{problem.get('type', '')} {problem.get('text', '')}".strip() or ran.how
        settings.say(f"\nThe probe recorded nothing: {why}\n\n  Judge    rerail check {found.name}",
                     exercise=found.name, output=said, exit_code=code, evidence=None, why=why)  # fmt: skip
        return
    first = ran.evidence[0]
    settings.say("\n" + "\n".join(["On the fixed batch the probe records", "", *described(first)]) +
                 f"\n\n  Judge    rerail check {found.name}",
                 exercise=found.name, output=said, exit_code=code, evidence=_plain(first))  # fmt: skip
    if plot:
        _plot(settings, found, first, plot)


def _run_script(settings: Settings, workspace: Workspace, exercise: Exercise) -> tuple[str, int | None]:
    """Run the file as `python FILE` would, in a process group of its own, and pass on what it prints."""
    environment = os.environ | {"PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1"}
    path = workspace.shown(exercise)
    settings.say(f"$ python {path}")
    process = subprocess.Popen([sys.executable, path], cwd=workspace.folder, env=environment, stdin=subprocess.DEVNULL,
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)  # fmt: skip
    try:
        output = process.communicate(timeout=SECONDS)[0].decode("utf-8", "replace")
    except subprocess.TimeoutExpired:
        _kill(process)
        output = process.communicate()[0].decode("utf-8", "replace") + f"\n[stopped after {SECONDS} s]\n"
    except BaseException:
        _kill(process)
        raise
    if len(output) > OUTPUT_CHARACTERS:
        half, cut = OUTPUT_CHARACTERS // 2, len(output) - OUTPUT_CHARACTERS
        output = f"{output[:half]}\n[{cut} characters cut]\n{output[-half:]}"
    settings.say(output.rstrip())
    return output, process.returncode


def _kill(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL) if os.name == "posix" else process.kill()


def described(evidence: Evidence) -> list[str]:
    """Lay evidence out as lines: numbers, then what was recorded step by step as one table, then the other arrays."""
    from rerail.report import shown

    numbers = {n: a.item() for n, a in evidence.arrays.items() if a.ndim == 0} | dict(evidence.texts)
    numbers |= dict.fromkeys(sorted(evidence.absent), "absent")
    lines = [f"  {name:<24} {shown(value)}" for name, value in sorted(numbers.items())]
    for length, names in _by_length(evidence).items():
        lines += ["", "  " + " ".join(f"{name[-14:]:>14}" for name in ["row", *names])]
        picked = range(length) if length <= ROWS else [*range(ROWS - 4), -1, length - 3, length - 2, length - 1]
        for i in picked:
            cells = ["..." for _ in names] if i < 0 else [shown(evidence.arrays[name][i]) for name in names]
            lines.append("  " + " ".join(f"{cell:>14}" for cell in ["..." if i < 0 else str(i), *cells]))
    others = {n: a for n, a in sorted(evidence.arrays.items()) if a.ndim > 1}
    lines += ["", *(_summary(name, array) for name, array in others.items())] if others else []
    return lines


def _by_length(evidence: Evidence) -> dict[int, list[str]]:
    """Group the one-dimensional arrays by their length: those belong into one table, five columns at most."""
    found: dict[int, list[str]] = {}
    for name, array in sorted(evidence.arrays.items()):
        if array.ndim == 1 and len(array):
            found.setdefault(len(array), []).append(name)
    return {length: names[:5] for length, names in found.items()}


def _summary(name: str, array: Any) -> str:
    import numpy as np

    finite = array[np.isfinite(array)]
    between = f"{finite.min():.4g} to {finite.max():.4g}" if finite.size else "no finite value"
    broken = array.size - finite.size
    return f"  {name:<24} {'x'.join(map(str, array.shape)):<10} {between}" + (
        f", {broken} not finite" if broken else ""
    )


def _plain(evidence: Evidence) -> dict[str, Any]:
    from rerail.report import _plain as plain

    return {name: plain(evidence[name]) for name in sorted(evidence.names())}


def _plot(settings: Settings, exercise: Exercise, evidence: Evidence, target: str) -> None:
    import matplotlib

    if target != "show":
        matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    series = {n: evidence.arrays[n] for names in _by_length(evidence).values() for n in names
              if evidence.arrays[n].dtype.kind == "f" and len(evidence.arrays[n]) > 2}  # fmt: skip
    if not series:
        raise Problem(f"{exercise.name} records nothing step by step, so there is no curve; leave --plot out")
    figure, axes = plt.subplots(len(series), 1, figsize=(7, 2.2 * len(series)), squeeze=False, layout="constrained")
    for axis, (name, values) in zip(axes[:, 0], series.items(), strict=True):
        axis.plot(values, marker=".")
        axis.set(xlabel="row", ylabel=name)
    figure.suptitle(exercise.title, wrap=True)
    if target == "show":
        plt.show()
        return
    try:
        figure.savefig(target)
    except (OSError, ValueError) as error:
        raise Problem(f"the plot could not be written to {target}: {error}; name a file such as curve.png", 3) from None
    settings.say(f"  Plot     {Path(target)}")


def _show_sheet(settings: Settings, workspace: Workspace, exercise: Exercise, source: bytes) -> None:
    from rerail.judging import read_answer

    try:
        answer: Any = read_answer(source)
        filled = repr(answer)
    except ValueError as error:
        answer, filled = None, f"unreadable: {error}"
    settings.say(f"{exercise.brief}\n\nIn {workspace.shown(exercise)} stands\n  {filled}\n\n"
                 f"  Judge    rerail check {exercise.name}", exercise=exercise.name, answer=str(answer))  # fmt: skip
