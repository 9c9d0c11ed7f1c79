"""A leak of test rows into what a model trains on, found by poisoning them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from rerail.diagnostics.finding import CannotAnswer, Cause, Report, answers
from rerail.diagnostics.rows import arrays_in, as_array, content, copied, is_array

LEAK = Cause(
    "data.fit_reads_test_rows",
    refute="the test rows are allowed to shape the training input (transductive learning), and it is said so",
    next="split first, fit on training rows only, reuse the fitted object",
    wrong_fixes=("a second fit on the test rows", "more shuffling", "keeping it because the score does not move"),
)
REFIT = Cause(
    "data.test_rows_fit_themselves",
    refute="test rows always come together, in this very set",
    next="transform each test row with what was fitted on training rows",
    wrong_fixes=("a second scaler",),
)


@answers
def fit_leak_test(fit_transform: Callable[[Any, Any], Any], train: Any, test: Any) -> Report:
    """Poison the test rows, and see whether the training input moves: what is fitted on training rows cannot.

    On real data a leak of this kind often moves no score; that the training input stays the same to the bit is proof.

    Args:
        fit_transform: Takes `(train, test)` and returns the training input as the model will see it, or the pair of
            training and test input; with a pair, one test row is poisoned alone to see whether the others move.
        train: The training rows, an array or tensor, shape (rows, ...), or nested lists and tuples of them.
        test: The test rows, of the same form.

    Returns:
        A report; ok where the training input is bit-identical with poisoned test rows.

    Example:
        ```python
        def prepare(train, test):
            scaler = StandardScaler().fit(train)
            return scaler.transform(train), scaler.transform(test)

        rerail.fit_leak_test(prepare, x_train, x_test).raise_if_fault()
        ```
    """
    if not any(True for _ in arrays_in(test)):
        raise CannotAnswer("the test rows hold no array or tensor that could be poisoned")
    clean, again = fit_transform(copied(train), copied(test)), fit_transform(copied(train), copied(test))
    if content(clean) != content(again):
        raise CannotAnswer("two calls on the same rows differ: fix the seed inside `fit_transform`")
    first, second = _pair(clean, train, test)
    poisoned, _ = _pair(fit_transform(copied(train), _poisoned(test)), train, test)
    moved = _difference(first, poisoned)
    facts: dict[str, Any] = {"training_input_moved": moved, "test_input_checked": second is not None}
    findings = []
    if moved != 0:
        says = "other values in the test rows move the training input" + (f" by up to {moved:.4g}" if moved > 0 else "")
        findings.append(LEAK.fault(says, moved=moved))
    if second is not None:
        _, alone = _pair(fit_transform(copied(train), _poisoned(test, last_only=True)), train, test)
        others = _difference(_all_but_last(second), _all_but_last(alone))
        facts["test_rows_moved_by_another"] = others
        if others != 0 and not findings:
            says = "another value in one test row moves the input of the other test rows"
            findings.append(REFIT.fault(says, moved=others))
    return Report("fit_leak_test", tuple(findings), facts)


def _poisoned(thing: Any, *, last_only: bool = False) -> Any:
    """Return other rows of the same form: far away where they are numbers, exchanged where they are not."""
    if isinstance(thing, (list, tuple)) and any(map(is_array, thing)):
        return type(thing)(_poisoned(each, last_only=last_only) for each in thing)
    changed = copied(thing)
    rows = slice(-1, None) if last_only else slice(None)
    kind = as_array(thing).dtype.kind if is_array(thing) else "O"
    if kind == "f":
        changed[rows] = changed[rows] * 1000 + 1000
    elif kind == "b":
        changed[rows] = ~changed[rows]
    elif kind in "iu":
        held = as_array(thing)
        changed[rows] = changed[rows] * 0 + int(held.max() if not last_only else held.min())
    elif hasattr(changed, "columns"):  # a data frame
        for column in changed.select_dtypes("number").columns:
            changed[column] = changed[column].astype(float)
            changed.iloc[rows, changed.columns.get_loc(column)] = changed[column].iloc[rows] * 1000 + 1000
    return changed


def _pair(result: Any, train: Any, test: Any) -> tuple[Any, Any]:
    """Return the training input and the test input, None where it was not given."""
    if isinstance(result, (tuple, list)) and len(result) == 2:
        return result[0], result[1]
    return result, None


def _difference(one: Any, two: Any) -> float:
    """Return 0 where two results are bit-identical, else the largest difference, -1 where it is no number."""
    if content(one) == content(two):
        return 0.0
    largest = 0.0
    for left, right in zip(arrays_in(one), arrays_in(two), strict=False):
        if left.shape != right.shape or left.dtype.kind not in "fiu":
            return -1.0
        difference = np.abs(left.astype(float) - right.astype(float))
        largest = max(largest, float(np.nanmax(difference))) if difference.size else largest
    return largest or -1.0


def _all_but_last(thing: Any) -> Any:
    return [held[:-1] for held in arrays_in(thing) if held.ndim]
