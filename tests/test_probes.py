"""What graders record with takes anything, and says in words what it cannot take."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rerail.probes import Unusable, affine, array, fill, flat, gradients, number, poisoned, tensor, tensors


@pytest.mark.parametrize(
    "value", [2, 2.0, np.float32(2), np.array([2.0]), torch.tensor(2.0, requires_grad=True), torch.tensor([[2]])]
)
def test_number_reads_one_number(value: object) -> None:
    assert number(value, "the loss") == 2.0


@pytest.mark.parametrize("value", [None, "2", [2.0], torch.ones(2), {}, print])
def test_what_is_no_number_is_described(value: object) -> None:
    with pytest.raises(Unusable, match="the loss must be one number, got"):
        number(value, "the loss")


def test_tensor_demands_its_shape() -> None:
    assert tensor(torch.ones(3, 2), "it", (3, -1)).shape == (3, 2)
    with pytest.raises(Unusable, match=r"it must have shape \(3, -1\), got \(3,\)"):
        tensor(torch.ones(3), "it", (3, -1))
    with pytest.raises(Unusable, match="it must be a tensor, got list of 1"):
        tensor([1.0], "it")


def test_array_takes_tensors_and_lists_and_no_texts() -> None:
    assert array(torch.ones(2, requires_grad=True), "it").tolist() == [1, 1]
    assert array([[1, 2]], "it").shape == (1, 2)
    with pytest.raises(Unusable, match="it must be an array of numbers"):
        array(["a"], "it")


def test_tensors_are_fresh_and_of_the_dtypes_of_training() -> None:
    batch = {"x": np.zeros(2), "y": np.arange(2), "mask": np.array([True]), "name": "left out"}
    made = tensors(batch)

    assert {name: value.dtype for name, value in made.items()} == {
        "x": torch.float32,
        "y": torch.int64,
        "mask": torch.bool,
    }
    made["x"] += 1
    assert batch["x"].tolist() == [0, 0]


def test_gradient_that_never_arrives_is_none() -> None:
    used, unused = torch.ones(2, requires_grad=True), torch.ones(1, requires_grad=True)

    found = gradients((3 * used).sum(), [used, unused])
    assert found[0] is not None
    assert (found[0].tolist(), found[1]) == ([3, 3], None)
    assert gradients(torch.tensor(1.0), [used]) == [None]


def test_fill_depends_on_shapes_alone_and_leaves_the_random_numbers() -> None:
    state = torch.get_rng_state()
    one, other = torch.nn.Linear(3, 2), torch.nn.Sequential(torch.nn.Linear(3, 2))
    torch.set_rng_state(state)
    fill(one, seed=1)
    fill(other, seed=1)

    assert torch.equal(flat(one.parameters()), flat(other.parameters()))
    assert torch.equal(torch.get_rng_state(), state)


def test_affine_reads_a_model_off_its_answers() -> None:
    model = torch.nn.Linear(3, 2)
    weight, bias = affine(lambda x: model(x * 2), 3)

    assert torch.allclose(weight, 2 * model.weight, atol=1e-6)
    assert torch.allclose(bias, model.bias)
    with pytest.raises(Unusable, match="what the model answers"):
        affine(lambda x: x.sum(), 3)


def test_poisoned_leaves_the_original() -> None:
    values = np.zeros((3, 2))

    assert poisoned(values, np.array([1]), np.nan)[[0, 2]].tolist() == [[0, 0], [0, 0]]
    assert not values.any()
