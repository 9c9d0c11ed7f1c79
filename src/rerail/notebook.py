"""A script in a notebook: `%%exercise NAME` captures a cell as text, `check("NAME")` has that text judged.

The text is never executed in the kernel: like any file it runs in a child, of an engine that stays warm as long as the
kernel lives. What `check` says goes to stdout only, and its value is a built-in float: nbgrader gives no points for a
line on stderr, and full points for a value that it cannot read.

    %load_ext rerail.notebook
"""

from __future__ import annotations

import atexit
import codecs
import contextlib
import io
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NoReturn

from rerail import course
from rerail.course import Exercise
from rerail.engine import EngineError, open_engine
from rerail.grading import Grader, Submission
from rerail.report import Report

RUN_SECONDS = 60  # the scripts of the course take a few
RUN_CHARACTERS = 20_000  # of what a script prints: more makes a notebook slow
MARKING = "NBGRADER_EXECUTION"  # nbgrader says "autograde" here while it marks


@dataclass
class Scripts:
    """What the cells of one notebook hold, and the warm engine that judges it."""

    root: Path | None = None  # of the course; None: the installed one
    texts: dict[str, str] = field(default_factory=dict)
    _grader: Grader = field(default_factory=lambda: Grader(None))

    def capture(self, name: str, text: str) -> str:
        """Keep the text of a cell, write it as a file beside the notebook, and return what became of it."""
        exercise = self.exercise(name)
        self.texts[exercise.name] = text
        if not exercise.is_sheet:
            with contextlib.suppress(EngineError):  # the check will say so
                self._open()
        said = f"{exercise.number} {exercise.name}: {len(text.splitlines())} lines"
        if MARKING in os.environ:
            return said
        try:
            Path(f"{exercise.name}.py").write_text(text, "utf-8")
        except OSError as error:
            return f"{said}, judged as they stand here; {exercise.name}.py was not written: {error.strerror or error}"
        return f"{said}, also written to {exercise.name}.py"

    def report(self, name: str) -> Report:
        """Judge what was captured last."""
        exercise = self.exercise(name)
        shown = f"{exercise.name}.py"
        text = self.texts.get(exercise.name, _from_history(exercise.name))
        report = Report(exercise.name, exercise.number, exercise.title, shown, "not yet", "contract",
                        possible=exercise.meta["POINTS"], level="none")  # fmt: skip
        if text is None:
            message = f"no cell that begins with `%%exercise {name}` has been run; run it, then this one again"
            return replace(report, message=message)
        try:
            if not exercise.is_sheet:
                self._open()
        except EngineError as error:
            return replace(report, outcome="blocked", reason="", message=f"{error}; `rerail doctor` looks closer")
        return self._grader.grade(exercise, Submission(text.encode("utf-8", "replace"), shown))

    def exercise(self, name: str) -> Exercise:
        """
        Find an exercise.

        Raises:
            LookupError: If there is none of that name.
        """
        return course.find(name, self.root)

    def _open(self) -> None:
        if self._grader.engine is None:
            self._grader.engine = open_engine()

    def close(self) -> None:
        """End the engine."""
        if self._grader.engine is not None:
            self._grader.engine.close()
            self._grader.engine = None


scripts = Scripts()
atexit.register(lambda: scripts.close())


def load_ipython_extension(shell: Any) -> None:
    """Add the magic; called by `%load_ext rerail.notebook`. The shell is IPython's, which the core does not need."""
    shell.register_magic_function(_exercise, "cell", "exercise")
    shell.push({"check": check, "run": run}, interactive=False)


def _exercise(line: str, cell: str) -> None:
    """Capture this cell as the script of an exercise: `%%exercise NAME`. It is not executed in the kernel."""
    with _on_stdout(), _told():
        print(scripts.capture(line.strip(), cell))


