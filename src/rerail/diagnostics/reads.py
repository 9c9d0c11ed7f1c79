"""What a loader really gives: how often each item comes, and whether a split holds over the epochs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from rerail.diagnostics.finding import CannotAnswer, Cause, Report, answers
from rerail.diagnostics.rows import arrays_in, as_array, content

REPEATED = Cause(
    "data.items_repeated",
    refute="the sampler draws with replacement on purpose",
    next="count the ids of one epoch; shard an iterable dataset by worker and rank",
    wrong_fixes=("fewer steps an epoch", "num_workers=1"),
)
MOVING = Cause(
    "data.split_moves_between_epochs",
    refute="cross-validation changes the split on purpose",
    next="split before shuffling, and count the ids of both sides over several epochs",
    wrong_fixes=("a larger buffer", "a fixed seed", "caching after batching"),
)
SAME_RANDOMNESS = Cause(
    "data.same_randomness_every_epoch",
    refute="the random values are meant to be drawn once",
    next="make the generator in the worker, from torch.initial_seed(); never store a live one in the dataset",
    wrong_fixes=("num_workers=0", "a worker_init_fn with a constant", "the worker's number as the seed"),
)
NEVER_READ = Cause(
    "data.rows_never_read",
    refute="only some rows are meant to be read in an epoch",
    next="compare the ids that were read with those of the dataset: drop_last loses the last rows",
    wrong_fixes=("a batch size that divides the rows",),
)


@answers
def reads_audit(
    loader: Any,
    other: Any = None,
    *,
    key: Callable[[Any], Any] | None = None,
    epochs: int = 2,
    evaluation: bool = False,
    augmented: bool | None = None,
    max_batches: int = 10_000,
) -> Report:
    """Read a loader for some epochs, and count which items it gave: each once, some twice, some never.

    Args:
        loader: The training loader, or any iterable of batches that can be iterated again.
        other: The validation loader, whose items must never be among the training ones, in any epoch.
        key: Returns the ids of the items of a batch, as a list or array; by default the content of the rows identifies.
        epochs: How many epochs are read.
        evaluation: Whether the loader is one of an evaluation, which must read every row of its dataset.
        augmented: Whether rows are meant to be random: two epochs must then differ in content.
        max_batches: Stop an epoch after that many batches.

    Returns:
        A report with the number of items and of different ones an epoch.
    """
    epochs_read = [list(_items(loader, key, max_batches)) for _ in range(max(1, epochs))]
    if not epochs_read[0]:
        raise CannotAnswer("the loader gave no batch: with drop_last a set smaller than a batch is empty")
    counts = [(len(items), len(set(items))) for items in epochs_read]
    facts: dict[str, Any] = {"items": counts[0][0], "different": counts[0][1], "epochs": len(counts)}
    facts["same_order"] = len(epochs_read) > 1 and epochs_read[0] == epochs_read[1]
    findings = []
    items, different = counts[0]
    total = _length(loader)
    if items > different and not _draws_with_replacement(loader):
        says = f"one epoch gave {items} items, {different} of them different"
        workers = int(getattr(loader, "num_workers", 0))
        says += f", with {workers} workers" if workers else ""
        kinds = {kind.__name__ for kind in type(getattr(loader, "dataset", None)).__mro__}
        sure = key is not None or (workers > 1 and "IterableDataset" in kinds)
        found = REPEATED.fault if sure else REPEATED.suspicious  # rows of a dataset may be equal in content
        findings.append(found(says, items=items, different=different, workers=workers))
    if total is not None and different < total and evaluation:
        findings.append(NEVER_READ.suspicious(f"{different} of {total} rows are read", read=different, rows=total))
    if augmented and len(epochs_read) > 1 and key is None and sorted(epochs_read[0]) == sorted(epochs_read[1]):
        findings.append(SAME_RANDOMNESS.fault("two epochs gave the same random values, row for row"))
    if other is not None:
        trained = set().union(*map(set, epochs_read))
        held = set().union(*(set(_items(other, key, max_batches)) for _ in range(max(1, epochs))))
        both = len(trained & held)
        facts |= {"in_both": both, "other_different": len(held)}
        if both:
            says = f"over {len(counts)} epochs {both} of {len(held)} validation items were trained on"
            findings.append(MOVING.fault(says, in_both=both, validation=len(held)))
    return Report("reads_audit", tuple(findings), facts)


def _items(loader: Any, key: Callable[[Any], Any] | None, max_batches: int) -> Iterator[Any]:
    for number, batch in enumerate(loader):
        if number >= max_batches:
            return
        if key is not None:
            yield from np.asarray(as_array(key(batch))).reshape(-1).tolist()
            continue
        fields = [held for held in arrays_in(batch) if held.ndim]
        if not fields:
            yield content(batch)
            continue
        for row in range(len(fields[0])):
            yield b"".join(field[row].tobytes() for field in fields if len(field) == len(fields[0]))


def _length(loader: Any) -> int | None:
    try:
        return len(loader.dataset)
    except (AttributeError, TypeError):
        return None


def _draws_with_replacement(loader: Any) -> bool:
    return bool(getattr(getattr(loader, "sampler", None), "replacement", False))
