"""`rerail watch`: judge at every save."""

from __future__ import annotations

import contextlib
import hashlib
import os
import select
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path

import click

from rerail.cli.check import check, opened
from rerail.cli.hint import show_hint
from rerail.cli.next import move_on
from rerail.cli.settings import Problem, Settings

POLL_SECONDS = 0.15
KEYS = "r checks again, h shows a hint, n goes on, q leaves"


@click.command(name="watch")
@click.argument("exercise", required=False, metavar="[ID]")
@click.pass_obj
def command(settings: Settings, exercise: str | None) -> None:
    """Judge your script at every save. Keys: r checks again, h shows a hint, n goes on after a pass, q leaves."""
    if settings.as_json:
        raise Problem("watch prints one verdict a save and no single object; `rerail check --json` prints one")
    found = settings.exercise(exercise)
    workspace = settings.workspace()
    click.echo(f"checking {found.name} at every save. {KEYS}")
    with opened(settings, any(not e.is_sheet for e in settings.exercises())) as grader, _single_keys():
        last = ""
        passed = False
        while True:
            stamp = _stamp(workspace.path(found))
            if stamp != last:
                last = stamp
                click.echo(f"\n{time.strftime('%H:%M:%S')}")
                try:
                    passed = check(settings, workspace, found, grader).outcome == "pass"
                except Problem as problem:  # the file is away or unreadable: wait for it
                    click.echo(f"rerail: {problem.message}")
            key = _key()
            if key in ("q", ""):
                return
            if key == "r":
                last = ""
            elif key == "h":
                show_hint(settings, found)
            elif key == "n" and not passed:
                click.echo(f"{found.name} has not passed yet; `rerail next` moves on all the same")
            elif key == "n":
                move_on(settings)
                found, last, passed = settings.current(workspace.progress()), "", False


def _stamp(path: Path) -> str:
    """Tell one content from another; a save that changes nothing is no change."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return "unreadable"


_pressed: deque[str] = deque()


def _key() -> str | None:
    """Wait one tick for a key: the key, None if there was none, "" at the end of the input."""
    if os.name != "posix":
        time.sleep(POLL_SECONDS)
        return _pressed.popleft() if _pressed else None
    if not select.select([sys.stdin], [], [], POLL_SECONDS)[0]:
        return None
    if sys.stdin.isatty():
        return os.read(sys.stdin.fileno(), 1).decode("latin-1")
    line = sys.stdin.readline()
    return line.strip()[:1] or None if line else ""


@contextlib.contextmanager
def _single_keys() -> Iterator[None]:
    """Take keys as they are pressed; where the terminal cannot, a letter and Enter."""
    if os.name != "posix":
        lines = (line.strip()[:1] for line in sys.stdin)
        threading.Thread(target=lambda: _pressed.extend(lines), daemon=True).start()
        yield
        return
    try:
        import termios
        import tty

        before = termios.tcgetattr(sys.stdin)
    except (ImportError, OSError, ValueError, termios.error):
        yield
        return
    try:
        tty.setcbreak(sys.stdin)
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
