"""Report: the outcome of all checks of one submission, and its renderings as text and JSON."""

from __future__ import annotations

import json
import math
import platform
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rerail import __version__

EXIT_CODES = {"pass": 0, "not yet": 1, "blocked": 3, "defect": 4}
WIDTH = 88


@dataclass(frozen=True)
class Finding:
    """What one check said. `status` is pass, fail, "not reached" or defect."""

    check: str
    says: str  # the sentence that must hold
    status: str


@dataclass(frozen=True)
class Frame:
    """One line of the learner's file in a traceback."""

    line: int
    function: str
    code: str


@dataclass(frozen=True)
class Report:
    """
    What became of one submission.

    `outcome` is pass, "not yet", blocked or defect. `reason` says why not: the name of the check that failed, crash,
    unusable, timeout, memory, contract, "blocked action", or "" after a pass.
    """

    exercise: str
    number: str
    title: str
    path: str
    outcome: str
    reason: str = ""
    exception: str = ""  # the type, where the reason is crash
    message: str = ""
    show: Mapping[str, Any] = field(default_factory=dict)
    says: str = ""  # of the trap that was recognised
    hint: str = ""
    findings: tuple[Finding, ...] = ()
    frames: tuple[Frame, ...] = ()
    names: Mapping[str, str] = field(default_factory=dict)  # shapes of what the last frame names
    hidden_frames: int = 0
    cases: int = 0
    points: int = 0
    possible: int = 0
    level: str = ""
    seconds: float = 0.0
    output: str = ""
    cut_bytes: int = 0
    seed: int = 0
    submission: str = ""  # sha256 of what was graded
    grader: str = ""  # sha256 of what graded it

    @property
    def exit_code(self) -> int:
        """0 pass, 1 not yet, 3 blocked, 4 defect."""
        return EXIT_CODES[self.outcome]

    @property
    def first(self) -> str:
        """What stopped it, as BASELINE and `caught_by` name it: a check, `unusable`, `crash: RuntimeError`, or ""."""
        return f"{self.reason}: {self.exception}" if self.reason == "crash" else self.reason

    def key(self) -> tuple[Any, ...]:
        """Return what must be equal on every run of the same submission."""
        return self.outcome, self.reason, tuple((finding.check, finding.status) for finding in self.findings)

    def to_json(self) -> dict[str, Any]:
        """Return the report as one JSON object, schema `rerail.result/1`; numbers that are not finite become texts."""
        return {
            "schema": "rerail.result/1",
            "exercise": {"id": self.exercise, "number": self.number, "title": self.title, "path": self.path},
            "outcome": self.outcome,
            "reason": self.reason,
            "exit_code": self.exit_code,
            "points": self.points,
            "possible": self.possible,
            "finding": {"text": self.message, "show": {k: _plain(v) for k, v in self.show.items()}, "trap": self.says,
                        "hint": self.hint},
            "checks": [{"id": f.check, "title": f.says, "status": f.status} for f in self.findings],
            "frames": [{"line": f.line, "function": f.function, "code": f.code} for f in self.frames],
            "cases": self.cases,
            "isolation": self.level,
            "seconds": round(self.seconds, 3),
            "output": {"text": self.output, "cut_bytes": self.cut_bytes},
            "seed": self.seed,
            "submission": self.submission,
            "grader": self.grader,
            "versions": {"rerail": __version__, "python": platform.python_version(), "platform": platform.system()},
        }  # fmt: skip

    def json(self) -> str:
        """Return `to_json` as text."""
        return json.dumps(self.to_json(), ensure_ascii=False)

    def text(self) -> str:
        """Return the report as a learner reads it: status first, then what was found, then what holds and what not."""
        lines = [f"{self.outcome.upper():<8} {self.number} {self.exercise}   {self._headline()}"]
        where = f"{self.path}:{self.frames[-1].line}" if self.frames else self.path
        lines.append(f"{'':<8} {where}")
        if self.message:
            lines += ["", *_wrapped("Found", self.message), *self._code(), *self._table()]
        failed = [finding for finding in self.findings if finding.status == "fail"]
        if failed:
            lines += _wrapped("Needed", failed[0].says)
        if self.says:
            lines += ["", *textwrap.wrap(self.says, WIDTH - 2, initial_indent="  ", subsequent_indent="  ")]
        if self.hint:
            lines += _wrapped("Look", self.hint)
        marks = {"pass": "[pass]", "fail": "[FAIL]", "not reached": "[ .. ]", "defect": "[ BUG]"}
        if self.findings:
            lines += ["", *(f"  {marks[finding.status]} {finding.says}" for finding in self.findings)]
        lines += ["", f"  {self._footer()}"]
        return "\n".join(lines)

    def _headline(self) -> str:
        return {
            "pass": self.title,
            "blocked": "no check could run here",
            "defect": "a bug of the course; this file was not judged",
        }.get(self.outcome) or {
            "crash": "the script stopped with an error",
            "unusable": "what the functions return cannot be graded",
            "timeout": "stopped at its time limit",
            "memory": "the script ran out of memory",
            "contract": "a graded function is missing",
            "blocked action": "the script did what is not allowed here",
        }.get(self.reason, "the symptom may be gone, the cause is still there" if self.says else self.title)

    def _code(self) -> list[str]:
        lines = [
            f"    {'>' if f is self.frames[-1] else ' '} {f.line:>4} | {f.code}" for f in self.frames[-4:] if f.code
        ]
        if self.names:
            lines.append("             " + "   ".join(f"{name}: {shape}" for name, shape in self.names.items()))
        if self.hidden_frames > 0 and self.frames:
            lines.append(f"    {self.hidden_frames} frames inside libraries hidden")
        return ["", *lines] if lines else []

    def _table(self) -> list[str]:
        if not self.show:
            return []
        width = max(map(len, self.show))
        return ["", *(f"      {name:<{width}}  {shown(value)}" for name, value in self.show.items()), ""]

    def _footer(self) -> str:
        several = bool(self.findings) and self.cases > 1
        checks = f"{counted(len(self.findings), 'check')} on {self.cases} cases, " if several else ""
        points = f"{self.points} of {counted(self.possible, 'point')}"
        return f"{checks}{points}, isolation {self.level}, {self.seconds:.1f} s"


def counted(number: int, what: str) -> str:
    """Write a number with its noun: "1 point", "2 points"."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def shown(value: Any) -> str:
    """Format a value of a table: numbers to four digits, arrays by their first entries, texts cut at 60."""
    if hasattr(value, "shape") and getattr(value, "ndim", 0) > 0:
        flat = value.reshape(-1)
        return " ".join(shown(item) for item in flat[:4]) + (f" ... ({value.size} in all)" if value.size > 4 else "")
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, float):
        return f"{value:.4g}"
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= 60 else f"{text[:60]} [{len(text) - 60} characters cut]"


def _wrapped(label: str, text: str) -> list[str]:
    width = WIDTH - 11
    lines = [wrapped for line in text.splitlines() or [""] for wrapped in textwrap.wrap(line, width) or [""]]
    return [f"  {label if i == 0 else '':<8} {line}".rstrip() for i, line in enumerate(lines)]


def _plain(value: Any) -> Any:
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value[:100]]
    return value if isinstance(value, str | int | bool | None) else str(value)
