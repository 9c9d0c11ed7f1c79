"""What every command has: the workspace, the course, and how to print."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rerail import course
from rerail.course import CourseError, Exercise

if TYPE_CHECKING:
    from rerail.progress import Progress
    from rerail.workspace import Workspace

COLORS = {
    "PASS": "green",
    "done": "green",
    "ok": "green",
    "NOT YET": "yellow",
    "FAIL": "red",
    "BLOCKED": "magenta",
    "DEFECT": "red",
}

INSTALL = "pip install 'torch>=2.13' (https://pytorch.org/get-started/locally/ has smaller builds, for CPUs)"
OUTCOMES = {1: "not yet", 3: "blocked", 4: "defect", 130: "interrupted"}


class Problem(click.ClickException):
    """What a command cannot do, in one sentence; exit code 2 unless the environment is at fault (3)."""

    def __init__(self, message: str, exit_code: int = 2) -> None:
        super().__init__(message)
        self.code = exit_code


@dataclass
class Settings:
    """The global options, and what follows from them."""

    root: Path | None = None  # of the course; None: the installed one
    as_json: bool = False
    plain: bool = False
    color: str = "auto"
    quiet: bool = False
    folder: str | None = None
    exit_code: int = 0

    def take(self, *, workspace: str | None, as_json: bool, plain: bool, color: str, quiet: bool) -> None:
        """Take over the options of the command line."""
        self.folder, self.as_json, self.plain, self.color, self.quiet = workspace, as_json, plain, color, quiet

    def exercises(self) -> list[Exercise]:
        """Return all exercises of the course."""
        try:
            return course.exercises(self.root)
        except CourseError as error:
            raise Problem(str(error), 4) from None

    def maybe_workspace(self) -> Workspace | None:
        """Return the workspace that was named or that lies around the current folder, or None."""
        from rerail.workspace import Workspace

        if self.folder is not None:
            path = Path(self.folder).absolute()
            if path.exists() and not path.is_dir():
                raise Problem(f"{self.folder} is a file, a workspace is a folder; name what `rerail start` made")
            found = Workspace.find(path) if path.is_dir() else None
            if found is None:
                raise Problem(f"{self.folder} is no workspace; `rerail start {self.folder}` makes one")
            return found
        try:
            here = Path.cwd()
        except FileNotFoundError:
            raise Problem("the current folder was removed; change to another one", 3) from None
        return Workspace.find(here)

    def workspace(self) -> Workspace:
        """Return the workspace; without one the command cannot go on."""
        from rerail.workspace import HIDDEN

        found = self.maybe_workspace()
        if found is not None:
            return found
        if (Path.cwd() / HIDDEN).exists():
            raise Problem(f"{HIDDEN} is a file here, the folder of your progress was expected; move it away, "
                          "then `rerail start .`; your scripts stay as they are", 3)  # fmt: skip
        if (Path.cwd() / "exercises").is_dir():
            raise Problem(f"there is no {HIDDEN} beside exercises; `rerail start .` makes it anew, your scripts stay")
        raise Problem("there is no workspace around this folder; `rerail start learn` makes one")

    def exercise(self, name: str | None) -> Exercise:
        """Return the exercise that was named (its id, its number, or the path of its script), or the one at hand."""
        if name is None:
            return self.current(self.workspace().progress())
        written = name.replace("\\", "/").rstrip("/")
        if written and Path(written).is_dir():
            raise Problem(f"{name!r} is a folder, the name of an exercise was expected; `rerail list` shows them")
        try:
            found = course.find(written.rpartition("/")[2] or name, self.root)
        except LookupError as error:
            raise Problem(str(error.args[0])) from None
        except CourseError as error:
            raise Problem(str(error), 4) from None
        workspace = self.maybe_workspace() if "/" in written or Path(written).exists() else None
        if workspace is not None:
            ours = workspace.path(found)
            if ours.resolve() not in (Path(written).resolve(), (workspace.folder / written).resolve()):
                raise Problem(f"{name!r} is not the script of this workspace; write {found.name!r} for that one")
        return found

    def current(self, progress: Progress) -> Exercise:
        """Return the exercise at hand: the last one moved to, else the first."""
        everything = self.exercises()
        if not everything:
            raise Problem("the course has no exercises; install rerail again", 4)
        return next((e for e in everything if e.name == progress.current), everything[0])

    def say(self, text: str, **data: Any) -> None:
        """Print what a command found: text, or `data` as the one JSON object of the command."""
        if self.as_json:
            if data:
                click.echo(json.dumps({"schema": "rerail.answer/1", **data}, ensure_ascii=False))
        else:
            lines = text.strip("\n").split("\n")[:1] if self.quiet else text.split("\n")
            click.echo("\n".join(map(self.colored, lines)), color=self.in_color)

    def warn(self, text: str) -> None:
        """Print a warning on the error stream, where it disturbs no JSON."""
        if text:
            click.echo(f"rerail: {text}", err=True)

    @property
    def in_color(self) -> bool:
        """Whether colour is wanted; it never says what a word does not."""
        auto = sys.stdout.isatty() and "NO_COLOR" not in os.environ
        return not self.plain and (self.color == "always" or (self.color == "auto" and auto))

    def colored(self, line: str) -> str:
        """Colour the status word that a line begins with."""
        if not self.in_color:
            return line
        for word, color in COLORS.items():
            start = line.lstrip(" [")
            if start.startswith(word):
                return line.replace(word, click.style(word, fg=color, bold=True), 1)
        return line


def lacks_torch() -> bool:
    """Tell whether PyTorch is not installed, without importing it."""
    try:
        return importlib.util.find_spec("torch") is None
    except ImportError:
        return True


def report_problem(settings: Settings, message: str, exit_code: int) -> int:
    """Print a problem as one sentence (or one JSON object) and return the exit code."""
    if settings.as_json:
        said = {"schema": "rerail.problem/1", "outcome": OUTCOMES.get(exit_code, "usage error"), "message": message,
                "exit_code": exit_code}  # fmt: skip
        click.echo(json.dumps(said, ensure_ascii=False))
    else:
        status = {3: "BLOCKED  ", 4: "DEFECT   "}.get(exit_code, "rerail: ")
        click.echo(f"{status}{message}", err=True)
    return exit_code
