"""What a probe records comes back as it was, and nothing else comes in."""

from __future__ import annotations

import contextlib
import json

import numpy as np
import pytest
from safetensors.numpy import save

from rerail.evidence import Evidence, Garbage, decode, encode, record

VALUES = {
    "number": 1.5,
    "count": 3,
    "flag": True,
    "text": "line\n\0",
    "none": None,
    "nan": float("nan"),
    "rows": np.arange(6.0).reshape(2, 3),
    "nothing": np.zeros((0, 3)),
    "after": {"weight": [1.0, 2.0], "bias": None},
}


def test_record_survives_the_journey() -> None:
    back = decode(encode(record(VALUES)))

    assert (back.number, back.count, back.flag, back.text, back.none) == (1.5, 3, True, "line\n\0", None)
    assert np.isnan(back.nan)
    assert back.rows.shape == (2, 3)
    assert back.nothing.shape == (0, 3)
    assert back.after["bias"] is None
    assert back.after["weight"].tolist() == [1.0, 2.0]


def test_recorded_is_a_copy() -> None:
    values = np.zeros(3)
    kept = record({"values": values})
    values += 1

    assert kept.values.tolist() == [0, 0, 0]


def test_tensors_are_recorded_without_their_graph() -> None:
    import torch

    weight = torch.ones(2, requires_grad=True)
    kept = record({"weight": weight, "list": [weight, weight * 2]})

    assert kept.weight.tolist() == [1, 1]
    assert kept.list.tolist() == [[1, 1], [2, 2]]


def test_unknown_name_says_what_there_is() -> None:
    with pytest.raises(AttributeError, match="recorded no 'loss'; it recorded norm"):
        _ = record({"norm": 1.0}).loss


@pytest.mark.parametrize(
    "value", [object(), ["a"], [[1.0], [1.0, 2.0]], 1j], ids=["object", "texts", "ragged", "complex"]
)
def test_what_is_no_number_is_refused(value: object) -> None:
    with pytest.raises((TypeError, ValueError)):
        record({"value": value})


def header(**texts: str) -> bytes:
    return bytes(save({"a": np.zeros(1)}, metadata=texts))


GARBAGE = [
    pytest.param(b"", id="nothing"),
    pytest.param(b"\xff" * 100, id="noise"),
    pytest.param(b"\x80\x04\x95\x10\x00\x00\x00\x00\x00\x00\x00cos\nsystem\n", id="a pickle"),
    pytest.param((1 << 60).to_bytes(8, "little") + b"{}", id="a huge header"),
    pytest.param(encode(record(VALUES))[:-4], id="cut short"),
    pytest.param(save({"a": np.zeros(1)}), id="no header of ours"),
    pytest.param(header(texts="[]", absent="[]"), id="texts are a list"),
    pytest.param(header(texts='{"a": 1}', absent="[]"), id="a text is a number"),
    pytest.param(header(texts="{}", absent="[1]"), id="an absent number"),
    pytest.param(header(texts="{}", absent="{}"), id="absent is a mapping"),
    pytest.param(header(texts="[" * 100_000, absent="[]"), id="deep nesting"),
    pytest.param(header(texts="{}", absent=json.dumps(["x"] * 20_000)), id="too many names"),
    pytest.param(save({"a": np.zeros(1, np.float16)}, metadata={"texts": "{}", "absent": "[]"}), id="another dtype"),
]


@pytest.mark.parametrize("data", GARBAGE)
def test_garbage_is_refused(data: bytes) -> None:
    with pytest.raises(Garbage):
        decode(data)


def test_generated_garbage_is_refused_or_read() -> None:
    good, rng = encode(record(VALUES)), np.random.default_rng(0)
    for _ in range(2000):
        data = bytearray(good)
        for place in rng.integers(len(data), size=3):
            data[place] = rng.integers(256)
        with contextlib.suppress(Garbage):
            assert isinstance(decode(bytes(data)), Evidence)
