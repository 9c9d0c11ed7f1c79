"""`rerail classroom`: a course for many learners."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import click

from rerail.cli.settings import Problem, Settings


@click.group(name="classroom")
def command() -> None:
    """Make an nbgrader course of the exercises."""


@command.command(name="init")
@click.argument("folder", metavar="DIR")
@click.pass_obj
def init_command(settings: Settings, folder: str) -> None:
    """Write an nbgrader course into DIR. It has an assignment a lesson, and a notebook an exercise."""
    from rerail.classroom.folder import FolderError, Occupied, make

    try:
        made = make(Path(folder), settings.exercises())
    except Occupied as error:
        raise Problem(str(error)) from None
    except FolderError as error:
        raise Problem(str(error), 3) from None
    first = next(iter([*made.written, *made.kept]), "LESSON/").partition("/")[0]
    kept = f"; {len(made.kept)} were there and stay as they are" if made.kept else ""
    missing = importlib.util.find_spec("nbgrader") is None
    settings.say(
        f"{folder} is an nbgrader course: {len(made.written)} notebooks written{kept}.\n\n"
        + ("  pip install 'rerail[classroom]'           installs nbgrader, which is not there yet\n" if missing else "")
        + f"  cd {folder}\n"
        f"  nbgrader generate_assignment {first}   makes the version for learners, in release/\n"
        f"  nbgrader zip_collect, autograde, generate_feedback, export follow; the page on classrooms has them all",
        folder=folder, written=made.written, kept=made.kept, nbgrader=not missing,
    )  # fmt: skip
