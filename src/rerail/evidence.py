"""Evidence: the named arrays, texts and absences that a probe recorded on a fixed batch.

It travels from the process that ran a learner's code to the one that judges it, as bytes that cannot execute anything:
a safetensors file with the texts in its header.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

Array = NDArray[Any]  # bool, int64 or float64: `encode` makes nothing else

LIMIT_BYTES = 64 << 20  # far above any record of a few training steps; a flood stops here
LIMIT_NAMES = 10_000


class Garbage(ValueError):
    """What a child sent is not evidence."""


@dataclass(frozen=True)
class Evidence:
    """
    A record of one run of a probe, read by attribute or by name.

    A scalar array reads as a Python number; a name that was recorded as absent (a gradient that never came) reads as
    None; `run.after` reads the group recorded as `{"after": {...}}` as a mapping.
    """

    arrays: Mapping[str, Array] = field(default_factory=dict)
    texts: Mapping[str, str] = field(default_factory=dict)
    absent: frozenset[str] = frozenset()

    def __getitem__(self, name: str) -> Any:  # Any: whoever reads a name knows what the probe recorded under it
        if name in self.arrays:
            value = self.arrays[name]
            return value.item() if value.ndim == 0 else value
        if name in self.texts:
            return self.texts[name]
        if name in self.absent:
            return None
        inside = name + "/"
        names = [key for key in (*self.arrays, *self.texts, *self.absent) if key.startswith(inside)]
        if names:
            return {key.removeprefix(inside): self[key] for key in names}
        raise KeyError(f"the probe recorded no {name!r}; it recorded {', '.join(sorted(self.names())) or 'nothing'}")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        try:
            return self[name]
        except KeyError as error:
            raise AttributeError(error.args[0]) from None

    def names(self) -> set[str]:
        """Return every recorded name, groups spelled out (`after/weight`)."""
        return {*self.arrays, *self.texts, *self.absent}


def record(values: Mapping[str, Any]) -> Evidence:
    """
    Turn what a probe returns into Evidence.

    Args:
        values: By name: numbers, arrays, tensors, lists of those of one shape, texts, None for what is absent, or
            mappings of the same. Copied: later in-place steps do not change what was recorded.

    Raises:
        TypeError: If a value is not made of plain numbers.
    """
    arrays: dict[str, Array] = {}
    texts: dict[str, str] = {}
    absent: set[str] = set()
    for name, value in _flattened(values):
        if value is None:
            absent.add(name)
        elif isinstance(value, str):
            texts[name] = value
        else:
            arrays[name] = _as_array(name, value)
    return Evidence(arrays, texts, frozenset(absent))


def _flattened(values: Mapping[str, Any], prefix: str = "") -> Sequence[tuple[str, Any]]:
    flat: list[tuple[str, Any]] = []
    for name, value in values.items():
        flat += _flattened(value, f"{prefix}{name}/") if isinstance(value, Mapping) else [(f"{prefix}{name}", value)]
    return flat


def _as_array(name: str, value: Any) -> Array:
    if hasattr(value, "detach"):  # a tensor, without importing torch
        value = value.detach().cpu().numpy()
    elif isinstance(value, list | tuple) and any(hasattr(item, "detach") for item in value):
        value = np.stack([_as_array(name, item) for item in value])
    array = np.array(value, order="C")
    if array.dtype.kind not in "fiub":
        raise TypeError(f"{name!r} must be recorded as plain numbers, got {type(value).__name__} {str(value)[:60]}")
    if array.dtype.kind == "b":
        return array
    return array.astype(np.float64 if array.dtype.kind == "f" else np.int64)


def encode(evidence: Evidence) -> bytes:
    """Write evidence as the bytes of a safetensors file."""
    header = {"texts": json.dumps(dict(evidence.texts)), "absent": json.dumps(sorted(evidence.absent))}
    return bytes(save(dict(evidence.arrays), metadata=header))


def decode(data: bytes) -> Evidence:
    """
    Read evidence from bytes that nobody vouches for.

    Raises:
        Garbage: If they are not evidence: too long, not safetensors, other dtypes, no texts where texts must be.
    """
    if len(data) > LIMIT_BYTES:
        raise Garbage(f"evidence may have {LIMIT_BYTES} bytes, got {len(data)}; record less")
    try:
        arrays = load(data)
        size = int.from_bytes(data[:8], "little")
        header = json.loads(data[8 : 8 + size])["__metadata__"]
        texts, absent = json.loads(header["texts"]), json.loads(header["absent"])
    except (SafetensorError, ValueError, KeyError, TypeError, RecursionError, MemoryError) as error:
        raise Garbage(f"what came back is not evidence: {error}") from None
    if not (isinstance(texts, dict) and all(isinstance(text, str) for text in texts.values())):
        raise Garbage("the texts of the evidence are no texts")
    if not (isinstance(absent, list) and all(isinstance(name, str) for name in absent)):
        raise Garbage("the absent names of the evidence are no names")
    if len(arrays) + len(texts) + len(absent) > LIMIT_NAMES:
        raise Garbage(f"evidence may have {LIMIT_NAMES} names, got {len(arrays) + len(texts) + len(absent)}")
    odd = [name for name, array in arrays.items() if array.dtype not in (np.float64, np.int64, np.bool_)]
    if odd:
        raise Garbage(f"{odd[0]!r} came back as {arrays[odd[0]].dtype}; evidence is bool, int64 or float64")
    return Evidence(arrays, texts, frozenset(absent))
