"""A guard for the loop: it raises where a loss, a gradient, a parameter or an average is not finite."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from rerail.diagnostics.origins import is_finite
from rerail.diagnostics.state import values


class NonFinite(FloatingPointError):
    """What `finite_guard` raises: the names of what is not finite."""


def finite_guard(
    model: nn.Module | None = None,
    *,
    loss: Tensor | None = None,
    optimizer: Optimizer | None = None,
    step: object = None,
) -> None:
    """Raise if the loss, a gradient, a parameter, a buffer or an optimizer's average is not finite.

    Use it before backward (`loss=`), after backward and after the step (`model`, `optimizer`). It looks with one
    transfer from the device, and names what it found only when something is wrong. Sparse gradients, losses of one
    value a row and lazy parameters are fine.

    Args:
        model: Its parameters, gradients and buffers are looked at.
        loss: A tensor of any shape.
        optimizer: Its state is looked at.
        step: The number of the step, for the message.

    Raises:
        NonFinite: A `FloatingPointError` with the names; the first is where to look.
    """
    looked = dict(_looked_at(model, loss, optimizer))
    with torch.no_grad():
        if _all_finite(looked):
            return
        broken = [name for name, tensor in looked.items() if not is_finite(tensor)]
    if broken:
        when = "" if step is None else f" at step {step}"
        rest = f" and {len(broken) - 4} more" if len(broken) > 4 else ""
        raise NonFinite(
            f"not finite{when}: {', '.join(broken[:4])}{rest}; replay the step with `rerail.first_nonfinite` to find "
            "where it begins"
        )


def _looked_at(
    model: nn.Module | None, loss: Tensor | None, optimizer: Optimizer | None
) -> Iterator[tuple[str, Tensor]]:
    if loss is not None:
        yield "loss", loss
    if model is not None:
        for name, parameter in model.named_parameters():
            if nn.parameter.is_lazy(parameter):
                continue
            yield name, parameter
            if parameter.grad is not None:
                yield f"{name}.grad", parameter.grad
        yield from ((name, buffer) for name, buffer in model.named_buffers() if not nn.parameter.is_lazy(buffer))
    if optimizer is not None:
        for number, state in enumerate(optimizer.state.values()):
            yield from (
                (f"optimizer state {number} {key}", value) for key, value in state.items() if isinstance(value, Tensor)
            )


def _all_finite(looked: Mapping[str, Tensor]) -> bool:
    """Return whether all values are finite, with one transfer for each dtype; False also where a norm overflows."""
    by_dtype: dict[torch.dtype, list[Tensor]] = {}
    for tensor in looked.values():
        held = values(tensor)
        if held.numel() and (held.is_floating_point() or held.is_complex()):
            by_dtype.setdefault(held.dtype, []).append(held)
    norms = (torch.stack(torch._foreach_norm(group)) for group in by_dtype.values())
    return all(bool(each.isfinite().all()) for each in norms)
