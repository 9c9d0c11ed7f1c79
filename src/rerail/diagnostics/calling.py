"""How a check calls a model on a batch: by the habits of PyTorch, or by a function that the caller gives."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from rerail.diagnostics.finding import CannotAnswer
from rerail.diagnostics.state import is_measurable

TARGETS = ("labels", "label", "targets", "target", "y")  # names of the target in a batch that is a mapping


@dataclass(frozen=True)
class Called:
    """What one forward pass gave.

    Attributes:
        output: What the model returned.
        target: What the batch holds for the loss, None if nothing.
        loss: A scalar tensor.
        how: The call that was made, as a person would write it.
    """

    output: Any
    target: Any
    loss: Tensor
    how: str


def call(
    model: nn.Module,
    loss_fn: Callable[..., Any] | None,
    batch: Any,
    forward: Callable[[nn.Module, Any], Any] | None = None,
) -> Called:
    """Run a forward pass and the loss, and say how the model was called.

    Args:
        model: The model, called as it is, in the mode that it has.
        loss_fn: `loss_fn(output, target)`, or `loss_fn(output)` where the batch has no target; None where the model
            gives its loss itself, as `.loss`, as `["loss"]` or as a scalar.
        batch: `(inputs..., target)`, a mapping with one of the targets `labels label targets target y`, or one tensor.
        forward: `forward(model, batch)` gives the output, where none of that fits; with `loss_fn=None`, the loss.

    Returns:
        Output, target, the loss as a scalar tensor, and the call in words.

    Raises:
        CannotAnswer: If there is no batch, or no scalar loss.
    """
    output, target, how = _output(model, batch, forward)
    if loss_fn is not None:
        loss = loss_fn(output) if target is None else loss_fn(output, target)
    else:
        loss = _own_loss(output)
    if not isinstance(loss, Tensor):
        raise CannotAnswer(
            f"the loss must be a tensor, got {type(loss).__name__}: return it before `.item()` or `float()`"
        )
    if loss.numel() != 1:
        raise CannotAnswer(
            f"the loss must be one number, got the shape {tuple(loss.shape)}: reduce it, by its mean or its sum"
        )
    return Called(output, target, loss, how)


def named_parameters(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """Return name and parameter; one that has several names comes once, under all of them joined by " = ".

    Raises:
        CannotAnswer: If the model has no parameters, or some without values (a lazy module, the meta device).
    """
    if not isinstance(model, nn.Module):
        raise CannotAnswer(f"the model must be a torch.nn.Module, got {type(model).__name__}")
    names: dict[int, list[str]] = {}
    parameters: dict[int, nn.Parameter] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
        parameters[id(parameter)] = parameter
    if not parameters:
        raise CannotAnswer("the model has no parameters: there is nothing to train, and nothing to check")
    for key, parameter in parameters.items():
        if not is_measurable(parameter):
            raise CannotAnswer(
                f"{names[key][0]!r} has no values yet (a lazy module, or the meta device): "
                "run one batch through the model first"
            )
    return [(" = ".join(names[key]), parameter) for key, parameter in parameters.items()]


def optimizer_parameters(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """Return the parameters that an optimizer holds, in its order.

    Raises:
        CannotAnswer: If it is no optimizer.
    """
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise CannotAnswer(f"the optimizer must be a torch.optim.Optimizer, got {type(optimizer).__name__}")
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def tensors(thing: Any, name: str = "batch") -> Iterator[tuple[str, Tensor]]:
    """Give the path and the tensor of every tensor in nested lists, tuples, mappings and objects with attributes.

    Args:
        thing: What to walk through.
        name: What the path starts with.
    """
    if isinstance(thing, Tensor):
        yield name, thing
    elif isinstance(thing, Mapping):
        for key, value in thing.items():
            yield from tensors(value, f"{name}[{key!r}]")
    elif isinstance(thing, (list, tuple)):
        for number, value in enumerate(thing):
            yield from tensors(value, f"{name}[{number}]")


def rows(batch: Any) -> int | None:
    """Return the number of rows of a batch, the first dimension of its first tensor; None without one."""
    return next((tensor.shape[0] for _, tensor in tensors(batch) if tensor.ndim), None)


def place_of(function: Callable[..., Any]) -> tuple[str, ...]:
    """Return `file:line` of a Python function, as a tuple of one or none."""
    code = getattr(function, "__code__", None) or getattr(getattr(function, "forward", None), "__code__", None)
    return (f"{code.co_filename}:{code.co_firstlineno}",) if code is not None else ()


@contextlib.contextmanager
def eager() -> Iterator[None]:
    """Run compiled parts as Python, so that each operation can be seen."""
    if "torch._dynamo" not in sys.modules:
        yield
        return
    with torch.compiler.set_stance("force_eager"):
        yield


def wide(thing: Any) -> Any:
    """Return a batch or tensor with its floating point numbers as float64."""
    if isinstance(thing, Tensor):
        if thing.is_floating_point():
            return thing.double()
        return thing.to(torch.complex128) if thing.is_complex() else thing
    if isinstance(thing, dict):
        return {key: wide(value) for key, value in thing.items()}
    if isinstance(thing, (list, tuple)):
        return type(thing)(wide(value) for value in thing) if type(thing) in (list, tuple) else thing
    return thing


def _output(model: nn.Module, batch: Any, forward: Callable[[nn.Module, Any], Any] | None) -> tuple[Any, Any, str]:
    if forward is not None:
        return forward(model, batch), _target(batch), "forward(model, batch)"
    if batch is None:
        raise CannotAnswer("there is no batch: give one, as (inputs, target), or the function `forward(model, batch)`")
    if isinstance(batch, Mapping):
        key = _target_key(batch)
        if key is None:
            return model(**batch), None, "model(**batch)"
        rest = {name: value for name, value in batch.items() if name != key}
        return model(**rest), batch[key], f"model(**batch without {key!r})"
    if isinstance(batch, (list, tuple)):
        if not batch:
            raise CannotAnswer("the batch is empty: give (inputs, target)")
        if len(batch) == 1:
            return model(batch[0]), None, "model(batch[0])"
        return model(*batch[:-1]), batch[-1], "model(batch[0])" if len(batch) == 2 else "model(*batch[:-1])"
    return model(batch), None, "model(batch)"


def _target(batch: Any) -> Any:
    if isinstance(batch, Mapping):
        key = _target_key(batch)
        return None if key is None else batch[key]
    return batch[-1] if isinstance(batch, (list, tuple)) and len(batch) > 1 else None


def _target_key(batch: Mapping[str, Any]) -> str | None:
    return next((name for name in TARGETS if name in batch), None)


def _own_loss(output: Any) -> Any:
    if isinstance(output, Tensor):
        return output
    if isinstance(output, Mapping) and "loss" in output:
        return output["loss"]
    if getattr(output, "loss", None) is not None:
        return output.loss
    raise CannotAnswer("there is no loss: give `loss_fn(output, target)`, or a model whose output has `.loss`")
