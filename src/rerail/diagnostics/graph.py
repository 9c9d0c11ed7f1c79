"""The graph behind a loss: its nodes, its leaves, and whether it grows from step to step."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from rerail.diagnostics.calling import place_of
from rerail.diagnostics.finding import CannotAnswer, Cause, Report, answers, told
from rerail.diagnostics.state import untouched

FOREIGN = ("torch", "builtins", "functools")  # packages whose objects hold no layers of the user

GROWS = Cause(
    "gradient_path.graph_grows",
    refute="the batches get longer",
    next="detach the state that is carried from batch to batch, all parts of it",
    wrong_fixes=("retain_graph=True", "smaller batches", "emptying the cache"),
)


@answers
def graph_growth(
    step: Callable[[], Tensor], *, model: nn.Module | None = None, optimizer: Optimizer | None = None, steps: int = 4
) -> Report:
    """Count the nodes of the graph behind the loss of successive steps: a state that is not detached makes it grow.

    Args:
        step: Makes one training step on batches of equal shape, and returns its loss (or a running total) as a tensor.
        model: What the steps train, to be put back afterwards.
        optimizer: Its optimizer.
        steps: How many steps are made.

    Returns:
        A report with the number of nodes of each step.

    Example:
        ```python
        step = lambda: train_on(next(batches))
        report = rerail.graph_growth(step, model=model, optimizer=optimizer)
        ```
    """
    counts: list[int] = []
    with untouched(model, optimizer), torch.enable_grad():
        for _ in range(steps):
            try:
                loss = step()
            except RuntimeError as error:
                if "second time" not in str(error) and not (counts and "inplace operation" in str(error)):
                    raise  # an optimizer's step changes the parameters that an older graph still needs
                says, place = told(error)
                found = GROWS.fault(
                    f"step {len(counts) + 1} reaches into the graph of an earlier step: {says}", where=(place,)
                )
                return Report("graph_growth", (found,), {"nodes": tuple(counts)})
            if not isinstance(loss, Tensor):
                raise CannotAnswer(f"`step` must return the loss as a tensor, got {type(loss).__name__}")
            counts.append(sum(1 for _ in nodes_of(loss)))
    growth = [two - one for one, two in itertools.pairwise(counts)]
    if growth and min(growth) > 0:
        says = f"the graph behind the loss grows with every step: {counts} nodes"
        return Report("graph_growth", (GROWS.fault(says, where=place_of(step), nodes=tuple(counts)),))
    return Report("graph_growth", (), {"nodes": tuple(counts)})


def nodes_of(loss: Tensor) -> Iterator[Any]:
    """Give every node of the graph behind a tensor once, from the tensor backwards."""
    waiting, seen = [loss.grad_fn], set()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        yield node
        waiting += [following for following, _ in node.next_functions]


def leaves_of(loss: Tensor) -> Iterator[Tensor]:
    """Give every leaf tensor that a backward pass from this tensor would reach."""
    for node in nodes_of(loss):
        if hasattr(node, "variable"):
            yield node.variable


def held_in_plain_containers(model: nn.Module) -> dict[int, str]:
    """Return the ids of tensors that require gradients and that only plain attributes reach, with their path."""
    registered = {id(tensor) for tensor in (*model.parameters(), *model.buffers())}
    found: dict[int, str] = {}

    def look(thing: Any, path: str, depth: int) -> None:
        if isinstance(thing, Tensor):
            if thing.requires_grad and thing.is_leaf and id(thing) not in registered:
                found.setdefault(id(thing), path)
        elif isinstance(thing, nn.Module):
            for name, parameter in thing.named_parameters():
                if id(parameter) not in registered:
                    found.setdefault(id(parameter), f"{path}.{name}")
        elif isinstance(thing, (list, tuple, set)) and depth:
            for number, each in enumerate(thing):
                look(each, f"{path}[{number}]", depth - 1)
        elif isinstance(thing, dict) and depth:
            for key, each in thing.items():
                look(each, f"{path}[{key!r}]", depth - 1)
        elif (
            hasattr(thing, "__dict__")
            and depth
            and type(thing).__module__.partition(".")[0] not in ("torch", "builtins")
        ):
            for name, each in vars(thing).items():
                look(each, f"{path}.{name}", depth - 1)

    for prefix, module in model.named_modules():
        for name, value in module.__dict__.items():
            if not (name.startswith("_") and isinstance(value, dict)):
                look(value, f"{prefix}.{name}".lstrip("."), 3)
    return found
