"""`rerail run`: see the symptom, and what the probe records of it."""

from __future__ import annotations

import codecs
import contextlib
import os
import pprint
import queue
import signal
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import click

from rerail.cli.check import opened, read
from rerail.cli.recorded import WIDTH, described, drawn, picture
from rerail.cli.settings import Problem, Settings
from rerail.cli.waiting import Background
from rerail.course import Exercise

if TYPE_CHECKING:
    from rerail.evidence import Evidence
    from rerail.grading import Grader
    from rerail.talk import Ran
    from rerail.workspace import Workspace

SECONDS = 60.0  # the scripts of the course take a few
SHOWN_CHARACTERS = 20_000  # of what a script prints; then the last of the rest
LAST_CHARACTERS = 2_000
MOST_CHARACTERS = 50_000_000  # a script that prints more is stopped


@click.command(name="run")
@click.argument("exercise", required=False, metavar="[ID]")
@click.option("--plot", metavar="FILE", help='Draw what was recorded step by step; "show" opens a window.')
@click.pass_obj
def command(settings: Settings, exercise: str | None, plot: str | None) -> None:
    """Run your script, and show what the probe records. On the fixed batch; no verdict, no attempt counted."""
    workspace, found = settings.workspace(), settings.exercise(exercise)
    source = read(workspace, found)
    if found.is_sheet:
        if plot:
            raise Problem(f"{found.name} is an answer sheet, which records nothing to draw; leave --plot out")
        _show_sheet(settings, workspace, found, source)
        return
    if plot is not None and plot != "show":
        plot = picture(plot)
    with opened(settings, True) as grader:  # it loads while the script runs
        settings.say(f"$ python {workspace.shown(found)}")
        output, code, stopped = _run_script(settings, workspace, found)
        if stopped:
            why = f"the script was {stopped}, and so would the probe be"
            settings.say(f"\nThe probe was not run: {why}.\n\n"
                         f"  Judge    rerail check {found.name}   says in which line, if what is graded hangs",
                         exercise=found.name, output=output, exit_code=code, evidence=None, why=why)  # fmt: skip
            return
        ran = Background(lambda: _evidence(grader, workspace, found, source)).result()
    said: dict[str, Any] = {"exercise": found.name, "output": output, "exit_code": code}
    if not ran.evidence:
        why = _why_nothing(ran)
        settings.say(f"\nThe probe recorded nothing: {why}\n\n  Judge    rerail check {found.name}",
                     **said, evidence=None, why=why)  # fmt: skip
        return
    first = ran.evidence[0]
    file = drawn(found, first, plot) if plot and settings.as_json else None
    legend = found.meta["RECORDED"]
    settings.say("\n".join(["", "On the grader's fixed batch the probe records", *described(first, legend)]),
                 **said, recorded=legend, evidence=_plain(first), plot=file)  # fmt: skip
    if settings.as_json:
        return
    if plot:
        settings.say(f"\n  Plot     {drawn(found, first, plot)}")
    settings.say(f"{'' if plot else chr(10)}  Judge    rerail check {found.name}")


def _evidence(grader: Grader, workspace: Workspace, exercise: Exercise, source: bytes) -> Ran:
    from rerail.engine import EngineError
    from rerail.grading import Submission

    try:
        return grader.evidence(exercise, Submission(source, workspace.shown(exercise)))
    except EngineError as error:
        raise Problem(f"{error}; `rerail doctor` looks closer", 3) from None


def _why_nothing(ran: Ran) -> str:
    problem = ran.problem or {}
    said = f"{problem.get('type', '')}: {problem.get('text', '')}".strip(": ")
    return {
        "timeout": f"the run was stopped after {problem.get('seconds', 0):.0f} s",
        "died": f"the process ended by itself, with exit code {problem.get('code')}",
        "contract": f"the file has no {' and no '.join(problem.get('missing', []))}, which is graded",
        "unusable": str(problem.get("text")) if problem.get("plain") else said,
    }.get(ran.how, said or ran.how)


