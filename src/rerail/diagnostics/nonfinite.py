"""The first non-finite value of a step: the operation, the optimizer or the scale that made it."""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakIdKeyDictionary

from rerail.diagnostics.calling import eager, named_parameters, tensors
from rerail.diagnostics.finding import Cause, Finding, Report, answers, is_library
from rerail.diagnostics.state import untouched, values
from rerail.diagnostics.update import as_list

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

NO_FIX = ("nan_to_num on the result or on the gradient", "clipping", "skipping the batch", "a smaller rate")
FORWARD = Cause(
    "gradient_path.non_finite_forward",
    refute="the value is masked on purpose before anything trains on it",
    next="print the smallest and the largest input of this operation, and where they come from",
    wrong_fixes=NO_FIX,
)
BACKWARD = Cause(
    "gradient_path.non_finite_backward",
    refute="the derivative of this operation is infinite there, and the infinite gradient is meant to be used",
    next="make the input safe before the operation (inner `where`, clamp), and compare the gradient with its limit",
    wrong_fixes=NO_FIX,
)
INPUT = Cause(
    "values.non_finite_input",
    refute="missing values are coded as nan and masked later",
    next="find the rows in the raw data, and the step of the preprocessing that made them",
    wrong_fixes=NO_FIX,
)
PARAMETER = Cause(
    "update.non_finite_parameter",
    refute="",
    next="go back to a checkpoint in which all parameters and the optimizer's state are finite, and replay from there",
    wrong_fixes=("replacing the nan in the weight: the optimizer's averages keep it", *NO_FIX),
)
OPTIMIZER = Cause(
    "update.non_finite_update",
    refute="",
    next="print rate, epsilon and the optimizer's averages for this parameter",
    wrong_fixes=NO_FIX,
)
OVERFLOW = Cause(
    "update.scale_overflow",
    refute="a scaler that is passed as `scaler=` skips the step and lowers its scale",
    next="let a gradient scaler step the optimizer, or lower the scale",
    wrong_fixes=NO_FIX,
)


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


@answers
def first_nonfinite(
    step: Callable[[], object],
    model: nn.Module,
    optimizer: Optimizer | Sequence[Optimizer] | None = None,
    *,
    scaler: Any = None,
    batch: Any = None,
) -> Report:
    """Replay one failing step, and name the operation that made the first value that is not finite.

    Everything is put back afterwards. Anomaly mode names the first backward node that returns a nan; this looks for
    the first operation, forward or backward, that got finite values and gave one that is not, an infinity included.
    An infinity that code writes on purpose, as a mask, counts only where something turns it into nan.

    Args:
        step: Makes the failing step, from the forward pass to the optimizer's step, on the failing batch.
        model: The model that it trains.
        optimizer: Its optimizer or optimizers.
        scaler: Its gradient scaler.
        batch: The batch, if its tensors shall be named in the answer.

    Returns:
        A report: ok where the step leaves everything finite; else the origin with file and line.

    Example:
        ```python
        print(rerail.first_nonfinite(lambda: training_step(bad_batch), model, optimizer))
        ```
    """
    named = dict(named_parameters(model))
    optimizers = [] if optimizer is None else as_list(optimizer)
    before = [name for name, parameter in named.items() if not _finite(parameter)]
    before += [name for name, buffer in model.named_buffers() if not _finite(buffer)]
    stored = [name for each in optimizers for name in _broken_state(each, named)]
    if before or stored:
        says = (
            f"before the step {len(before)} parameters and buffers and {len(stored)} of the optimizer's averages "
            "were already not finite"
        )
        return Report("first_nonfinite", (PARAMETER.fault(says, where=[*before, *stored]),))
    inputs = [name for name, tensor in tensors(batch) if not _finite(tensor)]
    generators = torch.get_rng_state()
    outcome = _replayed(step, model, named, optimizers, scaler)
    if outcome.finding is None:
        return Report("first_nonfinite", (), {"operations": outcome.operations, "skipped_by_scaler": outcome.skipped})
    if outcome.finding.cause in (FORWARD.ident, BACKWARD.ident) and scaler is not None and scaler.is_enabled():
        torch.set_rng_state(generators)
        outcome = _without_scale(step, model, named, optimizers, scaler, outcome)
    found = [INPUT.fault(f"{len(inputs)} tensors of the batch are not finite", where=inputs)] if inputs else []
    if outcome.finding is None:
        return Report("first_nonfinite", (), {"operations": outcome.operations, "skipped_by_scaler": outcome.skipped})
    return Report("first_nonfinite", (*found, outcome.finding), {"operations": outcome.operations})


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
        broken = [name for name, tensor in looked.items() if not _finite(tensor)]
    if broken:
        when = "" if step is None else f" at step {step}"
        rest = f" and {len(broken) - 4} more" if len(broken) > 4 else ""
        raise NonFinite(
            f"not finite{when}: {', '.join(broken[:4])}{rest}; replay the step with `rerail.first_nonfinite` to find "
            "where it begins"
        )


@dataclass
class _Outcome:
    finding: Finding | None
    operations: int
    skipped: bool = False


class _Recorder(TorchFunctionMode):
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
        with _unrecorded(), torch.no_grad():
            arrived = [tensor for tensor in outer if isinstance(tensor, Tensor)]
            if all(map(_finite, arrived)):
                broken = [tensor for tensor in inner if isinstance(tensor, Tensor) and not _finite(tensor)]
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
        with _unrecorded(), torch.no_grad():
            finite = _finite(tensor)
        if finite:
            self.finite[tensor] = version
        return finite