def check(name: str) -> float:
    """
    Judge the cell that begins with `%%exercise NAME`, and print why.

    Returns:
        The points, as a built-in float.
    """
    marking = os.environ.get(MARKING) == "autograde"
    with _on_stdout(), _told():
        report = _whatever_happens(name) if marking else scripts.report(name)
        print(report.text())
    if marking and report.outcome in ("blocked", "defect"):
        _leave_unmarked(report)
    return float(report.points)


def _whatever_happens(name: str) -> Report:
    """Judge while nbgrader marks: there an exception would be a mark of 0."""
    try:
        return scripts.report(name)
    except Exception as error:
        return Report(name, "", "", f"{name}.py", "defect", message=f"{type(error).__name__}: {error}")


def run(name: str) -> None:
    """Run the captured script as `python NAME.py` does, in a process of its own, and show what it prints."""
    if MARKING in os.environ:
        return  # nobody reads it then, and it takes seconds
    with _on_stdout(), _told():
        exercise = scripts.exercise(name)
        path = Path(f"{exercise.name}.py")
        if exercise.name not in scripts.texts or not path.is_file():
            print(f"there is no {path} yet; run the cell that begins with `%%exercise {exercise.name}` first")
            return
        print(f"$ python {path}", flush=True)
        _show_output([sys.executable, str(path)])


def _show_output(command: list[str]) -> None:
    """Pass on what a program prints, as it comes; it ends at its limit, or with the kernel's interrupt."""
    environment = os.environ | {"PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1", "MPLBACKEND": "Agg"}
    decode = codecs.getincrementaldecoder("utf-8")("replace").decode
    left, begin = RUN_CHARACTERS, time.monotonic()
    with subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, start_new_session=True) as process:  # fmt: skip
        assert isinstance(process.stdout, io.BufferedReader)
        timer = threading.Timer(RUN_SECONDS, _kill, [process])
        timer.start()
        try:
            while chunk := process.stdout.read1(1 << 16):
                text = decode(chunk)
                print(text[: max(left, 0)], end="")
                left -= len(text)
            code = process.wait()
        except BaseException:
            _kill(process)
            raise
        finally:
            timer.cancel()
    if left < 0:
        print(f"\n[{-left} characters cut]")
    if code and time.monotonic() - begin >= RUN_SECONDS:
        print(f"\n[stopped after {RUN_SECONDS} s]")
    elif code:
        print(f"[exit code {code}]")


def _kill(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL) if os.name == "posix" else process.kill()


def _from_history(name: str) -> str | None:
    """Find the cell among those that the kernel was given: it may have come before the magic was there."""
    if "IPython" not in sys.modules:
        return None
    shell: Any = sys.modules["IPython"].get_ipython()
    for cell in reversed(shell.history_manager.input_hist_raw if shell else []):
        first, _, text = cell.lstrip("\n").partition("\n")
        if first.split() == ["%%exercise", name]:
            return str(text)
    return None


def _leave_unmarked(report: Report) -> NoReturn:
    """
    End the kernel: the one way in which a notebook is not marked at all, where anything else would be a 0.

    nbgrader then reports that the kernel died, records nothing, and marks the notebook when it is run again.
    """
    said = f"rerail: {report.exercise} was not marked, {report.outcome}: {report.message}\n"
    try:
        terminal = sys.stderr.fileno()  # in a kernel: where nbgrader's own messages go, not the cell
    except (OSError, ValueError):
        terminal = 2
    with contextlib.suppress(OSError):
        os.write(terminal, said.encode())
    scripts.close()
    os._exit(1)


@contextlib.contextmanager
def _on_stdout() -> Iterator[None]:
    """Keep stderr silent, whatever filters a notebook has set."""
    with contextlib.redirect_stderr(sys.stdout), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@contextlib.contextmanager
def _told() -> Iterator[None]:
    """Tell an unknown name in one line, as IPython tells a wrong call, and not by a traceback."""
    try:
        yield
    except LookupError as error:
        from IPython.core.error import UsageError

        raise UsageError(str(error.args[0])) from None
