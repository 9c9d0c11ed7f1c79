"""The folder of an nbgrader course: its settings, and `source/` with one assignment a lesson."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from rerail.classroom.notebooks import written
from rerail.course import Exercise
from rerail.files import remedy

MARK = "# An nbgrader course of rerail"  # the first line of the settings, by which a folder of ours is known
SETTINGS = f"""{MARK}; `rerail classroom init` adds what is missing and changes nothing that is there.
from pathlib import Path

folder = Path(__file__).resolve().parent
notebooks = "|".join(sorted(path.stem for path in folder.glob("source/*/*.ipynb")))

c = get_config()  # noqa: F821  (nbgrader's)
c.CourseDirectory.root = str(folder)
c.CourseDirectory.course_id = folder.name

# a check ends a script that runs on by itself, after 20 s or more; this is for cells that a learner added
c.ExecutePreprocessor.timeout = 300
# a deleted check comes back, and says that there was nothing to judge; else the mark would be missing without a word
c.OverwriteCells.add_missing_cells = True

# collects STUDENT_NOTEBOOK.ipynb and STUDENT/NOTEBOOK.ipynb; it is matched from the start of a full path
c.FileNameCollectorPlugin.named_regexp = (
    rf".*[/\\\\](?!(?:{{notebooks}})\\.ipynb$)(?P<student_id>[^/\\\\]+?)[_/\\\\](?P<file_id>(?:{{notebooks}})\\.ipynb)$"
)
"""


class FolderError(Exception):
    """The folder cannot become a course; the message says what to do."""


class Occupied(FolderError):
    """The folder holds something else."""


@dataclass(frozen=True)
class Made:
    """What was written: the names of the notebooks, as LESSON/NAME."""

    written: tuple[str, ...]
    kept: tuple[str, ...]


def make(folder: Path, exercises: Iterable[Exercise]) -> Made:
    """
    Make an nbgrader course of exercises, or complete one; a file that is there stays as it is.

    A released notebook must not change once submissions exist, and an instructor may have added to it.

    Raises:
        Occupied: If the folder holds something else.
        FolderError: If it cannot be written.
    """
    settings = folder / "nbgrader_config.py"
    try:
        if folder.exists() and not folder.is_dir():
            raise Occupied(f"{folder} is a file; name a new folder")
        if folder.is_dir() and any(folder.iterdir()) and not _is_ours(settings):
            raise Occupied(f"{folder} holds other files and no course of rerail; name a new folder")
        folder.mkdir(parents=True, exist_ok=True)
        if not settings.exists():
            settings.write_text(SETTINGS, "utf-8")
        made: dict[bool, list[str]] = {True: [], False: []}
        for exercise in exercises:
            made[_write(folder / "source" / exercise.lesson, exercise)].append(f"{exercise.lesson}/{exercise.name}")
    except OSError as error:
        what = f"{error.filename or folder} could not be written: {error.strerror or error}"
        raise FolderError(f"{what}; {remedy(error)}") from None
    return Made(tuple(made[True]), tuple(made[False]))


def _is_ours(settings: Path) -> bool:
    return settings.is_file() and settings.read_text("utf-8", "replace").startswith(MARK)


def _write(assignment: Path, exercise: Exercise) -> bool:
    """Write an exercise's notebook, and the data that its script reads; tell whether it was not there yet."""
    path, data = assignment / f"{exercise.name}.ipynb", exercise.path("exercises").parent / "data"
    if data.is_dir() and not (assignment / "data").exists():
        shutil.copytree(data, assignment / "data", ignore=shutil.ignore_patterns("__pycache__"))
    if path.exists():
        return False
    assignment.mkdir(parents=True, exist_ok=True)
    path.write_bytes(written(exercise))
    return True
