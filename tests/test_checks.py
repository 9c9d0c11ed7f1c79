"""Edits are applied as written or refused; comparisons fail on nan."""

from __future__ import annotations

import numpy as np
import pytest

from rerail.checks import after, close, edited, first_difference, function, largest_difference

SOURCE = "import torch\n\n\ndef one(x):\n    return x\n\n\n@torch.no_grad()\ndef two(x):\n    return 2 * x\n"
NAN = float("nan")


@pytest.mark.parametrize(
    ("edits", "expected"),
    [
        pytest.param([("return x\n", "return -x\n")], SOURCE.replace("return x\n", "return -x\n"), id="replace"),
        pytest.param([after("import torch\n", "import math")], SOURCE.replace("torch\n\n", "torch\nimport math\n\n"), id="after"),
        pytest.param([function("one", "def one(x):\n    return 1\n")], SOURCE.replace("return x\n", "return 1\n"), id="rewrite"),
        pytest.param([function("two", "def two(x):\n    return x")], SOURCE.replace("@torch.no_grad()\n", "").replace("2 * x", "x"),
                     id="rewrite takes the decorator along"),
        pytest.param([("2 * x", "3 * x"), ("import torch", "import torch  # 2 * x")],
                     SOURCE.replace("2 * x", "3 * x").replace("import torch\n", "import torch  # 2 * x\n"),
                     id="matched against the shipped text, not in sequence"),
    ],
)  # fmt: skip
def test_edited(edits: list, expected: str) -> None:
    assert edited(SOURCE, edits) == expected


@pytest.mark.parametrize(
    ("edits", "says"),
    [
        pytest.param([("x", "y")], "occurs .* times, not once", id="ambiguous"),
        pytest.param([("gone", "y")], "occurs 0 times", id="gone"),
        pytest.param([function("three", "")], "no function or class 'three'", id="no function"),
        pytest.param([("def one(x):", "a"), ("one(x):\n", "b")], "overlap", id="overlap"),
    ],
)
def test_edits_that_do_not_fit_are_refused(edits: list, says: str) -> None:
    with pytest.raises(LookupError, match=says):
        edited(SOURCE, edits)


@pytest.mark.parametrize(
    ("got", "expected", "same"),
    [
        pytest.param([1.0], [1.0 + 5e-5], True, id="within"),
        pytest.param([1.0], [1.0 + 5e-4], False, id="beyond"),
        pytest.param([NAN], [NAN], False, id="nan"),
        pytest.param([float("inf")], [float("inf")], False, id="inf"),
        pytest.param([1.0, 1.0], [1.0], False, id="shape"),
        pytest.param([], [], True, id="empty"),
    ],
)
def test_close(got: list, expected: list, same: bool) -> None:
    assert close(got, expected) is same


@pytest.mark.parametrize(
    ("got", "expected", "index"),
    [
        pytest.param([1, 2, 3], [1, 2, 3], None, id="equal"),
        pytest.param([1, 9, 3], [1, 2, 3], 1, id="in the middle"),
        pytest.param([1, NAN], [1, 2], 1, id="nan"),
        pytest.param([1], [1, 2], 1, id="shorter"),
    ],
)
def test_first_difference(got: list, expected: list, index: int | None) -> None:
    assert first_difference(np.array(got, float), np.array(expected, float)) == index


def test_largest_difference_tells_of_nan() -> None:
    assert largest_difference([1.0, 4.0], [1.0, 2.0]) == 2.0
    assert np.isnan(largest_difference([NAN], [0.0]))
