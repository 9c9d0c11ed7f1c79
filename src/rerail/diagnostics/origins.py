"""Where values that are not finite were made: every operation of a step, forward and backward, is followed."""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakIdKeyDictionary

from rerail.diagnostics.calling import tensors
from rerail.diagnostics.finding import is_library
from rerail.diagnostics.state import values

ON_PURPOSE = {
    "masked_fill",
    "masked_fill_",
    "full",
    "full_like",
    "fill_",
    "tensor",
    "where",
    "new_full",
    "triu",
    "triu_",
}
# operations by which code writes an infinity on purpose: an additive mask

UNINTERESTING = {"backward", "__get__", "__set__", "register_hook", "is_floating_point", "is_complex", "size", "dim"}


@dataclass(frozen=True)
class Origin:
    """Where a value that is not finite was made.

    Attributes:
        operation: The name of the function.
        place: `file:line` of the user's code that called it.
        kind: "forward", "backward", "input" or "on purpose".
        inputs: What the operation got, in words.
        value: "nan", "inf" or "-inf".
    """

    operation: str
    place: str
    kind: str
    inputs: str
    value: str


class Recorder(TorchFunctionMode):
    """Follow every torch function of a step, and every node of its backward pass, until something is not finite."""

    def __init__(self) -> None:
        super().__init__()
        self.origins: Any = WeakIdKeyDictionary()  # of tensors that are not finite, Origin by tensor
        self.finite: Any = WeakIdKeyDictionary()  # the version of tensors that were seen to be finite
        self.calls: dict[Any, Origin] = {}  # what would be the origin, if this backward node gave the first
        self.backward: Origin | None = None
        self.first: Origin | None = None  # in forward, whether or not it did harm
        self.lost: list[Origin] = []  # what a backward pass started from
        self.stopped = False  # by a guard in the step
        self.operations = 0

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", str(func))
        if name in UNINTERESTING:
            return func(*args, **kwargs)
        given = [tensor for _, tensor in tensors((args, kwargs))]
        known = [self.origins.get(tensor) for tensor in given]
        place = user_place()
        for tensor, origin in zip(given, known, strict=True):
            if origin is None and not self._is_finite(tensor):
                maker = type(tensor.grad_fn).__name__ if tensor.grad_fn is not None else "an input"
                kind = "input" if tensor.grad_fn is None else "forward"
                self._note(tensor, Origin(maker, place, kind, "", _value(tensor)))
        output = func(*args, **kwargs)
        self.operations += 1
        made = [tensor for _, tensor in tensors(output)]
        if output is None or name.endswith("_") or name == "__setitem__":
            made += given[:1]  # it wrote into its first argument
        for tensor in made:
            self._follow(name, place, given, tensor)
        return output

    def _follow(self, name: str, place: str, given: list[Tensor], made: Tensor) -> None:
        if made.grad_fn is not None:
            hidden = [origin for origin in map(self.origins.get, given) if origin is not None]
            blamed = [origin for origin in hidden if origin.kind == "forward"]
            self._mark(made.grad_fn, blamed[0] if blamed else Origin(name, place, "backward", _described(given), ""))
        if self._is_finite(made):
            self.origins.pop(made, None)
            return
        value = _value(made)
        inherited = [origin for origin in map(self.origins.get, given) if origin is not None]
        worst = [origin for origin in inherited if origin.kind != "on purpose"]
        if worst:
            self.origins[made] = worst[0]
        elif inherited and (value != "nan" or "nan" in {origin.value for origin in inherited}):
            self.origins[made] = inherited[0]
        else:  # all inputs were finite, or a mask has become nan
            purpose = name in ON_PURPOSE and value != "nan"
            kind = "on purpose" if purpose else "forward"
            self._note(made, Origin(name, place, kind, _described(given), value))

    def _note(self, tensor: Tensor, origin: Origin) -> None:
        self.origins[tensor] = origin
        if self.first is None and origin.kind != "on purpose":
            self.first = origin

    def _mark(self, node: Any, call: Origin) -> None:
        """Give the new nodes behind a result to the call that made them, and watch each in the backward pass."""
        waiting = [node]
        while waiting:
            each = waiting.pop()
            if each is None or each in self.calls or hasattr(each, "variable"):
                continue
            self.calls[each] = call
            each.register_hook(lambda inner, outer, each=each: self._passed(each, inner, outer))
            waiting += [following for following, _ in each.next_functions]

    def _passed(self, node: Any, inner: tuple[Any, ...], outer: tuple[Any, ...]) -> None:
        if self.backward is not None:
            return
        with unrecorded(), torch.no_grad():
            arrived = [tensor for tensor in outer if isinstance(tensor, Tensor)]
            if all(map(is_finite, arrived)):
                broken = [tensor for tensor in inner if isinstance(tensor, Tensor) and not is_finite(tensor)]
                if broken:
                    origin = self.calls[node]
                    self.backward = origin if origin.value else replace(origin, value=_value(broken[0]))

    def differentiates(self, started: Any) -> None:
        """Note what a backward pass starts from, where that is not finite."""
        origins = (self.origins.get(tensor) for _, tensor in tensors(started))
        self.lost += [origin for origin in origins if origin is not None]

    def _is_finite(self, tensor: Tensor) -> bool:
        """Return whether all values are finite; a tensor that has not changed since is not looked at again."""
        version = tensor._version if not tensor.is_inference() else -1
        if self.finite.get(tensor) == version:
            return True
        with unrecorded(), torch.no_grad():
            finite = is_finite(tensor)
        if finite:
            self.finite[tensor] = version
        return finite


def is_finite(tensor: Tensor) -> bool:
    """Return whether all values are finite; whole numbers are."""
    held = values(tensor)
    return not (held.is_floating_point() or held.is_complex()) or bool(held.isfinite().all())


def _value(tensor: Tensor) -> str:
    held = values(tensor)
    if bool(held.isnan().any()):
        return "nan"
    return "inf" if held.is_complex() or bool((held == math.inf).any()) else "-inf"


def _described(given: list[Tensor]) -> str:
    """Say shape and range of the first inputs."""
    said = []
    with torch.no_grad(), torch._C.DisableTorchFunction():
        for tensor in given[:3]:
            held = values(tensor)
            span = ""
            if held.numel() and not held.is_complex():
                low, high = (float(end) for end in held.double().aminmax())
                span = f" from {low:.4g} to {high:.4g}"
            said.append(f"{tuple(held.shape)}{span}")
    return ", ".join(said)


def user_place() -> str:
    """Return `file:line` of the innermost frame that is neither torch nor this module."""
    frame = sys._getframe(2)
    while frame is not None:
        path = frame.f_code.co_filename
        if path != __file__ and not is_library(path):
            return f"{path}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
    return ""


@contextlib.contextmanager
def unrecorded() -> Iterator[None]:
    """Look at a tensor without being recorded."""
    with torch._C.DisableTorchFunction():
        yield


@contextlib.contextmanager
def told_of_backward(recorder: Recorder) -> Iterator[None]:
    """Tell the recorder what every backward pass starts from: all of them go through these two functions."""
    kept = {name: getattr(torch.autograd, name) for name in ("backward", "grad")}

    def telling(function: Callable[..., Any]) -> Callable[..., Any]:
        def told(started: Any, *args: Any, **kwargs: Any) -> Any:
            recorder.differentiates(started)
            return function(started, *args, **kwargs)

        return told

    for name, function in kept.items():
        setattr(torch.autograd, name, telling(function))
    try:
        yield
    finally:
        for name, function in kept.items():
            setattr(torch.autograd, name, function)
