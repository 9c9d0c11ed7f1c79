"""What graders say with: a check that fails, a trap, an edit, and comparisons that nan fails."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

# Float32 training on one thread is bitwise equal across processes; other thread counts differ by 1e-7, other orders
# of summation by 1e-6 after tens of steps. These leave two orders of room on both sides.
RTOL, ATOL = 1e-4, 1e-6


class Failed(Exception):
    """
    The learner's work fails a check.

    Args:
        message: What was found, in one sentence with its numbers.
        show: Pairs that stand below it as a small table: what this code gives, what is exact.
        hint: Where to look; never the line to change.
    """

    def __init__(self, message: str, *, show: Mapping[str, Any] | None = None, hint: str = "") -> None:
        super().__init__(message)
        self.message, self.show, self.hint = message, dict(show or {}), hint


@dataclass(frozen=True)
class Rewrite:
    """An edit that puts a new source in the place of a whole function or class."""

    name: str
    source: str


Edit = tuple[str, str] | Rewrite


@dataclass(frozen=True)
class Trap:
    """
    A tempting wrong fix, as edits of the shipped exercise.

    Args:
        edits: What the learner would change.
        caught_by: The first check that fails on it; or `unusable`, `timeout`, or `crash: TypeOfException`.
        says: What is shown to a learner who did just this.
    """

    edits: Sequence[Edit]
    caught_by: str
    says: str = ""


def after(anchor: str, text: str) -> Edit:
    """Insert lines after an anchor that ends a line; `text` is dedented to nothing and needs no newline at its end."""
    return (anchor, f"{anchor.rstrip(chr(10))}\n{text.rstrip(chr(10))}" + ("\n" if anchor.endswith("\n") else ""))


def function(name: str, source: str) -> Rewrite:
    """Rewrite the top-level function or class of that name; blank lines around `source` do not matter."""
    return Rewrite(name, source.strip("\n"))


def edited(source: str, edits: Sequence[Edit]) -> str:
    """
    Apply edits, each matched against the shipped text.

    Raises:
        LookupError: If an old text does not occur exactly once, or two edits overlap.
    """
    spans = sorted((*_span(source, edit), edit.source if isinstance(edit, Rewrite) else edit[1]) for edit in edits)
    result, position = [], 0
    for start, end, new in spans:
        if start < position:
            raise LookupError(f"two edits overlap at {source[start:end][:60]!r}; join them")
        result += [source[position:start], new]
        position = end
    return "".join([*result, source[position:]])


def _span(source: str, edit: Edit) -> tuple[int, int]:
    if isinstance(edit, Rewrite):
        lines = source.splitlines(keepends=True)
        for node in ast.parse(source).body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == edit.name:
                first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
                start = sum(map(len, lines[: first - 1]))
                return start, start + len("".join(lines[first - 1 : node.end_lineno]).rstrip("\n"))
        raise LookupError(f"there is no function or class {edit.name!r} to rewrite")
    if source.count(edit[0]) != 1:
        raise LookupError(f"{edit[0]!r} occurs {source.count(edit[0])} times, not once")
    return source.index(edit[0]), source.index(edit[0]) + len(edit[0])


def close(got: Any, expected: Any, *, rtol: float = RTOL, atol: float = ATOL) -> bool:
    """Tell whether two arrays have one shape and values within tolerance; nan is close to nothing."""
    got, expected = np.asarray(got, float), np.asarray(expected, float)
    if got.shape != expected.shape:
        return False
    with np.errstate(invalid="ignore"):  # inf - inf is nan, which is close to nothing
        return bool(np.all(np.abs(got - expected) <= atol + rtol * np.abs(expected)))


def first_difference(got: Any, expected: Any, *, rtol: float = RTOL, atol: float = ATOL) -> int | None:
    """Return the first index on axis 0 where two arrays are not `close`, or None; a missing end is a difference."""
    for index, (a, b) in enumerate(zip(got, expected, strict=False)):
        if not close(a, b, rtol=rtol, atol=atol):
            return index
    return None if len(got) == len(expected) else min(len(got), len(expected))


def largest_difference(got: Any, expected: Any) -> float:
    """Return max |got - expected| for a message; nan where either is nan."""
    return float(np.max(np.abs(np.asarray(got, float) - np.asarray(expected, float)), initial=0.0))
