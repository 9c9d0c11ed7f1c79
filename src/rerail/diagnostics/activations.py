"""See what an activation lets through: units that are 0 on the whole batch, outputs on the flat ends."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from rerail.diagnostics.finding import is_library

RELU = {"relu", "relu_", "relu6"}
BOUNDED = {"tanh": (-0.99, 0.99), "tanh_": (-0.99, 0.99), "sigmoid": (0.005, 0.995), "sigmoid_": (0.005, 0.995)}
# beyond these less than 2 % of the gradient passes: 1 - 0.99**2, and 0.995 * 0.005 of at most 0.25


class Activations(TorchFunctionMode):
    """Measure every rectifier, tanh and sigmoid that runs inside the block, called as a module or as a function.

    Args:
        model: The model that runs, for the names of its modules.

    Attributes:
        dead: `(name, share of the units that are 0 on the whole batch, values of a unit)`, in the order of the calls.
        saturated: `(name, share of the outputs on the flat ends, values of a unit)`.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.dead: list[tuple[str, float, int]] = []
        self.saturated: list[tuple[str, float, int]] = []
        self._found: list[tuple[str, str, Tensor]] = []
        self._stack: list[str] = []
        self._model = model
        self._handles: list[Any] = []

    def __enter__(self) -> Self:
        """Begin to measure."""
        for name, module in self._model.named_modules():
            self._handles.append(module.register_forward_pre_hook(lambda *_, name=name: self._stack.append(name)))
            self._handles.append(module.register_forward_hook(self._leave, always_call=True))
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Take the hooks away and count."""
        super().__exit__(kind, error, trace)  # type: ignore[no-untyped-call]
        for handle in self._handles:
            handle.remove()
        with torch.no_grad():
            for name, place, output in self._found:
                self._count(name, place, output)
        self._found.clear()

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run a torch function; keep what an activation gave."""
        output = func(*args, **(kwargs or {}))
        name = getattr(func, "__name__", "")
        if (name in RELU or name in BOUNDED) and isinstance(output, Tensor) and output.ndim > 1:
            self._found.append((name, self._place(), output.detach()))
        return output

    def worst(self, kind: str) -> float | None:
        """Return the largest share of "dead" or "saturated", None if nothing of that kind ran."""
        return max((share for _, share, _ in getattr(self, kind)), default=None)

    def _leave(self, *_: Any) -> None:
        self._stack.pop()

    def _place(self) -> str:
        name = self._stack[-1] if self._stack else ""
        frame = sys._getframe(2)
        while frame is not None and is_library(frame.f_code.co_filename):
            frame = frame.f_back  # type: ignore[assignment]
        line = f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame is not None else ""
        return f"{name or 'the model'} ({line})" if line and "rerail/diagnostics" not in line else name or "the model"

    def _count(self, name: str, place: str, output: Tensor) -> None:
        units = (
            output.transpose(0, 1).reshape(output.shape[1], -1)
            if output.ndim == 4
            else output.reshape(-1, output.shape[-1]).T
        )
        if not units.numel():
            return
        if name in RELU:
            self.dead.append((place, float((units == 0).all(1).float().mean()), units.shape[1]))
        else:
            low, high = BOUNDED[name]
            self.saturated.append((place, float(((units < low) | (units > high)).float().mean()), units.shape[1]))
