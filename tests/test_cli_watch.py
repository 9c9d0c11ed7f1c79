"""`rerail watch` in a terminal of its own, and without one."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rerail import course
from rerail.workspace import Workspace

SCRIPT = "exercises/01_sample/too_large.py"
FIXED = ("(len(values) - 1)", "len(values)")


@pytest.fixture
def workspace(course_root: Path, tmp_path: Path) -> Path:
    return Workspace.create(tmp_path / "learn", course.exercises(course_root)).folder


def command(root: Path, *arguments: str) -> list[str]:
    program = (
        "import sys; from pathlib import Path; from rerail.cli import main; from rerail.cli.settings import Settings; "
        f"main(sys.argv[1:], Settings(root=Path({str(root)!r})))"
    )
    return [sys.executable, "-c", program, "watch", *arguments]


class Terminal:
    """A command in a terminal."""

    def __init__(self, arguments: list[str], folder: Path) -> None:
        self.ours, self.theirs = pty.openpty()
        self.process = subprocess.Popen(arguments, cwd=folder, stdin=self.theirs, stdout=self.theirs,
                                        stderr=self.theirs, start_new_session=True)  # fmt: skip
        self.said = self.everything = ""

    def until(self, text: str, seconds: float = 40) -> None:
        """Read until a text was printed since the last call."""
        deadline = time.monotonic() + seconds
        while text not in self.said:
            assert time.monotonic() < deadline, f"{text!r} did not come in {self.everything!r}"
            if select.select([self.ours], [], [], 0.1)[0]:
                came = os.read(self.ours, 1 << 16).decode()
                self.said, self.everything = self.said + came, self.everything + came
        self.said = self.said.partition(text)[2]

    def type(self, keys: str) -> None:
        os.write(self.ours, keys.encode())

    def takes_lines(self) -> bool:
        """Tell whether the terminal is as a shell expects it."""
        return bool(termios.tcgetattr(self.theirs)[3] & termios.ICANON)


@pytest.fixture
def watch(course_root: Path, workspace: Path) -> Iterator[Terminal]:
    """Return a watch of `too_large` that has just begun."""
    terminal = Terminal(command(course_root, "too_large"), workspace)
    yield terminal
    terminal.process.kill()
    terminal.process.wait()
    os.close(terminal.ours)
    os.close(terminal.theirs)


def save(workspace: Path, source: str) -> None:
    """Save as editors do: another file takes the name."""
    path = workspace / SCRIPT
    other = path.with_name("too_large.py~")
    other.write_text(source)
    os.replace(other, path)


def test_it_says_at_once_what_it_does_and_leaves_while_loading(watch: Terminal) -> None:
    watch.until("checking too_large", 3)
    watch.until("loading PyTorch, about 3 s", 3)
    watch.type("q")

    assert watch.process.wait(2) == 0, "before torch is loaded"
    assert watch.takes_lines()


def test_a_save_during_a_run_ends_it_and_starts_again(watch: Terminal, workspace: Path) -> None:
    watch.until("NOT YET")
    fixed = (workspace / SCRIPT).read_text().replace(*FIXED)
    begun = workspace / "begun"
    save(workspace, f"open({str(begun)!r}, 'w').close()\nwhile True: pass\n")
    deadline = time.monotonic() + 10
    while not begun.exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)

    save(workspace, fixed)
    watch.until("restarted", 5)
    watch.until("PASS", 5)
    assert "stopped at its time limit" not in watch.everything, "nobody wants the verdict on what was there before"


def test_a_save_that_changes_nothing_starts_no_run(watch: Terminal, workspace: Path) -> None:
    watch.until("NOT YET")
    watch.until("rerail hint too_large")
    save(workspace, (workspace / SCRIPT).read_text())
    time.sleep(0.6)  # four looks at the file: what must not happen has no moment of its own
    watch.type("?")
    watch.until("q leaves", 5)
    assert watch.everything.count("NOT YET") == 1

    watch.type("r")
    watch.until("NOT YET", 5)


def test_a_file_that_goes_away_is_waited_for(watch: Terminal, workspace: Path) -> None:
    watch.until("NOT YET")
    fixed = (workspace / SCRIPT).read_text().replace(*FIXED)
    (workspace / SCRIPT).unlink()
    watch.until("BLOCKED  exercises/01_sample/too_large.py is not there", 5)
    save(workspace, fixed)
    watch.until("PASS", 5)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_terminal_is_put_back(watch: Terminal, number: int) -> None:
    watch.until("NOT YET")
    os.kill(watch.process.pid, number)

    watch.until("interrupted; nothing was lost", 5)
    assert watch.process.wait(5) == 130
    assert watch.takes_lines()


def test_other_keys_say_what_there_is(watch: Terminal) -> None:
    watch.until("q leaves")
    watch.until("rerail hint too_large")
    watch.type("\x1b[A")
    time.sleep(0.4)  # so that the two come apart
    watch.type("?")
    watch.until("r checks again, h shows a hint, n goes on after a pass, q leaves", 5)
    watch.type("\x04")

    assert watch.process.wait(5) == 0
    assert watch.everything.count("q leaves") == 2, "an arrow is no key"


def test_without_a_terminal_lines_are_keys_and_the_end_waits_for_the_verdict(
    course_root: Path, workspace: Path
) -> None:
    arguments = command(course_root, "which_one")

    nothing = subprocess.run(arguments, cwd=workspace, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    quits = subprocess.run(arguments, cwd=workspace, input="quit\n", capture_output=True, text=True)

    assert (nothing.returncode, "NOT YET" in nothing.stdout, nothing.stderr) == (1, True, ""), "as `rerail check`"
    assert (quits.returncode, quits.stderr) == (0, "")
    assert "\x1b" not in nothing.stdout
