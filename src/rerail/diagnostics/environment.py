"""The environment of a run: what it ran, with what, on what; and whether a failure is the environment's."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from rerail.diagnostics import machine, masking
from rerail.diagnostics.digests import states_of
from rerail.diagnostics.finding import (
    CannotAnswer,
    Cause,
    Finding,
    Report,
    answers,
)

TOLD_ONLY = ("process.command", "process.revision")  # no finding: two runs that are compared differ there on purpose
LINE = 200  # characters of a line that is printed

DIFFERS = Cause(
    "process.environment_differs",
    refute="the difference does not reach the computation",
    next="make the two equal one difference at a time, the import paths first",
    wrong_fixes=("comparing losses across the difference",),
)
STATE_DIFFERS = Cause(
    "process.state_differs",
    refute="the two are meant to be at different steps",
    next="rerail.resume_check names what a checkpoint does not bring back",
    wrong_fixes=("the same seed again",),
)
SHADOWED = Cause(
    "process.library_shadowed",
    refute="the file in the working directory is meant to replace the library",
    next="rename the file, and delete its __pycache__",
)


@dataclass(frozen=True)
class EnvRecord:
    """The environment of one run, as names and plain values; secrets in the command line are masked.

    Attributes:
        values: Groups of names and values: "process", "packages", "paths", "device", "execution", "determinism", and
            "states", digests of what a resumed run must find again.
    """

    values: Mapping[str, Mapping[str, Any]]

    @property
    def digest(self) -> str:
        """Return a hexadecimal digest, equal for records whose values are all equal."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()[:16]

    def to_dict(self) -> dict[str, Any]:
        """Return the values as built-in types, with the command at the top."""
        return {
            "command": self.values["process"]["command"],
            **{name: dict(group) for name, group in self.values.items()},
        }

    def to_json(self, *, indent: int | None = None) -> str:
        """Return the values as one JSON object."""
        return json.dumps(self.to_dict(), sort_keys=True, default=str, indent=indent)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> EnvRecord:
        """Return a record of what `to_dict` gave, also after a journey through JSON.

        Raises:
            TypeError: If it is no mapping.
        """
        if not isinstance(values, Mapping):
            raise TypeError(f"a record is made of a mapping, as `to_dict` gives it, got {type(values).__name__}")
        groups = {name: MappingProxyType(dict(group)) for name, group in values.items() if isinstance(group, Mapping)}
        return cls(MappingProxyType(groups))

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy and pickle by value: a view of a mapping can do neither."""
        return EnvRecord.from_dict, (self.to_dict(),)

    def __str__(self) -> str:
        """Return at most 15 lines, one a group."""
        lines = []
        for name, group in self.values.items():
            shown = ", ".join(f"{key} {value}" for key, value in group.items() if value not in (None, False, ""))
            lines.append(" ".join(f"{name}: {shown or 'nothing special'}".split())[:LINE])
        return "\n".join(lines[:15])


def env_record(
    *,
    extra: Mapping[str, Any] | None = None,
    model: Any = None,
    optimizer: Any = None,
    scheduler: Any = None,
    scaler: Any = None,
    loader: Any = None,
) -> EnvRecord:
    """Record what a run depends on, and change nothing of it: no number is drawn, no batch is read.

    Args:
        extra: More names and values that matter, such as the precision of a trainer.
        model: Its state goes in as a digest; so do those of the others.
        optimizer: An optimizer.
        scheduler: A scheduler of the rate.
        scaler: A gradient scaler.
        loader: A loader: the state of its generator and of its sampler, the order of the data.

    Returns:
        The record; `str()` shows it in at most 15 lines, `env_diff` compares two.

    Example:
        ```python
        record = rerail.env_record(model=model, optimizer=optimizer, loader=loader)
        Path("run.json").write_text(record.to_json(indent=2))
        ```
    """
    torch = sys.modules.get("torch")
    groups: dict[str, dict[str, Any]] = {
        "process": {
            "command": masking.command(),
            "revision": machine.revision(),
            "python": platform.python_version(),
            "platform": machine.kind(),
        },
        "packages": {name: version for name in machine.PACKAGES if (version := machine.version(name))},
        "paths": {name: path for name in machine.PACKAGES if (path := machine.path(name))} | dict(machine.shadowing()),
        "device": machine.device(torch),
        "execution": machine.execution(torch),
        "determinism": {name: os.environ[name] for name in machine.VARIABLES if name in os.environ}
        | machine.determinism(torch),
        "states": dict(
            states_of(torch, model=model, optimizer=optimizer, scheduler=scheduler, scaler=scaler, loader=loader)
        ),
    }
    if extra:
        groups["extra"] = {str(key): masking.hidden(str(key), value) for key, value in extra.items()}
    return EnvRecord.from_dict(groups)


@answers
def env_diff(one: EnvRecord | Mapping[str, Any], other: EnvRecord | Mapping[str, Any]) -> Report:
    """Compare two records; the command and the revision are facts, everything else that differs is a finding.

    Args:
        one: A record, or what its `to_dict` gave.
        other: Another.

    Returns:
        A report, ok where nothing differs that a computation depends on.
    """
    pair = [_record(each) for each in (one, other)]
    rows = []
    for group in dict.fromkeys((*pair[0].values, *pair[1].values)):
        sides = [dict(each.values.get(group, {})) for each in pair]
        rows += [
            (f"{group}.{name}", sides[0].get(name), sides[1].get(name))
            for name in dict.fromkeys((*sides[0], *sides[1]))
            if sides[0].get(name) != sides[1].get(name) and not _unloaded(group, name, sides)
        ]
    findings = []
    told = [row for row in rows if row[0] not in TOLD_ONLY]
    states = [row[0] for row in told if row[0].startswith("states.")]
    others = [row for row in told if not row[0].startswith("states.")]
    if others:
        first = others[0]
        many = "1 difference" if len(others) == 1 else f"{len(others)} differences"
        says = f"{many}; {first[0]} is {first[1]} in one and {first[2]} in the other"
        findings.append(DIFFERS.suspicious(says, where=[row[0] for row in others], differences=len(others)))
    if states:
        says = f"{len(states)} of the states differ, or stand in one record only: {', '.join(states)}"
        findings.append(STATE_DIFFERS.suspicious(says, where=states, differences=len(states)))
    for shadow in _shadows(pair):
        findings.append(shadow)
    shown = tuple((name, str(left), str(right)) for name, left, right in rows)
    facts = {"differences": len(rows)} | {name: f"{left} | {right}" for name, left, right in rows if name in TOLD_ONLY}
    return Report("env_diff", tuple(findings), facts, ("name", "one", "other"), shown)


def _unloaded(group: str, name: str, sides: list[dict[str, Any]]) -> bool:
    """Return whether a generator is missing in one record: its library was not imported yet, and nothing was drawn."""
    return group == "states" and name.endswith("_random") and None in (sides[0].get(name), sides[1].get(name))


def _record(given: Any) -> EnvRecord:
    record = given if isinstance(given, EnvRecord) else None
    if isinstance(given, Mapping):
        record = EnvRecord.from_dict(given)
    if record is None or not any(record.values.values()):
        raise CannotAnswer(f"a record must be what `env_record` or its `to_dict` gave, got {_brief(given)}")
    return record


def _brief(given: Any) -> str:
    return f"a {type(given).__name__} without a group of values" if isinstance(given, Mapping) else type(given).__name__


def _shadows(pair: list[EnvRecord]) -> Iterator[Finding]:
    paths = {
        name: path
        for record in pair
        for name, path in record.values.get("paths", {}).items()
        if isinstance(path, str) and path.startswith("./")
    }
    if paths:
        name, path = next(iter(paths.items()))
        says = f"{name} is imported from the working directory, {path}, and not from the installed library"
        yield SHADOWED.suspicious(says, where=paths.values(), count=len(paths))
