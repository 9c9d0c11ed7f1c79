"""What a diagnostic answers: a report of findings, each with a stable cause, its evidence, and what would refute it."""

from __future__ import annotations

import functools
import inspect
import json
import math
import textwrap
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, ParamSpec

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Status = Literal["fault", "suspicious", "unknown", "not_applicable", "ok"]
Value = bool | int | float | str | None | tuple["Value", ...]

STATUSES: tuple[Status, ...] = ("fault", "suspicious", "unknown", "not_applicable", "ok")  # the worst first
LAYERS = ("process", "data", "values", "tiny batch", "gradient path", "update", "evaluation")
LINES = 15  # of a printed report: what fits on a screen beside the code
COLUMNS = 100
LIBRARY = ("/site-packages/", "/dist-packages/", "/lib/python3")  # in the path of a file that is not the user's own
PLACES = 4  # named in one line; `verbose()` names all


@dataclass(frozen=True)
class Cause:
    """A fault that the library can name.

    `ident` is stable and starts with the layer: `update.missing_parameters`. `refute` says what would show that the
    verdict is wrong, `next` is the one check to make now, and `wrong_fixes` are repairs that hide the symptom.
    """

    ident: str
    refute: str
    next: str
    wrong_fixes: tuple[str, ...] = ()

    @property
    def layer(self) -> str:
        """Return the layer of the checklist, from the first part of the identifier."""
        return self.ident.partition(".")[0].replace("_", " ")

    def fault(self, says: str, *, where: Iterable[str] = (), **evidence: Any) -> Finding:
        """Return a finding that needs a repair: no legitimate code is known that looks like this."""
        return self._finding("fault", says, where, evidence)

    def suspicious(self, says: str, *, where: Iterable[str] = (), **evidence: Any) -> Finding:
        """Return a finding that is right in some code on purpose: a question to the author."""
        return self._finding("suspicious", says, where, evidence)

    def _finding(self, status: Status, says: str, where: Iterable[str], evidence: Mapping[str, Any]) -> Finding:
        numbers = _frozen(evidence)
        ident, advice = self.ident, (self.refute, self.next, self.wrong_fixes)
        return Finding(status, self.layer, ident, says, tuple(where), numbers, *advice)


@dataclass(frozen=True)
class Finding:
    """One thing that a check found out.

    Attributes:
        status: "fault", "suspicious", "unknown" (it could not be measured) or "not_applicable".
        layer: The layer of the checklist.
        cause: A stable identifier, `layer.name`.
        says: The sentence for a person, with the numbers in it.
        where: Qualified names of parameters or modules, or `file:line`.
        evidence: The numbers, by name.
        refute: What would show that this is wrong.
        next: One check to make now.
        wrong_fixes: Repairs that hide the symptom and leave the cause.
    """

    status: Status
    layer: str
    cause: str
    says: str
    where: tuple[str, ...] = ()
    evidence: Mapping[str, Value] = field(default_factory=dict)
    refute: str = ""
    next: str = ""
    wrong_fixes: tuple[str, ...] = ()


class FaultFound(AssertionError):
    """What `raise_if_fault` raises: the printed report."""


class CannotAnswer(Exception):
    """A check cannot be made with what it was given; its sentence becomes a finding "unknown"."""


