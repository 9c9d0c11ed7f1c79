"""What is known of a learner's way through the course."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

STATUSES = ("todo", "done", "revealed")


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def _is_last(value: Any) -> bool:
    return isinstance(value, dict) and _is_count(value.get("count", 0))


FIELDS: dict[str, tuple[Callable[[Any], bool], Callable[[], Any]]] = {  # of an entry: whether it is sound, its default
    "status": (STATUSES.__contains__, lambda: "todo"),
    "attempts": (_is_count, int),
    "hints": (_is_count, int),
    "last": (_is_last, dict),
}


def _is_entry(value: Any) -> bool:
    """Tell whether an entry of the progress is one that a release of ours wrote."""
    return isinstance(value, dict) and all(is_sound(value[n]) for n, (is_sound, _) in FIELDS.items() if n in value)


def is_state(value: dict[str, Any]) -> bool:
    """Tell whether a mapping is the progress that a release of ours wrote, or a beginning of one."""
    known = not value or not value.keys().isdisjoint(("schema", "current", "exercises"))
    entries = value.get("exercises", {})
    sound = isinstance(entries, dict) and all(map(_is_entry, entries.values()))
    return known and sound and type(value.get("schema", 1)) is int and isinstance(value.get("current", ""), str)


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
        """Return the entry of an exercise, made or mended if need be."""
        entries: dict[str, dict[str, Any]] = self.state.setdefault("exercises", {})
        if not isinstance(entries.get(name), dict):
            entries[name] = {}
        entry = entries[name]
        for field, (is_sound, default) in FIELDS.items():
            if field not in entry or not is_sound(entry[field]):
                entry[field] = default()
        return entry

    def mend(self) -> None:
        """Give what is not sound its default."""
        self.current = self.current
        for name in self.state.get("exercises", {}):
            self.of(name)

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
        entry.setdefault("first_seen", now())
        same = entry["last"].get("outcome") == outcome and entry["last"].get("finding") == finding
        count = entry["last"].get("count", 0) + counts if same else 1
        entry["attempts"] += counts
        entry["last"] = {"outcome": outcome, "finding": finding, "count": count}
        entry["file_sha"] = submission
        if outcome == "pass" and entry["status"] != "done":
            entry["status"], entry["done_at"] = "done", now()


def now() -> str:
    """Return the time as the progress and the backups write it: UTC, in order when sorted as text."""
    return datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
