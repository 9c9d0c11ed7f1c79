"""One learner's workspace: their copies of the scripts, their progress, and backups of what a command replaced."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rerail import __version__
from rerail.course import Exercise

SCHEMA = 1
HIDDEN = ".rerail"


class WorkspaceError(Exception):
    """The workspace cannot be read or written; the message says what to do."""


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
            WorkspaceError: If the folder holds something else, or cannot be written.
        """
        if folder.exists() and not folder.is_dir():
            raise WorkspaceError(f"{folder} is a file; name a new folder, as in `rerail start learn`")
        if folder.is_dir() and any(folder.iterdir()) and not (folder / HIDDEN).is_dir():
            raise WorkspaceError(f"{folder} holds other files; name a new folder, as in `rerail start learn`")
        workspace = cls(folder)
        with _told(f"{folder} could not be written"):
            (folder / HIDDEN).mkdir(parents=True, exist_ok=True)
            pristine = {exercise.name: _digest(exercise.shipped) for exercise in exercises}
            for exercise in exercises:
                workspace._write_exercise(exercise)
            _write(folder / HIDDEN / "pristine.json", json.dumps(pristine, indent=1).encode())
        return workspace

    def _write_exercise(self, exercise: Exercise) -> None:
        target = self.path(exercise)
        if not target.exists():
            _write(target, exercise.shipped)
        data = exercise.path("exercises").parent / "data"
        if data.is_dir() and not (target.parent / "data").exists():
            shutil.copytree(data, target.parent / "data", ignore=shutil.ignore_patterns("__pycache__"))

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
        """Read the progress; what cannot be read counts as none, and says so in `warning`."""
        path = self.folder / HIDDEN / "state.json"
        try:
            state = json.loads(path.read_bytes())
            if not isinstance(state, dict) or not isinstance(state.get("exercises", {}), dict):
                raise ValueError("no mapping")
        except FileNotFoundError:
            return Progress({})
        except (OSError, ValueError, RecursionError) as error:
            kind = "broken" if not isinstance(error, OSError) else "unreadable"
            return Progress(
                {}, f"progress in {path.name} is {kind}; `rerail check --all` rebuilds it from the scripts", kind
            )
        if state.get("schema", 0) > SCHEMA:
            warning = f"progress was written by a newer rerail (schema {state['schema']}); it is read and not changed"
            return Progress(state, warning, "newer")
        return Progress(state)

    def update(self, change: Callable[[Progress], None]) -> str:
        """
        Change the progress under a lock, all or nothing.

        Returns:
            "", or a sentence that says why it could not be saved: a verdict is worth more than its record.
        """
        try:
            with self._locked():
                progress = self.progress()
                if progress.trouble == "newer":
                    return progress.warning
                path = self.folder / HIDDEN / "state.json"
                if progress.trouble == "broken":
                    path.rename(path.with_name(f"state.broken-{_now()}.json"))
                change(progress)
                progress.state.update(schema=SCHEMA, course="rerail", course_version=__version__)
                _write(path, json.dumps(progress.state, indent=1).encode())
        except OSError as error:
            return f"progress could not be saved: {error.strerror or error}; make room and check again"
        return ""

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
                backup = self._backups(exercise) / f"{_now()}.py"
                _write(backup, path.read_bytes())
            _write(path, content)
            return backup

    def undo(self, exercise: Exercise) -> bytes | None:
        """Put back the last backup, and keep what it replaces as the next one; return it, or None if there is none."""
        backups = sorted(self._backups(exercise).glob("*.py"))
        if not backups:
            return None
        with _told(f"{self.shown(exercise)} could not be put back, and is as it was"):
            content = backups[-1].read_bytes()
            self.replace(exercise, content)
            backups[-1].unlink()
            return content

    def _backups(self, exercise: Exercise) -> Path:
        return self.folder / HIDDEN / "backups" / exercise.name

    def keep_solution(self, exercise: Exercise) -> Path:
        """Write the solution beside the progress, and return where."""
        path = self.folder / HIDDEN / "solutions" / f"{exercise.name}.py"
        with _told("the solution could not be written"):
            _write(path, exercise.solution)
        return path


@dataclass
class Progress:
    """What is known of a learner's way through the course; unknown ids are kept as they are."""

    state: dict[str, Any]
    warning: str = ""
    trouble: str = ""  # broken, unreadable or newer

    @property
    def current(self) -> str:
        """The name of the exercise at hand, "" at first."""
        current = self.state.get("current")
        return current if isinstance(current, str) else ""

    @current.setter
    def current(self, name: str) -> None:
        self.state["current"] = name

    def of(self, name: str) -> dict[str, Any]:
        """Return the entry of an exercise, made if need be: status, attempts, hints, last outcome."""
        entries: dict[str, dict[str, Any]] = self.state.setdefault("exercises", {})
        if not isinstance(entries.get(name), dict):
            entries[name] = {}
        entry = entries[name]
        for key, value in {"status": "todo", "attempts": 0, "hints": 0, "last": {}}.items():
            if type(entry.get(key)) is not type(value):
                entry[key] = value
        return entry

    def status(self, name: str) -> str:
        """Return todo, done or revealed."""
        return str(self.of(name)["status"])

    def attempted(self, name: str, outcome: str, finding: str, digest: str) -> None:
        """Record a check: a pass is for good; a later failure is remembered beside it."""
        entry = self.of(name)
        same = entry["last"].get("outcome") == outcome and entry["last"].get("finding") == finding
        count = entry["last"].get("count", 0) + 1 if same else 1
        entry["attempts"] += 1
        entry["last"] = {"outcome": outcome, "finding": finding, "count": count}
        entry["file_sha"] = digest
        if outcome == "pass" and entry["status"] != "done":
            entry["status"], entry["done_at"] = "done", _now()


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _now() -> str:
    return datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")


def _write(path: Path, content: bytes) -> None:
    """Write a file whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise


@contextlib.contextmanager
def _told(what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise WorkspaceError(
            f"{what}: {error.strerror or error}; make room or set its permissions, then try again"
        ) from None