@dataclass(frozen=True)
class Report:
    """The answer of one check.

    It is true (`if report:`) only where the status is "ok". It prints in at most 15 lines.

    Attributes:
        check: The name of the function that answered.
        findings: What it found, the worst first; empty where all is well.
        facts: Numbers measured on the way, also where all is well.
        columns: The names of the columns of `rows`.
        rows: The full table, for `verbose()` and `plot()`: the first cell is a name.
        plotted: The column that `plot()` draws.
        summary: A line under the first, where the status alone says too little.
    """

    check: str
    findings: tuple[Finding, ...] = ()
    facts: Mapping[str, Value] = field(default_factory=dict)
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[Value, ...], ...] = ()
    plotted: str = ""
    summary: str = ""

    def __post_init__(self) -> None:
        """Order the findings, and make what they hold immutable."""
        ordered = sorted(self.findings, key=lambda finding: STATUSES.index(finding.status))
        object.__setattr__(self, "findings", tuple(ordered))
        object.__setattr__(self, "facts", _frozen(self.facts))
        object.__setattr__(self, "rows", tuple(tuple(_value(cell) for cell in row) for row in self.rows))

    @property
    def status(self) -> Status:
        """Return the worst status among the findings, "ok" if there is none."""
        return self.findings[0].status if self.findings else "ok"

    @property
    def causes(self) -> tuple[str, ...]:
        """Return the causes of the faults and of what is suspicious, in the order of the findings."""
        return tuple(finding.cause for finding in self.findings if finding.status in ("fault", "suspicious"))

    def __bool__(self) -> bool:
        """Return whether all is well: "unknown" is not."""
        return self.status == "ok"

    def raise_if_fault(self) -> Report:
        """Return the report, or raise.

        Raises:
            FaultFound: If the status is "fault"; its text is the printed report.
        """
        if self.status == "fault":
            raise FaultFound(str(self))
        return self

    def to_dict(self) -> dict[str, Any]:
        """Return the report as built-in types that JSON can hold: a number that is not finite becomes its name."""
        return {
            "check": self.check,
            "status": self.status,
            "findings": [
                {
                    "status": finding.status,
                    "layer": finding.layer,
                    "cause": finding.cause,
                    "says": finding.says,
                    "where": list(finding.where),
                    "evidence": {name: _plain(value) for name, value in finding.evidence.items()},
                    "refute": finding.refute,
                    "next": finding.next,
                    "wrong_fixes": list(finding.wrong_fixes),
                }
                for finding in self.findings
            ],
            "facts": {name: _plain(value) for name, value in self.facts.items()},
            "columns": list(self.columns),
            "rows": [[_plain(cell) for cell in row] for row in self.rows],
        }

    def to_json(self, *, indent: int | None = None) -> str:
        """Return the report as one JSON object."""
        return json.dumps(self.to_dict(), indent=indent, ensure_ascii=False, allow_nan=False)

    def __str__(self) -> str:
        """Return at most 15 lines: the first findings, or the facts where all is well."""
        lines = [f"{self.check}: {self.status}", *_wrapped(self.summary)]
        if not self.findings:
            lines += _wrapped(", ".join(f"{name} {_shown(value)}" for name, value in self.facts.items()))
            return "\n".join(_cut(lines))
        for number, finding in enumerate(self.findings):
            block = _described(finding, brief=number > 0)
            if len(lines) + len(block) > LINES - 1:
                lines.append(f"  ... and {len(self.findings) - number} more; `.verbose()` shows all")
                break
            lines += block
        return "\n".join(_cut(lines))

    def verbose(self) -> str:
        """Return everything: all findings, all facts and the full table."""
        lines = [f"{self.check}: {self.status}", *_wrapped(self.summary)]
        for finding in self.findings:
            lines += _described(finding, brief=False, every=True)
        lines += [f"  {name}: {_shown(value)}" for name, value in self.facts.items()]
        if self.rows:
            cells = [self.columns, *(tuple(_shown(cell) for cell in row) for row in self.rows)]
            widths = [max(len(row[column]) for row in cells) for column in range(len(self.columns))]
            lines += ["  " + "  ".join(map(str.ljust, row, widths)).rstrip() for row in cells]
        return "\n".join(lines)

    def plot(self, axes: Axes | None = None) -> Axes:
        """Draw the table's column `plotted` as one bar a row, and return the axes.

        Args:
            axes: Where to draw; by default a new figure.

        Raises:
            ValueError: If the check has no table to draw.
        """
        if not self.plotted or not self.rows:
            raise ValueError(f"{self.check} has no table to plot; print it, or read `.facts`")
        from matplotlib.figure import Figure

        column = self.columns.index(self.plotted)
        cells = [(str(row[0]), row[column]) for row in self.rows]
        drawn = [(name, float(cell)) for name, cell in cells if isinstance(cell, (int, float))]
        ax = axes if axes is not None else Figure(figsize=(7, 0.6 + 0.28 * len(drawn)), layout="constrained").subplots()
        heights = [value if math.isfinite(value) else math.nan for _, value in drawn]
        ax.barh(range(len(drawn)), heights)
        labels = [name if math.isfinite(value) else f"{name} ({value})" for name, value in drawn]
        ax.set_yticks(range(len(drawn)), labels)
        ax.invert_yaxis()
        positive = [height for height in heights if height > 0]
        if positive and max(positive) > 100 * min(positive):
            ax.set_xscale("log")
        ax.set_xlabel(self.plotted)
        ax.set_title(f"{self.check}: {self.status}")
        return ax


