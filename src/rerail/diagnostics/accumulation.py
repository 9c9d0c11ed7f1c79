"""Gradient accumulation: whether a window of micro-batches gives the gradient of the same rows in one batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.optim import Optimizer

from rerail.diagnostics.calling import named_parameters
from rerail.diagnostics.finding import CannotAnswer, Cause, Report, answers
from rerail.diagnostics.state import untouched, values

EQUAL = 1e-4  # relative difference of two gradients that are equal but for the order of their sums in float32

ACCUMULATION = {
    "cleared": Cause(
        "update.accumulation_cleared",
        refute="only the last micro-batch is meant to count",
        next="clear after the step only, and compare with the gradient of the full batch",
        wrong_fixes=("more accumulation steps", "a larger rate"),
    ),
    "summed": Cause(
        "update.accumulation_not_divided",
        refute="the loss is a sum over the rows, and the rate is set for that",
        next="divide each loss by the number of micro-batches, or by the rows of the whole window",
        wrong_fixes=("a smaller rate", "clipping"),
    ),
    "uneven": Cause(
        "update.accumulation_uneven",
        refute="the rows of a small micro-batch are meant to count more",
        next="sum the losses of the rows and divide by their number in the whole window",
        wrong_fixes=("dividing by the number of micro-batches", "padding to equal length", "dropping short rows"),
    ),
    "differs": Cause(
        "update.accumulation_differs",
        refute="the model treats the rows of one batch together (batch statistics, in-batch negatives)",
        next="compare the gradients parameter by parameter",
    ),
}


@answers
def accumulation_check(
    model: nn.Module,
    accumulate: Callable[[], object],
    full: Callable[[], object],
    optimizer: Optimizer | None = None,
) -> Report:
    """Compare the gradient that a window of micro-batches accumulates with the gradient of the same rows at once.

    Both calls start from the same parameters and cleared gradients, and leave no trace. Of each, the gradients are
    taken at the first `optimizer.step`, or at the end if it makes none.

    Args:
        model: The model; a mode in which rows do not meet (no dropout, no batch statistics) makes the two comparable.
        accumulate: Runs the window as the training does, from clearing to the step.
        full: Runs forward and backward on all rows of the window as one batch.
        optimizer: The optimizer that `accumulate` steps, if it does.

    Returns:
        A report with norm ratio, cosine and the largest difference, relative to the largest entry of the full gradient.
    """
    named = dict(named_parameters(model))
    mixing = [name for name, module in model.named_modules() if _mixes_rows(module)]
    if mixing:
        raise CannotAnswer(
            f"{mixing[0]!r} makes a row's gradient depend on its batch or on chance: put the model in eval() to compare"
        )
    parts: list[Tensor] = []
    mine = _gradient_of(accumulate, model, named, optimizer, parts)
    whole = _gradient_of(full, model, named, optimizer, [])
    if not bool(whole.any()):
        raise CannotAnswer("`full` left no gradient: it must call backward on the loss of the whole batch")
    if not parts:
        raise CannotAnswer("`accumulate` made no backward pass that reached the model's parameters")
    cosine = float(torch.nn.functional.cosine_similarity(mine, whole, dim=0))
    ratio = float(mine.norm() / whole.norm())
    difference = float((mine - whole).abs().max() / whole.abs().max())
    facts: dict[str, Any] = {
        "norm_ratio": ratio, "cosine": cosine, "largest_difference": difference, "micro_batches": len(parts),
    }  # fmt: skip
    if difference < EQUAL:
        return Report("accumulation_check", (), facts)
    kind = _kind(mine, whole, parts)
    cause = ACCUMULATION[kind]
    says = {
        "cleared": f"only the last of {len(parts)} micro-batches reaches the step",
        "summed": f"the losses of {len(parts)} micro-batches are summed, not averaged",
        "uneven": f"{len(parts)} micro-batches count alike although they are not alike in size",
        "differs": "the accumulated gradient is not that of the full batch",
    }[kind]
    says += f": norm {ratio:.4g} of the full batch's, cosine {cosine:.4f}"
    found = cause.suspicious(says, **facts) if kind == "differs" else cause.fault(says, **facts)
    return Report("accumulation_check", (found,), facts)


def _mixes_rows(module: nn.Module) -> bool:
    active_dropout = isinstance(module, nn.modules.dropout._DropoutNd) and module.p > 0
    return module.training and (active_dropout or isinstance(module, _NormBase))


class _Enough(BaseException):
    """The first step is reached: the rest of the window must not run."""


def _gradient_of(
    run: Callable[[], object],
    model: nn.Module,
    named: dict[str, nn.Parameter],
    optimizer: Optimizer | None,
    parts: list[Tensor],
) -> Tensor:
    """Return the gradient at the first step as one vector; the gradients of each backward pass go to `parts`."""

    def stop(*_: Any) -> None:
        raise _Enough

    with untouched(model, optimizer):
        arrived: dict[str, Tensor] = {}

        def arriving(name: str) -> Callable[[Tensor], None]:
            def hook(gradient: Tensor) -> None:
                if name in arrived:
                    parts.append(_vector(named, arrived))
                    arrived.clear()
                arrived[name] = gradient.detach().clone()

            return hook

        for parameter in named.values():
            parameter.grad = None
        handles = [p.register_hook(arriving(name)) for name, p in named.items() if p.requires_grad]  # type: ignore[no-untyped-call]
        if optimizer is not None:
            handles.append(optimizer.register_step_pre_hook(stop))
        try:
            run()
        except _Enough:
            pass
        finally:
            for handle in handles:
                handle.remove()
        if arrived:
            parts.append(_vector(named, arrived))
        return _vector(named, {name: p.grad.clone() for name, p in named.items() if p.grad is not None})


def _vector(named: dict[str, nn.Parameter], gradients: dict[str, Tensor]) -> Tensor:
    parts = [
        values(gradients[name].to_dense() if gradients[name].is_sparse else gradients[name]).reshape(-1).double()
        if name in gradients
        else torch.zeros(parameter.numel(), dtype=torch.float64)
        for name, parameter in named.items()
    ]
    return torch.cat(parts)


def _kind(mine: Tensor, whole: Tensor, parts: list[Tensor]) -> str:
    """Tell how a window went wrong, from the gradients of its backward passes."""

    def equal(one: Tensor, other: Tensor) -> bool:
        return bool((one - other).abs().max() < EQUAL * other.abs().max())

    total = torch.stack(parts).sum(0)
    if len(parts) > 1 and equal(mine, parts[-1]) and not equal(mine, total):
        return "cleared"
    if not equal(mine, total):
        return "differs"
    scale = float(total @ whole / (whole @ whole))
    if scale > 1 + EQUAL and equal(total, whole * scale):
        return "summed"
    return "uneven"
