"""`rerail watch`: judge at every save."""

from __future__ import annotations

import contextlib
import hashlib
import os
import select
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from rerail.cli.check import judged, opened, read, tell
from rerail.cli.hint import show_hint
from rerail.cli.next import move_on
from rerail.cli.settings import Problem, Settings
from rerail.cli.waiting import Background, Stoppable
from rerail.course import Exercise

if TYPE_CHECKING:
    from rerail.grading import Grader
    from rerail.report import Report
    from rerail.workspace import Workspace

POLL_SECONDS = 0.15
RUNNING_SECONDS = 0.02  # a warm verdict takes 0.05 s: it is not kept waiting
END = ""  # the key that stands for the end of the input
KEYS = "r checks again, h shows a hint, n goes on after a pass, q leaves"


@click.command(name="watch")
@click.argument("exercise", required=False, metavar="[ID]")
@click.pass_obj
def command(settings: Settings, exercise: str | None) -> None:
    """Judge your script at every save. Keys: r checks again, h shows a hint, n goes on after a pass, q leaves."""
    if settings.as_json:
        raise Problem("watch prints one verdict a save and no single object; `rerail check --json` prints one")
    workspace, found = settings.workspace(), settings.exercise(exercise)
    click.echo(f"checking {found.name} at every save. {KEYS}")
    needs_engine = any(not e.is_sheet for e in settings.exercises())
    with _ended_by_a_signal(), opened(settings, needs_engine) as grader, _Keys() as keys:
        engine = grader.engine if isinstance(grader.engine, Stoppable) else None
        _watch(settings, _Watched(settings, workspace, found, grader, engine), keys)


def _watch(settings: Settings, watched: _Watched, keys: _Keys) -> None:
    """
    Look at the file and the keyboard in turn, until q, or the end of the input and the verdict after it.

    Where the input ends, that verdict is the exit code.
    """
    key: str | None = None
    while key != "q" and (key != END or watched.running):
        watched.look()
        if key == END and watched.running:
            time.sleep(RUNNING_SECONDS)
            continue
        key = keys.wait(RUNNING_SECONDS if watched.running else POLL_SECONDS)
        if key in (None, "q", END) or watched.running:  # what is typed during a run is not meant for its outcome
            continue
        if key == "r":
            watched.again()
        elif key == "h":
            show_hint(settings, watched.exercise)
        elif key == "n" and watched.passed:
            move_on(settings)
            watched.change_to(settings.exercise(None))
        elif key == "n":
            click.echo(f"{watched.exercise.name} has not passed yet; `rerail next` moves on all the same")
        else:
            click.echo(KEYS)
    settings.exit_code = watched.exit_code if key == END else 0


class _Watched:
    """The file that is watched, and the run of its last saved state."""

    def __init__(
        self, settings: Settings, workspace: Workspace, exercise: Exercise, grader: Grader, engine: Stoppable | None
    ) -> None:
        self._settings, self._workspace, self._grader, self._engine = settings, workspace, grader, engine
        self.change_to(exercise)
        self._run: tuple[bytes, Background[Report]] | None = None

    @property
    def running(self) -> bool:
        """Whether a verdict is on its way."""
        return self._run is not None

    @property
    def passed(self) -> bool:
        """Whether the last verdict was a pass."""
        return self.exit_code == 0

    def change_to(self, exercise: Exercise) -> None:
        """Watch another exercise from now on."""
        self.exercise, self.exit_code = exercise, 1
        self._stat: tuple[int, int] | None = (0, 0)  # None: not there
        self.again()

    def again(self) -> None:
        """Have the file judged although it has not changed."""
        self._seen, self._wanted = "", True

    def look(self) -> None:
        """Start a run where there is something new, print the verdict of one that has ended."""
        if self._changed():
            if self._run and not self._wanted:
                click.echo("restarted: the file was saved meanwhile")
            self._wanted = True
        if self._run:
            if self._wanted and self._engine:
                self._engine.stop()
            if self._run[1].done:
                self._finish(*self._run)
        elif self._wanted:
            self._start()

    def _changed(self) -> bool:
        """Tell whether there is another content; a save that changes nothing is no change."""
        path = self._workspace.path(self.exercise)
        with contextlib.suppress(OSError):
            stat = path.stat()
            if (stat.st_mtime_ns, stat.st_size) == self._stat:
                return False
            content = hashlib.sha256(path.read_bytes()).hexdigest()
            self._stat = (stat.st_mtime_ns, stat.st_size)
            changed, self._seen = content != self._seen, content
            return changed
        changed, self._stat, self._seen = self._stat is not None, None, ""
        return changed

    def _start(self) -> None:
        self._wanted = False
        click.echo(f"\n{time.strftime('%H:%M:%S')} checking {self.exercise.name} ...")
        try:
            source = read(self._workspace, self.exercise)
        except Problem as problem:  # the file is away or unreadable: wait for it
            click.echo(f"BLOCKED  {problem.message}")
            self.exit_code = problem.code
            return
        self._seen = hashlib.sha256(source).hexdigest()
        if self._engine:
            self._engine.go_on()
        exercise = self.exercise
        self._run = source, Background(lambda: judged(self._workspace, exercise, self._grader, source))

    def _finish(self, source: bytes, run: Background[Report]) -> None:
        self._run = None
        report = run.result()
        if not self._wanted:  # else it judged what is no longer there
            tell(self._settings, self._workspace, self.exercise, report, source)
            self.exit_code = report.exit_code


class _Keys:
    """Keys as they are pressed; where the terminal cannot, a letter and Enter."""

    def __init__(self) -> None:
        self._pressed: deque[str] = deque()
        self._restore = contextlib.ExitStack()
        self._single = False

    def __enter__(self) -> _Keys:
        if os.name != "posix":
            threading.Thread(target=self._read_lines, daemon=True).start()
            return self
        with contextlib.suppress(ImportError, OSError, ValueError, AttributeError):
            import termios
            import tty

            with contextlib.suppress(termios.error):  # no terminal
                before = termios.tcgetattr(sys.stdin)
                self._restore.callback(termios.tcsetattr, sys.stdin, termios.TCSADRAIN, before)
                tty.setcbreak(sys.stdin, termios.TCSANOW)  # what was typed before is kept
                self._single = True
        return self

    def __exit__(self, *details: object) -> None:
        self._restore.close()

    def wait(self, seconds: float) -> str | None:
        """Wait for a key: the key, None if there was none, END at the end of the input."""
        if not self._pressed:
            if os.name != "posix" or sys.stdin is None:
                time.sleep(seconds)
            elif select.select([sys.stdin], [], [], seconds)[0]:
                self._pressed.extend(self._keys(os.read(sys.stdin.fileno(), 1024).decode("latin-1")))
        return self._pressed.popleft() if self._pressed else None

    def _keys(self, typed: str) -> list[str]:
        if not typed:
            return [END]
        if not self._single:
            return [line.strip()[0] for line in typed.splitlines() if line.strip()]
        if typed.startswith("\x1b"):  # an arrow and its like: several characters that mean nothing here
            return []
        return ["q" if key == "\x04" else key for key in typed if not key.isspace()]

    def _read_lines(self) -> None:
        for line in sys.stdin:
            self._pressed.extend(line.strip()[:1])
        self._pressed.append(END)


@contextlib.contextmanager
def _ended_by_a_signal() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end the command as Ctrl-C does: the terminal is put back, nothing keeps running."""

    def end(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    names = [name for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    before = {name: signal.signal(getattr(signal, name), end) for name in names}
    try:
        yield
    finally:
        for name, handler in before.items():
            signal.signal(getattr(signal, name), handler)
