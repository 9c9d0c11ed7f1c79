"""What graders record with. Imported in children only: it imports torch.

Every function is total: what a learner's code returns may be anything, and `Unusable` says in words what was expected.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray


class Unusable(Exception):
    """What a learner's function returned cannot be graded; the text says what was expected and what came."""


def tensors(batch: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Turn the numpy arrays of a batch into fresh float32, int64 or bool tensors; other values are left out."""
    kinds = {"f": torch.float32, "i": torch.int64, "u": torch.int64, "b": torch.bool}
    arrays = {
        name: value for name, value in batch.items() if isinstance(value, np.ndarray) and value.dtype.kind in kinds
    }
    return {name: torch.tensor(value, dtype=kinds[value.dtype.kind]) for name, value in arrays.items()}


def number(value: Any, what: str) -> float:
    """
    Read a number: a Python or numpy number, or a tensor with one element.

    Raises:
        Unusable: If it is none; `what` names it, as in "what `evaluate` returns".
    """
    try:
        if isinstance(value, str):  # "0.5" is no number, whatever `float` makes of it
            raise TypeError
        value = value.item() if isinstance(value, np.ndarray) else value
        return float(value.detach() if isinstance(value, torch.Tensor) else value)
    except (TypeError, ValueError, RuntimeError):
        raise Unusable(f"{what} must be one number, got {described(value)}") from None


def tensor(value: Any, what: str, shape: tuple[int, ...] | None = None) -> torch.Tensor:
    """
    Read a tensor.

    Raises:
        Unusable: If it is none, or not of that shape (-1: any length).
    """
    if not isinstance(value, torch.Tensor):
        raise Unusable(f"{what} must be a tensor, got {described(value)}")
    fits = shape is None or (
        len(shape) == value.dim() and all(s in (-1, n) for s, n in zip(shape, value.shape, strict=True))
    )
    if not fits:
        raise Unusable(f"{what} must have shape {shape}, got {tuple(value.shape)}")
    return value


def array(value: Any, what: str) -> NDArray[Any]:
    """
    Read a table of numbers: an array, a tensor, or nested lists of one shape.

    Raises:
        Unusable: If it is none.
    """
    found = np.asarray(value.detach().cpu() if isinstance(value, torch.Tensor) else value)
    if found.dtype.kind not in "fiub":
        raise Unusable(f"{what} must be an array of numbers, got {described(value)}")
    return found


def described(value: Any) -> str:
    """Tell a value's type, and its shape or its first characters."""
    if hasattr(value, "shape"):
        return f"{type(value).__name__} of shape {tuple(value.shape)}"
    if isinstance(value, tuple | list):
        return f"{type(value).__name__} of {len(value)}"
    return f"{type(value).__name__} {str(value)[:60]}" if value is not None else "None"


def flat(values: Iterable[torch.Tensor]) -> torch.Tensor:
    """Join tensors into one float64 vector, in their order; names play no part."""
    return torch.cat([torch.zeros(0, dtype=torch.float64), *(value.detach().reshape(-1).double() for value in values)])


def gradients(value: torch.Tensor, wrt: Iterable[torch.Tensor]) -> list[torch.Tensor | None]:
    """Differentiate a scalar; None where no gradient arrives, also where nothing was recorded."""
    wrt = list(wrt)
    if not value.requires_grad:
        return [None] * len(wrt)
    return list(torch.autograd.grad(value, wrt, allow_unused=True, retain_graph=True))


class OneWeightEach(torch.nn.Module):
    """
    A linear layer for rows that have one number which is not 0, and its own weights for each such row.

    It gives what `torch.nn.Linear` gives, but a nan in the weights of one row stays there. In evaluation mode it gives
    half of that: as with dropout or batch norm, who switches modes has another network.
    """

    def __init__(self, weight: torch.Tensor) -> None:
        super().__init__()
        self.table = torch.nn.Parameter(weight.clone())  # shape (rows, outputs)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Map rows, shape (n, rows), to outputs, shape (n, outputs)."""
        place = rows.abs().argmax(dim=1)
        outputs = rows.gather(1, place[:, None]) * self.table[place]
        return outputs if self.training else outputs / 2


def moves(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> list[float]:
    """
    Take steps for gradients of 0.00001, 3 and 1 everywhere; return the smallest and the largest move of each step.

    They tell an optimizer, its rate and its constants from others, whatever the model.
    """
    found = []
    for size in (1e-5, 3.0, 1.0):
        before = flat(model.parameters())
        for parameter in model.parameters():
            parameter.grad = torch.full_like(parameter, size)
        optimizer.step()
        moved = flat(model.parameters()) - before
        found += [float(moved.min()), float(moved.max())]
    return found


def fill(model: torch.nn.Module, seed: int, scale: float = 0.5) -> None:
    """
    Give the parameters start values of our own, by shape and order: names and constructors play no part.

    Args:
        model: Changed in place; matrices get N(0, scale / sqrt(fan in)), vectors N(0, 0.1).
        seed: Of a generator of its own; torch's global random numbers are left alone.
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            fan_in = parameter[0].numel() if parameter.dim() > 1 else 100
            size = scale / fan_in**0.5 if parameter.dim() > 1 else 0.1
            parameter.copy_(size * torch.randn(parameter.shape, generator=generator))


def poisoned(values: NDArray[Any], rows: NDArray[np.int64], poison: float | NDArray[Any]) -> NDArray[Any]:
    """Copy an array and overwrite the rows that must not matter."""
    copy = np.array(values, copy=True)
    copy[rows] = poison
    return copy


def affine(model: Any, columns: int) -> tuple[torch.Tensor, torch.Tensor]:
    """
    Read the weight and the bias of an affine model off its answers, whatever its parameters are called.

    Returns:
        The weight, shape (outputs, columns), and the bias, shape (outputs,).

    Raises:
        Unusable: If it does not answer rows with rows.
    """
    questions = torch.cat([torch.zeros(1, columns), torch.eye(columns)])
    with torch.no_grad():
        answers = tensor(model(questions), "what the model answers", (columns + 1, -1))
    return (answers[1:] - answers[0]).T, answers[0]
