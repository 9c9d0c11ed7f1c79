"""See which loss functions of torch a loss calls, and with what."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from rerail.diagnostics.origins import user_place

LOSSES = {
    "cross_entropy", "nll_loss", "binary_cross_entropy", "binary_cross_entropy_with_logits", "kl_div", "mse_loss",
    "l1_loss", "smooth_l1_loss", "huber_loss", "gaussian_nll_loss", "poisson_nll_loss",
}  # fmt: skip
JOINING = {"sub", "__sub__", "__rsub__", "rsub", "mul", "__mul__", "eq", "__eq__", "pow", "maximum", "minimum"}


@dataclass(frozen=True)
class LossCall:
    """One call of a loss function of torch.

    Attributes:
        name: As in `torch.nn.functional`.
        given: Its arguments by name, the defaults included.
        place: `file:line` of the user's code.
    """

    name: str
    given: dict[str, Any]
    place: str


class LossSpy(TorchFunctionMode):
    """Record the loss functions that run inside the block, and arithmetic that makes two tensors into a larger one.

    Attributes:
        calls: The loss functions called, outermost first.
        broadcasts: `(shape, shape, shape of the result, place)` of arithmetic whose result is larger than both sides.
    """

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[LossCall] = []
        self.broadcasts: list[tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], str]] = []

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Record what counts, then run it."""
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name in LOSSES and getattr(functional, name, None) is func:
            bound = inspect.signature(func).bind(*args, **kwargs)
            bound.apply_defaults()
            self.calls.append(LossCall(name, dict(bound.arguments), user_place()))
        output = func(*args, **kwargs)
        if name in JOINING and isinstance(output, Tensor):
            sides = [side for side in args[:2] if isinstance(side, Tensor)]
            if len(sides) == 2 and output.numel() > max(side.numel() for side in sides) > 1:
                one, two = (tuple(side.shape) for side in sides)
                self.broadcasts.append((one, two, tuple(output.shape), user_place()))
        return output


def spied(loss_fn: Callable[..., Any], *given: Any) -> tuple[Any, LossSpy]:
    """Return what a loss gives, and what was seen."""
    spy = LossSpy()
    with torch.no_grad(), spy:
        loss = loss_fn(*given)
    return loss, spy