def _replayed(
    step: Callable[[], object],
    model: nn.Module,
    named: dict[str, nn.Parameter],
    optimizers: list[Optimizer],
    scaler: Any,
) -> _Outcome:
    """Make the step under a recorder, put everything back, and judge what was recorded."""
    recorder = _Recorder()
    gradients: dict[str, bool] = {}
    steps: list[str] = []
    result: object = None

    def look(optimizer: Optimizer, *_: Any) -> None:
        with _unrecorded():
            steps.append("step")
            gradients.update({name: _finite(p.grad) for name, p in named.items() if p.grad is not None})

    with untouched(model, *optimizers, scaler), torch.enable_grad(), eager():
        for parameter in named.values():
            parameter.grad = None
        handles = [each.register_step_pre_hook(look) for each in optimizers]
        try:
            with recorder, _told_of_backward(recorder):
                result = step()
        except FloatingPointError:
            recorder.stopped = True  # a guard of the user's own: what was recorded until then is what counts
        except RuntimeError as error:
            if "nan values" not in str(error) and "non-finite" not in str(error):
                raise
            recorder.stopped = True
        finally:
            for handle in handles:
                handle.remove()
        after = [name for name, parameter in named.items() if not _finite(parameter)]
        after += [name for each in optimizers for name in _broken_state(each, named)]
        left = [name for name, p in named.items() if p.grad is not None and not _finite(p.grad)]
    if isinstance(result, Tensor) and not _finite(result) and recorder.origins.get(result) is not None:
        recorder.lost.append(recorder.origins[result])
    skipped = scaler is not None and bool(scaler.is_enabled()) and not steps and bool(left)
    return _Outcome(_judged(recorder, gradients, after, left, result), recorder.operations, skipped)


def _judged(
    recorder: _Recorder, gradients: dict[str, bool], after: list[str], left: list[str], result: object
) -> Finding | None:
    """Choose the earliest origin of what did harm: a lost loss before a gradient before an update."""
    broken = [name for name, finite in gradients.items() if not finite] or left
    if recorder.lost:
        return _from_forward(recorder.lost[0])
    if recorder.backward is not None:
        origin = recorder.backward
        if origin.kind == "forward":  # hidden from the loss, and back with the gradient
            return _from_forward(origin)
        says = (
            f"the backward pass of `{origin.operation}` got finite gradients and gave {origin.value}; "
            f"its inputs in forward: {origin.inputs}"
        )
        return BACKWARD.fault(says, where=_where(origin), operation=origin.operation, reached=tuple(broken[:8]))
    if recorder.stopped and recorder.first is not None:
        return _from_forward(recorder.first)
    if isinstance(result, Tensor) and not _finite(result):
        return FORWARD.fault("the result of the step is not finite, and no operation was seen to make it")
    if after:
        says = f"loss and gradients were finite, the step left {len(after)} parameters or averages that are not"
        return OPTIMIZER.fault(says, where=after)
    if broken:
        says = f"{len(broken)} gradients are not finite, and no operation was seen to make them"
        return BACKWARD.fault(says, where=broken)
    return None


def _from_forward(origin: Origin) -> Finding:
    if origin.kind == "input":
        return INPUT.fault(f"a tensor that came into the step held {origin.value}", where=_where(origin))
    says = f"`{origin.operation}` gave the first {origin.value} of the forward pass"
    if origin.inputs:
        says += f"; its inputs: {origin.inputs}"
    return FORWARD.fault(says, where=_where(origin), operation=origin.operation, value=origin.value)


def _without_scale(
    step: Callable[[], object],
    model: nn.Module,
    named: dict[str, nn.Parameter],
    optimizers: list[Optimizer],
    scaler: Any,
    scaled: _Outcome,
) -> _Outcome:
    """Replay with the scale 1: what is finite then had overflowed by the scale alone, and a skip is healthy."""
    kept = scaler._scale, scaler._init_scale
    try:
        scaler._init_scale = 1.0
        if scaler._scale is not None:
            scaler._scale = torch.ones_like(scaler._scale)
        again = _replayed(step, model, named, optimizers, scaler)
    finally:
        scaler._scale, scaler._init_scale = kept
    if again.finding is not None:
        return again
    if scaled.skipped:
        return _Outcome(None, scaled.operations, skipped=True)
    says = f"gradients overflow by the scale {kept[1]:.4g} alone, and the step was made with them"
    return _Outcome(OVERFLOW.fault(says), scaled.operations)


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


def _finite(tensor: Tensor) -> bool:
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


def _where(origin: Origin) -> tuple[str, ...]:
    return (origin.place,) if origin.place else ()


def user_place() -> str:
    """Return `file:line` of the innermost frame that is neither torch nor this module."""
    frame = sys._getframe(2)
    while frame is not None:
        path = frame.f_code.co_filename
        if path != __file__ and not is_library(path):
            return f"{path}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
    return ""


def _broken_state(optimizer: Optimizer, named: dict[str, nn.Parameter]) -> list[str]:
    names = {id(parameter): name for name, parameter in named.items()}
    return [
        f"{names.get(id(key), 'a parameter')} ({kind})"
        for key, state in optimizer.state.items()
        for kind, value in state.items()
        if isinstance(value, Tensor) and not _finite(value)
    ]


@contextlib.contextmanager
def _unrecorded() -> Iterator[None]:
    """Look at a tensor without being recorded."""
    with torch._C.DisableTorchFunction():
        yield


@contextlib.contextmanager
def _told_of_backward(recorder: _Recorder) -> Iterator[None]:
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
