"""A gradient that is finite and wrong: the comparison with finite differences of the loss."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from rerail.diagnostics.calling import call, named_parameters, wide
from rerail.diagnostics.finding import CannotAnswer, Cause, Report, answers
from rerail.diagnostics.state import untouched

DIFFERENT = 1e-3  # relative; central differences in float64 agree to 1e-7 where the loss is smooth

WRONG_GRADIENT = Cause(
    "gradient_path.wrong_gradient",
    refute="the gradient is an estimate on purpose (straight-through, a surrogate), or the loss has a kink just here",
    next="torch.autograd.gradcheck on the smallest function that still differs",
    wrong_fixes=("nan_to_num on the gradient", "writing through .data"),
)


@answers
def gradient_check(
    model: nn.Module,
    loss_fn: Callable[..., Any] | None,
    batch: Any,
    *,
    forward: Callable[[nn.Module, Any], Any] | None = None,
    directions: int = 3,
) -> Report:
    """Compare the gradient with finite differences of the loss, in float64, along random directions.

    It finds gradients that are finite and wrong: a write through `.data`, a nan replaced by 0 on its way back.

    Args:
        model: The model; noise is drawn alike in every pass.
        loss_fn: As in `gradient_report`.
        batch: As in `gradient_report`; floating point tensors are cast to float64.
        forward: As in `gradient_report`.
        directions: How many directions are tried.

    Returns:
        A report with the largest relative difference. A loss with kinks is smooth along a short line almost always.

    Source:
        The central difference with a step of the cube root of the machine precision: Nocedal & Wright, Numerical
        Optimization, section 8.1.
    """
    named = [(name, parameter) for name, parameter in named_parameters(model) if parameter.requires_grad]
    batch_wide = wide(batch)
    step = torch.finfo(torch.float64).eps ** (1 / 3)
    with untouched(model, loss_fn if isinstance(loss_fn, nn.Module) else None), torch.enable_grad():
        model.double()
        state = torch.get_rng_state()

        def loss() -> Tensor:
            torch.set_rng_state(state)
            return call(model, loss_fn, batch_wide, forward).loss.sum()

        for _, parameter in named:
            parameter.grad = None
        torch.autograd.backward(loss())
        generator = torch.Generator().manual_seed(0)
        worst, pair = 0.0, (0.0, 0.0)
        for _ in range(directions):
            line = [torch.randn(p.shape, generator=generator, dtype=torch.float64).to(p.device) for _, p in named]
            slope = sum(float((p.grad * d).sum()) for (_, p), d in zip(named, line, strict=True) if p.grad is not None)
            ends = []
            for sign in (1, -1):
                _shift(named, line, sign * step)
                ends.append(float(loss().detach()))
                _shift(named, line, -sign * step)
            measured = (ends[0] - ends[1]) / (2 * step)
            size = max(abs(slope), abs(measured), 1e-12)
            difference = abs(slope - measured) / size
            if not difference <= worst:
                worst, pair = difference, (slope, measured)
    facts: dict[str, Any] = {"largest_difference": worst, "gradient": pair[0], "finite_difference": pair[1]}
    if not math.isfinite(worst):
        raise CannotAnswer(f"the loss or its gradient is not finite along a line: {pair[0]:.4g} and {pair[1]:.4g}")
    if worst > DIFFERENT:
        says = f"the gradient along a line is {pair[0]:.4g}, the loss changes by {pair[1]:.4g}"
        return Report("gradient_check", (WRONG_GRADIENT.suspicious(says, **facts),), facts)
    return Report("gradient_check", (), facts)


def _shift(named: list[tuple[str, nn.Parameter]], line: list[Tensor], length: float) -> None:
    with torch.no_grad():
        for (_, parameter), direction in zip(named, line, strict=True):
            parameter.add_(direction, alpha=length)
