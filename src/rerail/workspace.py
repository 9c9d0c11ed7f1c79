"""One learner's workspace: their copies of the scripts, their progress, and backups of what a command replaced."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rerail import __version__
from rerail.course import Exercise

SCHEMA = 1
STATUSES = ("todo", "done", "revealed")
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
            if folder.is_dir() and any(folder.iterdir()) and not (folder / HIDDEN).is_dir():
                raise Occupied(f"{folder} holds other files; name a new folder, as in `rerail start learn`")
        with _told(f"{folder} could not be written"):
            (folder / HIDDEN).mkdir(parents=True, exist_ok=True)
        workspace.complete(exercises)
        return workspace

    def complete(self, exercises: list[Exercise]) -> None:
        """
        Write the files of exercises that are not there, and note what was written; nothing is overwritten.

        Raises:
            WorkspaceError: If one cannot be written.
        """
        path = self.folder / HIDDEN / "pristine.json"
        with _told(f"{self.folder} could not be written"):
            pristine, changed = _mapping(path), False
            for exercise in exercises:
                if written := self._missing_files(exercise):
                    files = pristine.get(exercise.name, {}).get("files", {})
                    pristine[exercise.name] = {"course_version": __version__, "files": files | written}
                    changed = True
            if changed:
                _write(path, json.dumps(pristine, indent=1).encode())

    def _missing_files(self, exercise: Exercise) -> dict[str, str]:
        """Write the files of an exercise that are not there; return their digests by name."""
        written = {}
        for source in _shipped_files(exercise):
            shown = f"{exercise.lesson}/{source.relative_to(exercise.path('exercises').parent).as_posix()}"
            target = self.folder / "exercises" / shown
            if not os.path.lexists(target):  # a link that leads nowhere is the learner's too
                content = source.read_bytes()
                _write(target, content)
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
        except FileNotFoundError:
            return Progress({})
        except OSError as error:
            warning = f"progress in {path} cannot be read: {error.strerror or error}; set its permissions"
            return Progress({}, warning, "unreadable")
        except (ValueError, RecursionError):
            warning = f"progress in {path.name} is broken; `rerail check --all` rebuilds it from the scripts"
            return Progress({}, warning, "broken")
        if not isinstance(state.get("schema", SCHEMA), int):
            state["schema"] = SCHEMA
        if state.get("schema", SCHEMA) > SCHEMA:
            warning = f"progress was written by a newer rerail (schema {state['schema']}); it is read and not changed"
            return Progress(state, warning, "newer")
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
                    kept = path.with_name(f"state.broken-{_now()}.json")
                    path.rename(kept)
                    told = f"progress was broken and is kept as {kept.name}; `rerail check --all` rebuilds it"
                change(progress)
                progress.state.update(schema=SCHEMA, course="rerail", course_version=__version__)
                _write(path, json.dumps(progress.state, indent=1).encode())
        except OSError as error:
            what = f"progress could not be saved: {error.strerror or error}"
            return f"{what}; make room or set its permissions, then try again"
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
                backup = self._backups(exercise) / f"{_now()}.py"
                _write(backup, path.read_bytes())
            _write(path, content)
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
        """Return the entry of an exercise, made if need be, and mended where somebody edited it by hand."""
        entries: dict[str, dict[str, Any]] = self.state.setdefault("exercises", {})
        if not isinstance(entries.get(name), dict):
            entries[name] = {}
        entry = entries[name]
        if entry.get("status") not in STATUSES:
            entry["status"] = "todo"
        for count in ("attempts", "hints"):
            if type(entry.get(count)) is not int or entry[count] < 0:
                entry[count] = 0
        last = entry.get("last")
        if not isinstance(last, dict) or type(last.get("count", 0)) is not int:
            entry["last"] = {}
        return entry

    def status(self, name: str) -> str:
        """Return todo, done or revealed."""
        return str(self.of(name)["status"])

    def attempted(self, name: str, outcome: str, finding: str, submission: str, *, counts: bool = True) -> None:
        """
        Record a check: a pass is for good; a later failure is remembered beside it.

        Args:
            name: Of the exercise.
            outcome: pass or "not yet".
            finding: What stopped it, "" after a pass.
            submission: The digest of what was checked.
            counts: Whether it is an attempt; a look at all exercises is none.
        """
        entry = self.of(name)
        entry.setdefault("first_seen", _now())
        same = entry["last"].get("outcome") == outcome and entry["last"].get("finding") == finding
        count = entry["last"].get("count", 0) + counts if same else 1
        entry["attempts"] += counts
        entry["last"] = {"outcome": outcome, "finding": finding, "count": count}
        entry["file_sha"] = submission
        if outcome == "pass" and entry["status"] != "done":
            entry["status"], entry["done_at"] = "done", _now()


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
