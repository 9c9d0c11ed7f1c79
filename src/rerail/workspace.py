"""One learner's workspace: their copies of the scripts, their progress, and backups of what a command replaced."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rerail import __version__
from rerail.course import Exercise
from rerail.files import remedy, write_whole
from rerail.progress import Progress, is_state, now

SCHEMA = 1
HIDDEN = ".rerail"


class WorkspaceError(Exception):
    """The workspace cannot be read or written; the message says what to do."""


class Occupied(WorkspaceError):
    """A workspace cannot be made there, because something else is."""


@dataclass(frozen=True)
class Workspace:
    """A folder with `exercises/` (the learner's) and `.rerail/` (progress and backups)."""

    folder: Path

    @classmethod
    def find(cls, start: Path) -> Workspace | None:
        """Return the workspace that a folder lies in, or None."""
        for folder in (start, *start.parents):
            if (folder / HIDDEN).is_dir():
                return cls(folder)
        return None

    @classmethod
    def create(cls, folder: Path, exercises: list[Exercise]) -> Workspace:
        """
        Make a workspace, or complete one; files that are there stay as they are.

        Raises:
            Occupied: If the folder holds something else.
            WorkspaceError: If it cannot be written.
        """
        workspace = cls(folder)
        with _told(f"{folder} could not be read"):
            if folder.exists() and not folder.is_dir():
                raise Occupied(f"{folder} is a file; name a new folder, as in `rerail start learn`")
            workspace._refuse_file()
            if folder.is_dir() and any(folder.iterdir()) and not workspace._was_one(exercises):
                raise Occupied(f"{folder} holds other files; name a new folder, as in `rerail start learn`")
        with _told(f"{folder} could not be written"):
            (folder / HIDDEN).mkdir(parents=True, exist_ok=True)
        workspace.complete(exercises)
        return workspace

    def _refuse_file(self) -> None:
        """Raise Occupied where a file stands in the place of the progress."""
        path = self.folder / HIDDEN
        if os.path.lexists(path) and not path.is_dir():
            raise Occupied(f"{path} is a file, a folder was expected; move it away, then `rerail start .`")

    def _was_one(self, exercises: list[Exercise]) -> bool:
        """Tell whether this is a workspace, also one that lost its progress; the course itself is none."""
        if (self.folder / HIDDEN).is_dir():
            return True
        ours = [exercise for exercise in exercises if self.path(exercise).exists()]
        return any(not self.path(exercise).samefile(exercise.path("exercises")) for exercise in ours)

    def complete(self, exercises: list[Exercise]) -> list[str]:
        """
        Write the files of exercises that are not there, and note what was written; nothing is overwritten.

        Returns:
            The names of what was written, relative to the folder of the exercises.

        Raises:
            WorkspaceError: If one cannot be written.
        """
        path, names = self.folder / HIDDEN / "pristine.json", list[str]()
        with _told(f"{self.folder} could not be written"):
            pristine = _mapping(path)
            for exercise in exercises:
                if written := self._missing_files(exercise):
                    files = pristine.get(exercise.name, {}).get("files", {})
                    pristine[exercise.name] = {"course_version": __version__, "files": files | written}
                    names += written
            if names:
                write_whole(path, json.dumps(pristine, indent=1).encode())
        return names

    def _missing_files(self, exercise: Exercise) -> dict[str, str]:
        """Write the files of an exercise that are not there; return their digests by name."""
        written = {}
        for source in _shipped_files(exercise):
            shown = f"{exercise.lesson}/{source.relative_to(exercise.path('exercises').parent).as_posix()}"
            target = self.folder / "exercises" / shown
            if not os.path.lexists(target):  # a link that leads nowhere is the learner's too
                content = source.read_bytes()
                write_whole(target, content)
                written[shown] = digest(content)
        return written

    def path(self, exercise: Exercise) -> Path:
        """Return the learner's file of an exercise."""
        return self.folder / "exercises" / exercise.lesson / f"{exercise.name}.py"

    def shown(self, exercise: Exercise) -> str:
        """Return the name under which the learner knows that file: relative to the workspace."""
        return self.path(exercise).relative_to(self.folder).as_posix()

    def read(self, exercise: Exercise) -> bytes:
        """
        Return the learner's bytes.

        Raises:
            WorkspaceError: If there is no readable file.
        """
        path, shown = self.path(exercise), self.shown(exercise)
        if path.is_dir():
            raise WorkspaceError(
                f"{shown} is a folder, a script was expected; move it away and `rerail reset {exercise.name}`"
            )
        if not path.exists():
            raise WorkspaceError(f"{shown} is not there; `rerail reset {exercise.name}` writes it again")
        with _told(f"{shown} could not be read"):
            return path.read_bytes()

    # progress

    def progress(self) -> Progress:
        """Read the progress; what cannot be read counts as none, and `warning` says so."""
        path = self.folder / HIDDEN / "state.json"
        try:
            state = json.loads(path.read_bytes())
            if not isinstance(state, dict) or not isinstance(state.get("exercises", {}), dict):
                raise ValueError("no mapping")
            version = state.get("schema", SCHEMA)
            if type(version) is int and version > SCHEMA:
                warning = f"progress was written by a newer rerail (schema {version}); it is read and not changed"
                return Progress(state, warning, "newer")
            if not is_state(state):
                warning = f"progress in {path.name} is partly broken; `rerail check --all` rebuilds it from the scripts"
                return Progress(state, warning, "broken")
        except FileNotFoundError:
            return Progress({})
        except OSError as error:
            warning = f"progress in {path} cannot be read: {error.strerror or error}; {remedy(error)}"
            return Progress({}, warning, "unreadable")
        except (ValueError, RecursionError):
            warning = f"progress in {path.name} is broken; `rerail check --all` rebuilds it from the scripts"
            return Progress({}, warning, "broken")
        return Progress(state)

    def update(self, change: Callable[[Progress], None]) -> str:
        """
        Change the progress under a lock, all or nothing.

        Returns:
            "", or a sentence for the learner where not all is well: a verdict is worth more than its record.
        """
        told = ""
        try:
            with self._locked():
                progress = self.progress()
                if progress.trouble in ("newer", "unreadable"):  # what we cannot read we do not replace
                    return progress.warning
                path = self.folder / HIDDEN / "state.json"
                if progress.trouble == "broken":
                    kept = path.with_name(f"state.broken-{now()}.json")
                    path.rename(kept)
                    progress.mend()
                    told = f"progress was broken and is kept as {kept.name}; `rerail check --all` rebuilds it"
                change(progress)
                progress.state.update(schema=SCHEMA, course="rerail", course_version=__version__)
                write_whole(path, json.dumps(progress.state, indent=1).encode())
        except OSError as error:
            return f"progress could not be saved: {error.strerror or error}; {remedy(error)}, then try again"
        return told

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        with open(self.folder / HIDDEN / "lock", "w") as file:
            with contextlib.suppress(ImportError):  # one writer; where there is no fcntl, the last one wins whole
                import fcntl

                fcntl.flock(file, fcntl.LOCK_EX)
            yield

    # what a command replaces is kept

    def replace(self, exercise: Exercise, content: bytes) -> Path | None:
        """
        Write an exercise's file; return the backup of what stood there before, None if that was the same or nothing.

        Raises:
            WorkspaceError: If either cannot be written; then the learner's file is as it was.
        """
        path = self.path(exercise)
        with _told(f"{self.shown(exercise)} could not be replaced, and is as it was"):
            backup = None
            if path.is_file() and path.read_bytes() != content:
                backup = self._backups(exercise) / f"{now()}.py"
                write_whole(backup, path.read_bytes())
            write_whole(path, content)
            return backup

    def undo(self, exercise: Exercise) -> bytes | None:
        """Put back the last backup, and keep what it replaces as the next one; return it, or None if there is none."""
        backups = self.backups(exercise)
        if not backups:
            return None
        with _told(f"{self.shown(exercise)} could not be put back, and is as it was"):
            content = backups[-1].read_bytes()
            self.replace(exercise, content)
            backups[-1].unlink()
            return content

    def backups(self, exercise: Exercise) -> list[Path]:
        """Return the kept versions of an exercise's file, the oldest first."""
        return sorted(self._backups(exercise).glob("*.py"))

    def _backups(self, exercise: Exercise) -> Path:
        return self.folder / HIDDEN / "backups" / exercise.name

    def keep_solution(self, exercise: Exercise) -> Path:
        """Write the solution beside the progress, and return where."""
        path = self.folder / HIDDEN / "solutions" / f"{exercise.name}.py"
        with _told("the solution could not be written"):
            write_whole(path, exercise.solution)
        return path


def _shipped_files(exercise: Exercise) -> list[Path]:
    """List what a learner gets of an exercise: its script, and the data of its lesson."""
    script = exercise.path("exercises")
    data = (path for path in sorted((script.parent / "data").rglob("*")) if path.is_file())
    return [script, *(path for path in data if "__pycache__" not in path.parts)]


def _mapping(path: Path) -> dict[str, dict[str, Any]]:
    """Read a mapping of mappings from a file of ours; what is something else counts as absent."""
    try:
        found = json.loads(path.read_bytes())
    except (FileNotFoundError, ValueError, RecursionError):
        return {}
    entries = found.items() if isinstance(found, dict) else ()
    return {name: entry for name, entry in entries if isinstance(entry, dict) and isinstance(entry.get("files"), dict)}


def digest(content: bytes) -> str:
    """Return the sha256 of a file, as hexadecimal digits."""
    return hashlib.sha256(content).hexdigest()


@contextlib.contextmanager
def _told(what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise WorkspaceError(f"{what}: {error.strerror or error}; {remedy(error)}, then try again") from None