def _run_script(settings: Settings, workspace: Workspace, exercise: Exercise) -> tuple[str, int | None, str]:
    """
    Run the file as `python FILE` would, in a process group of its own; show what it prints as it comes.

    Returns:
        What it printed, its exit code, and why it was stopped, "" if it ended by itself.
    """
    environment = os.environ | {"PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1", "PYTHONIOENCODING": "utf-8"}
    reading, writing = os.pipe()
    chunks: queue.Queue[bytes] = queue.Queue(16)
    threading.Thread(target=_read, args=(reading, chunks), daemon=True).start()
    try:
        process = subprocess.Popen(
            [sys.executable, workspace.shown(exercise)], cwd=workspace.folder, env=environment,
            stdin=subprocess.DEVNULL, stdout=writing, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
    finally:
        os.close(writing)
    shown = _Shown(echo=not (settings.as_json or settings.quiet))
    try:
        why = _follow(process, chunks, shown)
    finally:  # also what it has started
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL) if os.name == "posix" else process.kill()
        process.wait()
    shown.end(why or (f"ended by signal {-process.returncode}" if process.returncode < 0 else ""))
    return shown.text, process.returncode, why


def _follow(process: subprocess.Popen[bytes], chunks: queue.Queue[bytes], shown: _Shown) -> str:
    """Pass on what a process prints until it ends; return why it was stopped, "" if it was not."""
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        try:
            chunk = chunks.get(timeout=0.05)
        except queue.Empty:
            if process.poll() is not None:  # one that it has started may hold the pipe open
                return ""
            continue
        if not chunk:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(deadline - time.monotonic(), 0))
                return ""
            break
        shown.take(chunk)
        if shown.cut > MOST_CHARACTERS:
            return f"stopped: it printed more than {MOST_CHARACTERS} characters"
    return f"stopped after {SECONDS:.0f} s"


def _read(descriptor: int, chunks: queue.Queue[bytes]) -> None:
    while chunk := os.read(descriptor, 1 << 16):
        chunks.put(chunk)
    os.close(descriptor)
    chunks.put(b"")


class _Shown:
    """The output of a script as it is shown: the first part at once, the last part at the end."""

    def __init__(self, echo: bool) -> None:
        self._echo, self.text, self._rest, self.cut = echo, "", "", 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def take(self, chunk: bytes) -> None:
        text = self._decoder.decode(chunk)
        room = SHOWN_CHARACTERS - len(self.text)
        self._say(text[:room])
        rest = self._rest + text[room:]
        self._rest, self.cut = rest[-LAST_CHARACTERS:], self.cut + max(len(rest) - LAST_CHARACTERS, 0)

    def end(self, why: str) -> None:
        if self.cut:
            self._say(f"\n[{self.cut} characters cut]\n")
        self._say(self._rest)
        if self.text and not self.text.endswith("\n"):
            self._say("\n")
        if why:
            self._say(f"[{why}]\n")

    def _say(self, text: str) -> None:
        self.text += text
        if self._echo and text:
            click.echo(text, nl=False)


def _plain(evidence: Evidence) -> dict[str, Any]:
    from rerail.report import _plain as plain

    return {name: plain(evidence[name]) for name in sorted(evidence.names())}


def _show_sheet(settings: Settings, workspace: Workspace, exercise: Exercise, source: bytes) -> None:
    from rerail.judging import read_answer

    answer: Any = None
    try:
        answer = read_answer(source)
        filled = pprint.pformat(answer, width=WIDTH - 4, sort_dicts=False)
    except ValueError as error:
        filled = f"nothing that can be read: {error}"
    lines = "\n".join(f"    {line}" for line in filled.splitlines())
    settings.say(f"An answer sheet: nothing of it is run. In {workspace.shown(exercise)} stands\n\n{lines}\n\n"
                 f"  Task     rerail show {exercise.name}\n  Judge    rerail check {exercise.name}",
                 exercise=exercise.name, answer=None if answer is None else filled)  # fmt: skip
