"""The rows of a data set in whatever form they come: arrays, tensors, lists, datasets."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from rerail.diagnostics.finding import CannotAnswer

Array = npt.NDArray[Any]


def rows_of(side: Any, max_rows: int | None) -> Iterator[bytes]:
    """Give the content of every row, the label left out where the row is a pair."""
    if isinstance(side, tuple) and side and is_array(side[0]):
        side = side[0]
    if is_array(side):
        held = as_array(side)[:max_rows]
        if held.ndim == 0:
            raise CannotAnswer("a split must have rows, got a single number")
        flat = np.ascontiguousarray(held.reshape(len(held), -1))
        if flat.shape[1] == 0:
            raise CannotAnswer("the rows of a split are empty")
        if flat.dtype.kind in "OUS":
            yield from (repr(row).encode() for row in flat.tolist())
        else:
            yield from (row.tobytes() for row in flat)
        return
    if not hasattr(side, "__len__") or not hasattr(side, "__getitem__"):
        raise CannotAnswer(
            f"a split must be an array, a tensor, a list of rows or a dataset, got {type(side).__name__}"
        )
    for index in range(min(len(side), max_rows or len(side))):
        row = side[index]
        yield content(row[0] if isinstance(row, (tuple, list)) and len(row) == 2 and is_array(row[0]) else row)


def is_array(thing: Any) -> bool:
    """Return whether a thing is an array or a tensor."""
    return hasattr(thing, "shape") and hasattr(thing, "dtype")


def is_dataset(side: Any) -> bool:
    """Return whether a thing is a dataset with `len` and `[index]`, and no list or array."""
    return not isinstance(side, (tuple, list)) and not is_array(side) and hasattr(side, "__getitem__") and len(side) > 0


def as_array(thing: Any) -> Array:
    """Return an array of a tensor, an array, or a list."""
    if hasattr(thing, "detach"):
        thing = thing.detach().cpu()
    return np.asarray(thing)


def arrays_in(thing: Any) -> Iterator[Array]:
    """Give every array in nested lists, tuples and mappings; a list of numbers is one."""
    if is_array(thing):
        yield as_array(thing)
    elif isinstance(thing, dict):
        for value in thing.values():
            yield from arrays_in(value)
    elif isinstance(thing, (list, tuple)):
        if thing and all(isinstance(each, (int, float)) for each in thing):
            yield np.asarray(thing)
        else:
            for value in thing:
                yield from arrays_in(value)


def content(thing: Any) -> bytes:
    """Return a digest of the values of a row, whatever its form."""
    hashed = hashlib.blake2b(digest_size=16)
    found = False
    for held in arrays_in(thing):
        hashed.update(f"{held.dtype}{held.shape}".encode())
        hashed.update(repr(held.tolist()).encode() if held.dtype.kind == "O" else held.tobytes())
        found = True
    if not found:
        hashed.update(repr(thing).encode())
    return hashed.digest()


def copied(thing: Any) -> Any:
    """Return a copy of rows in any form."""
    if hasattr(thing, "clone"):
        return thing.clone()
    if isinstance(thing, (list, tuple)) and any(map(is_array, thing)):
        return type(thing)(copied(each) for each in thing)
    return thing.copy() if hasattr(thing, "copy") else thing
