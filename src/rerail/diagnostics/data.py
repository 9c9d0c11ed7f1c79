"""The data: rows, groups, times and labels on both sides of a split."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from rerail.diagnostics.finding import CannotAnswer, Cause, Finding, Report, answers
from rerail.diagnostics.rows import Array, as_array, content, is_array, is_dataset, rows_of

DISCRETE = 0.5  # of the overlap: where so many rows come twice inside one split too, equal rows are what such data have
FAR = 6.0  # standard errors between two prevalences: by chance once in 10**9
NEAR_ROWS = 2000  # rows a side that are compared each with each

IN_BOTH = Cause(
    "data.rows_in_both_splits",
    refute="rows are few discrete values that different cases share",
    next="remove duplicates by content before the split, and split at the source (image, patient, document)",
    wrong_fixes=("another seed", "other file names", "removing duplicates inside each split"),
)
GROUPS = Cause(
    "data.groups_in_both_splits",
    refute="the model will be used on groups that it was trained on",
    next="split by group, and assert that the sets of groups are disjoint",
    wrong_fixes=("more augmentation", "stratifying by label", "removing exact duplicates"),
)
TIME = Cause(
    "data.time_overlaps",
    refute="the model will be used on times that it was trained on",
    next="split at one time: all of training before all of validation",
    wrong_fixes=("shuffling", "a random split with another seed"),
)
NEAR = Cause(
    "data.near_rows_in_both_splits",
    refute="different cases are that similar in such data",
    next="look at the ten nearest pairs side by side",
    wrong_fixes=("removing exact duplicates only",),
)
LABELS = Cause(
    "data.labels_differ_between_splits",
    refute="the task is to recognise what was never seen, or to find the only class there is",
    next="print the count of every label in both splits: sorted rows must be shuffled before they are cut",
    wrong_fixes=("shuffle=True in the fit", "a smaller rate", "more epochs"),
)
PREVALENCE = Cause(
    "data.prevalence_differs",
    refute="the splits are meant to have other shares of labels (oversampling in training)",
    next="stratify by label, or say why the shares differ",
)
MISSING = Cause(
    "data.missing_values_differ",
    refute="the splits come from sources that record differently, on purpose",
    next="fit the imputation on training rows only, and compare the share of missing values by column",
)
RANDOM_READS = Cause(
    "data.evaluation_reads_are_random",
    refute="test-time augmentation on purpose",
    next="two dataset objects, with the transform of training and of evaluation, and the same indices",
    wrong_fixes=("setting the transform of the shared dataset", "the mean of several validation passes"),
)
FIXED_READS = Cause(
    "data.training_reads_are_fixed",
    refute="training is not meant to be augmented",
    next="read one training row twice: with augmentation the two differ",
    wrong_fixes=("setting the transform of the shared dataset",),
)


@answers
def split_audit(
    train: Any,
    validation: Any,
    test: Any = None,
    *,
    labels: Sequence[Any] | None = None,
    group: Sequence[Any] | None = None,
    time: Sequence[Any] | None = None,
    near: float | None = None,
    augmented: bool | None = None,
    max_rows: int | None = None,
) -> Report:
    """Compare the splits of a data set: equal rows, groups, times, labels, missing values, and repeated reads.

    Args:
        train: The training rows: an array or tensor, shape (rows, ...); a tuple `(inputs, labels)` of them; a list of
            rows; or a dataset with `len` and `[index]`.
        validation: The same, of the validation rows.
        test: The same, of the test rows, or None.
        labels: The labels of each split, `(train, validation[, test])`; taken from a tuple or a pair if not given.
        group: The groups of each split that must not be shared, such as patients: `(train, validation[, test])`.
        time: The times of each split, where all of training must come first.
        near: Compare rows within this distance too, in units of each column's standard deviation over training rows,
            averaged over columns; up to 2000 rows a side.
        augmented: True if training reads are meant to be random; False if not; None if that is not known.
        max_rows: Look only at that many rows a split.

    Returns:
        A report; a fault is a shared row, group or time where it must not be.

    Example:
        ```python
        patients = (patient_train, patient_val)
        print(rerail.split_audit(x_train, x_val, labels=(y_train, y_val), group=patients))
        ```
    """
    sides = {"train": train, "validation": validation} | ({} if test is None else {"test": test})
    facts: dict[str, Any] = {}
    findings: list[Finding] = []
    rows = {name: list(rows_of(side, max_rows)) for name, side in sides.items()}
    for name, held in rows.items():
        if not held:
            raise CannotAnswer(f"the {name} split has no rows")
        facts[f"{name}_rows"] = len(held)
    names = list(sides)
    given: dict[str, Any] = {name: _labels(side, max_rows) for name, side in sides.items()}
    given |= _by_split(labels, names, "labels") or {}
    for later in names[1:]:
        findings += _shared_rows(rows["train"], rows[later], later, facts)
    if len(names) > 2:
        findings += _shared_rows(rows["validation"], rows["test"], "test", facts, of="validation")
    findings += _declared(_by_split(group, names, "group"), _by_split(time, names, "time"), facts)
    findings += _label_sets({name: held for name, held in given.items() if held is not None}, facts)
    findings += _missing({name: _numbers(side, max_rows) for name, side in sides.items()}, facts)
    if near is not None:
        findings += _near(_numbers(train, max_rows), _numbers(validation, max_rows), near, facts)
    findings += _reads(sides, augmented, facts)
    return Report("split_audit", tuple(findings), facts)


def _shared_rows(
    one: list[bytes], two: list[bytes], name: str, facts: dict[str, Any], of: str = "train"
) -> list[Finding]:
    shared = set(one) & set(two)
    count = sum(row in shared for row in two)
    share = count / len(two)
    inside = 1 - len(set(two)) / len(two)
    facts[f"{name}_rows_in_{of}"] = share
    if not count:
        return []
    says = f"{count} of {len(two)} {name} rows are also {of} rows ({share:.1%})"
    if inside >= DISCRETE * share:
        says += f"; {inside:.1%} come more than once inside {name} too"
        return [IN_BOTH.suspicious(says, shared=count, share=share, inside=inside)]
    return [IN_BOTH.fault(says, shared=count, share=share, inside=inside)]


def _declared(
    groups: dict[str, list[Any]] | None, times: dict[str, list[Any]] | None, facts: dict[str, Any]
) -> list[Finding]:
    findings = []
    if groups:
        train = set(groups["train"])
        for name in list(groups)[1:]:
            both = train & set(groups[name])
            facts[f"{name}_groups_in_train"] = len(both)
            if both:
                says = f"{len(both)} of {len(set(groups[name]))} groups of {name} are also in train"
                findings.append(GROUPS.fault(says, where=sorted(map(str, both))[:20], shared=len(both)))
    if times:
        last = max(times["train"])
        for name in list(times)[1:]:
            first = min(times[name])
            late = sum(moment > first for moment in times["train"])
            facts[f"train_rows_after_{name}_begins"] = late
            if last > first:
                says = f"{late} training rows are later than the first {name} row"
                findings.append(TIME.fault(says, late=late))
    return findings


def _label_sets(labels: dict[str, list[Any]], facts: dict[str, Any]) -> list[Finding]:
    if "train" not in labels or len(labels) < 2:
        return []
    counts = {name: Counter(held) for name, held in labels.items()}
    if len(counts["train"]) > max(20, len(labels["train"]) // 5):
        return []  # numbers, not classes
    findings = []
    for name in list(counts)[1:]:
        unseen, lacking = set(counts[name]) - set(counts["train"]), set(counts["train"]) - set(counts[name])
        facts[f"{name}_labels"] = tuple(sorted(map(str, counts[name])))
        if unseen or (len(counts[name]) == 1 and len(counts["train"]) > 1):
            says = f"{name} has the labels {sorted(map(str, counts[name]))}, train {sorted(map(str, counts['train']))}"
            findings.append(LABELS.suspicious(says, unseen=len(unseen), lacking=len(lacking)))
            continue
        for label in counts["train"]:
            one, two = (counts[each][label] / len(labels[each]) for each in ("train", name))
            error = math.sqrt(max(one * (1 - one), 1e-12) * (1 / len(labels["train"]) + 1 / len(labels[name])))
            if abs(one - two) > FAR * error:
                says = f"label {label} is {one:.1%} of train and {two:.1%} of {name}"
                findings.append(PREVALENCE.suspicious(says, train=one, other=two))
                break
    return findings


def _missing(numbers: dict[str, Array | None], facts: dict[str, Any]) -> list[Finding]:
    shares = {
        name: float(np.mean(~np.isfinite(held))) for name, held in numbers.items() if held is not None and held.size
    }
    if not any(shares.values()):
        return []
    facts |= {f"{name}_missing": share for name, share in shares.items()}
    if min(shares.values()) * 3 < max(shares.values()):
        says = "missing or infinite values: " + ", ".join(f"{name} {share:.2%}" for name, share in shares.items())
        return [MISSING.suspicious(says, **shares)]  # type: ignore[arg-type]
    return []


def _near(one: Array | None, two: Array | None, distance: float, facts: dict[str, Any]) -> list[Finding]:
    if one is None or two is None or one.shape[1:] != two.shape[1:]:
        raise CannotAnswer("near rows can be looked for only where rows are numbers of one shape")
    one, two = (side[:NEAR_ROWS].reshape(min(len(side), NEAR_ROWS), -1).astype(float) for side in (one, two))
    size = one.std(0)
    size[size == 0] = 1.0
    one, two = one / size, two / size
    nearest = [float(np.sqrt(np.mean((one - row) ** 2, axis=1)).min()) for row in two]
    count = sum(each <= distance for each in nearest)
    facts["nearest_pair"] = min(nearest)
    if not count:
        return []
    says = f"{count} of {len(two)} validation rows lie within {distance:g} standard deviations of a training row"
    return [NEAR.suspicious(says, near=count, nearest=min(nearest))]


def _reads(sides: dict[str, Any], augmented: bool | None, facts: dict[str, Any]) -> list[Finding]:
    """Read some rows of each dataset twice; arrays are what they are."""
    findings = []
    for name, side in sides.items():
        if not is_dataset(side):
            continue
        indices = sorted({0, len(side) // 2, len(side) - 1})
        same = all(content(side[index]) == content(side[index]) for index in indices)
        facts[f"{name}_reads_repeat"] = same
        if name == "train" and augmented and same:
            findings.append(FIXED_READS.fault("training rows read twice are equal, although training is augmented"))
        if name != "train" and not same:
            shared = getattr(side, "dataset", 0) is getattr(sides["train"], "dataset", 1)
            says = f"{name} rows read twice differ" + ("; the split shares the dataset of training" if shared else "")
            findings.append(RANDOM_READS.suspicious(says, shared_dataset=shared))
    return findings


def _labels(side: Any, max_rows: int | None) -> list[Any] | None:
    if isinstance(side, tuple) and len(side) == 2 and is_array(side[1]):
        held = as_array(side[1])
        return list(held[:max_rows].tolist()) if held.ndim == 1 else None
    if is_dataset(side) and len(side):
        first = side[0]
        if isinstance(first, (tuple, list)) and len(first) == 2 and np.ndim(as_array(first[1])) == 0:
            return [as_array(side[index][1]).item() for index in range(min(len(side), max_rows or len(side)))]
    return None


def _numbers(side: Any, max_rows: int | None) -> Array | None:
    held = side[0] if isinstance(side, tuple) and side else side
    if not is_array(held):
        return None
    numbers = as_array(held)[:max_rows]
    return numbers.astype(float) if numbers.dtype.kind == "f" else None


def _by_split(given: Sequence[Any] | None, names: list[str], what: str) -> dict[str, list[Any]] | None:
    if given is None:
        return None
    if len(given) != len(names):
        raise CannotAnswer(f"{what} must be given for {', '.join(names)}, got {len(given)} sequences")
    return {name: as_array(each).tolist() for name, each in zip(names, given, strict=True)}