Arguments = ParamSpec("Arguments")


def answers(function: Callable[Arguments, Report]) -> Callable[Arguments, Report]:
    """Decorate a check so that it always answers: what it cannot measure becomes a report "unknown", never a stack.

    An exception of the user's own code, called by the check, is told with its type, its message and its place.
    """
    signature = inspect.signature(function)

    @functools.wraps(function)
    def answer(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Report:
        signature.bind(*args, **kwargs)  # an argument that does not exist is an error of the caller, and raises
        try:
            return function(*args, **kwargs)
        except CannotAnswer as reason:
            return unknown(function.__name__, str(reason))
        except Exception as error:  # of code that we were given: a diagnostic must not be the second failure of a run
            return unknown(function.__name__, *told(error))

    return answer


def unknown(check: str, says: str, *where: str) -> Report:
    """Return a report that says why there is no answer."""
    return Report(check, (Finding("unknown", "process", "process.not_measured", says, tuple(where)),))


def not_applicable(check: str, says: str) -> Report:
    """Return a report that says why the question makes no sense here."""
    return Report(check, (Finding("not_applicable", "process", "process.not_applicable", says),))


def told(error: BaseException) -> tuple[str, str]:
    """Return one sentence about an exception of somebody's code, and the `file:line` it came from."""
    place, frame = "", error.__traceback__
    while frame is not None:
        path = frame.tb_frame.f_code.co_filename
        if "/rerail/diagnostics/" not in path.replace("\\", "/") and not is_library(path):
            place = f"{path}:{frame.tb_lineno}"
        frame = frame.tb_next
    first = (str(error).strip().splitlines() or [""])[0]
    return f"the code that was called raised {type(error).__name__}: {first}", place


def is_library(path: str) -> bool:
    """Return whether a source file belongs to an installed library and not to the user's own code."""
    slashes = path.replace("\\", "/")
    return slashes.startswith("<") or any(part in slashes for part in LIBRARY)


def renamed(report: Report, check: str) -> Report:
    """Return the same report under another name."""
    return replace(report, check=check)


def _frozen(values: Mapping[str, Any]) -> Mapping[str, Value]:
    return MappingProxyType({name: _value(value) for name, value in values.items()})


def _value(value: Any) -> Value:
    """Return a number, text or tuple of them: what a report may hold for ever."""
    if isinstance(value, (bool, str, int, float)) or value is None:
        return value
    if isinstance(value, (list, tuple, set, frozenset)):
        return tuple(_value(each) for each in value)
    if hasattr(value, "item") and getattr(value, "size", 1) not in (0,):
        try:
            item = value.item()
        except Exception:  # more than one element
            return str(value)
        return item if isinstance(item, (bool, int, float)) else str(item)
    return str(value)


def _plain(value: Value) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return [_plain(each) for each in value] if isinstance(value, tuple) else value


def _shown(value: Value) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, tuple):
        return "[" + ", ".join(map(_shown, value)) + "]"
    return str(value)


def _described(finding: Finding, *, brief: bool, every: bool = False) -> list[str]:
    places = finding.where if every else finding.where[:PLACES]
    rest = len(finding.where) - len(places)
    lines = _wrapped(f"{finding.status.upper().replace('_', ' ')} {finding.cause}: {finding.says}")
    if places:
        lines += _wrapped("at " + ", ".join(places) + (f" and {rest} more" if rest else ""), indent=4)
    if brief:
        return lines
    lines += _wrapped(f"next: {finding.next}", indent=4) if finding.next else []
    lines += _wrapped(f"wrong if: {finding.refute}", indent=4) if finding.refute else []
    lines += _wrapped("no repair: " + "; ".join(finding.wrong_fixes), indent=4) if finding.wrong_fixes else []
    return lines


def _wrapped(text: str, indent: int = 2) -> list[str]:
    pad = " " * indent
    return textwrap.wrap(text, COLUMNS, initial_indent=pad, subsequent_indent=pad + "  ", break_long_words=False)


def _cut(lines: list[str]) -> list[str]:
    return lines if len(lines) <= LINES else [*lines[: LINES - 1], "  ... `.verbose()` shows all"]
