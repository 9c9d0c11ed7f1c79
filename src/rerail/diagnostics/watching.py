"""Record what a training step really does to gradients and parameters: the order of events, and the numbers at each.

Hooks on the parameters tell when a backward pass adds to a gradient, and to what; hooks on the optimizer tell what
`step` found and what it changed; `zero_grad`, the clipping of `torch.nn.utils` and the scaler are wrapped while the
watch lasts. A hook that fails ends the watch and is told in `problem`: it never reaches the run.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad
from torch.optim import Optimizer

from rerail.diagnostics.calling import named_parameters, optimizer_parameters
from rerail.diagnostics.state import values

SCALED = 1 - 1e-3  # a norm below this share of what it was, was scaled: rounding moves a float16 norm by 1e-3 at most
NARROW = (torch.float16, torch.bfloat16)  # dtypes whose norms overflow or round
ALIKE = 1e-2  # spread of the factors of all tensors under which they were scaled by one factor


@dataclass
class Step:
    """One `optimizer.step`: what it found and what it changed, by parameter name.

    Attributes:
        gradient_norms: Of the gradients as `step` found them; None where there was no gradient.
        weight_norms: Before the step.
        update_norms: Of the difference that the step made.
        moved: The share of elements with a non-zero gradient that changed, in [0, 1].
        rates: The learning rate of each parameter's group.
        backwards: How many backward passes were made since the gradients were last used or cleared.
        unclipped_norm: The norm of all gradients as the last backward pass left them, in the scale of `step`.
        norm: The norm of all gradients that `step` used.
        closure: Whether `step` was given a closure, which makes its own backward passes.
    """

    gradient_norms: dict[str, float | None]
    weight_norms: dict[str, float]
    rates: dict[str, float]
    backwards: int
    unclipped_norm: float
    norm: float
    closure: bool
    update_norms: dict[str, float] = field(default_factory=dict)
    moved: dict[str, float] = field(default_factory=dict)


class StepWatch:
    """Watch training steps between `start` and `stop`.

    Attributes:
        events: What happened, in order: "backward", "zero", "clip", "unscale", "scaled step", "step".
        steps: A `Step` for each call of `optimizer.step`.
        stale: Parameters whose gradient a backward pass added to one that a step had already used.
        cleared: The number of steps before which the gradients of a backward pass were cleared.
        clipped_after: The factors by which gradients were scaled after a step had used them.
        clips: `(place, norm, max_norm)` for each call that clips: place is "before backward", "scaled", "after step"
            or "in order".
        modes: Whether the model was in train mode, at each backward pass.
        repeated: The number of steps that used gradients which another step had used, with no backward pass between.
        skipped: The number of steps that a scaler asked for and did not make: a gradient was not finite.
        extra: Names of parameters that the optimizer holds and the model does not.
        problem: Why the watch ended early, or "".
    """

    def __init__(self, model: nn.Module, optimizers: Sequence[Optimizer], *, scaler: Any = None) -> None:
        named = dict(named_parameters(model))
        known = {id(parameter) for parameter in named.values()}
        held = [parameter for optimizer in optimizers for parameter in optimizer_parameters(optimizer)]
        extra = [parameter for parameter in dict.fromkeys(held) if id(parameter) not in known]
        self.model, self.optimizers, self.scaler = model, list(optimizers), scaler
        self.extra = [f"optimizer entry {number} {tuple(p.shape)}" for number, p in enumerate(extra, 1)]
        self.parameters: dict[str, Tensor] = {**named, **dict(zip(self.extra, extra, strict=True))}
        self.events: list[str] = []
        self.steps: list[Step] = []
        self.stale: set[str] = set()
        self.cleared = 0
        self.clipped_after: list[float] = []
        self.clips: list[tuple[str, float, float]] = []
        self.modes: list[bool] = []  # of the model, at each backward pass
        self.repeated = 0  # steps that used gradients which a step had already used
        self.skipped = 0  # steps that a scaler asked for and did not make
        self.problem = ""
        self._undo: list[Callable[[], None]] = []
        self._names = {id(parameter): name for name, parameter in self.parameters.items()}
        self._reset()

    def _reset(self) -> None:
        self._used: set[str] = set()  # parameters whose gradient a step has used and nobody has cleared since
        self._after_step: dict[str, float] = {}
        self._backward_norms: dict[str, Tensor] = {}
        self._begun: set[str] = set()  # parameters that the present backward pass has reached
        self._backwards = 0
        self._thrown_away = False  # gradients were cleared that no step had used
        self._unscaled = self._scaling = False
        self._first_clip = 0  # of `clips`, since the last step
        self._before: dict[str, Tensor] = {}

    def start(self) -> None:
        """Put the hooks in place."""
        for name, parameter in self.parameters.items():
            if parameter.requires_grad and parameter.is_leaf:
                arriving = functools.partial(self._arriving, name)
                self._hold(parameter.register_hook(arriving))  # type: ignore[no-untyped-call]
                accumulated = functools.partial(self._accumulated, name)
                self._hold(parameter.register_post_accumulate_grad_hook(accumulated))  # type: ignore[no-untyped-call]
        for optimizer in self.optimizers:
            self._hold(optimizer.register_step_pre_hook(self._before_step))
            self._hold(optimizer.register_step_post_hook(self._after))
        for owner in (self.model, *self.optimizers):
            self._wrap(owner, "zero_grad", before=self._zeroing)
        self._wrap(clip_grad, "_clip_grads_with_norm_", before=self._clipping)
        self._wrap(clip_grad, "clip_grad_value_", before=self._clipping_values)
        scaler = type(self.scaler) if self.scaler is not None else torch.amp.GradScaler
        self._wrap(scaler, "unscale_", before=self._unscaling)
        self._wrap(scaler, "step", before=self._scaled_step)

    def stop(self) -> None:
        """Take every hook and wrapper away; what was recorded stays."""
        self._guard(self._look_for_scaling)
        self.skipped += self._scaling
        while self._undo:
            self._undo.pop()()

    def _hold(self, handle: Any) -> None:
        self._undo.append(handle.remove)

    def _wrap(self, owner: Any, name: str, *, before: Callable[..., None]) -> None:
        """Call `before` with the same arguments ahead of a method or function, until `stop`."""
        original = getattr(owner, name, None)
        if original is None:
            return
        own = name in vars(owner)

        @functools.wraps(original)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            self._guard(before, *args, **kwargs)
            return original(*args, **kwargs)

        setattr(owner, name, wrapper)
        self._undo.append(lambda: setattr(owner, name, original) if own else delattr(owner, name))

    def _guard(self, function: Callable[..., None], *args: Any, **kwargs: Any) -> None:
        if self.problem:
            return
        try:
            with torch.no_grad():
                function(*args, **kwargs)
        except Exception as error:  # a watch that fails must not end the run that it watches
            self.problem = f"the watch ended: {type(error).__name__}: {error}"

    def _arriving(self, name: str, gradient: Tensor) -> None:
        self._guard(self._arrive, name)

    def _arrive(self, name: str) -> None:
        if name in self._begun or not self._begun:  # the first parameter of a new backward pass
            self._look_for_scaling()
            self._begun.clear()
            self._backwards += 1
            self._unscaled = self._thrown_away = False
            self.events.append("backward")
            self.modes.append(self.model.training)
        self._begun.add(name)
        held = self.parameters[name].grad
        if name in self._used:
            self._used.discard(name)
            if held is not None and bool(values(held).any()):
                self.stale.add(name)

    def _accumulated(self, name: str, parameter: Tensor) -> None:
        self._guard(self._accumulate, name, parameter)

    def _accumulate(self, name: str, parameter: Tensor) -> None:
        if parameter.grad is not None:
            self._backward_norms[name] = _norm(parameter.grad)

    def _zeroing(self, *args: Any, **kwargs: Any) -> None:
        self._look_for_scaling()
        self._thrown_away |= self._backwards > 0 and not self._scaling
        self._forget()
        self._used.clear()
        self.events.append("zero")

    def _forget(self) -> None:
        """Begin a new window: what is in the gradients now was used, cleared, or skipped by a scaler."""
        self.skipped += self._scaling
        self._backward_norms.clear()
        self._backwards = 0
        self._begun.clear()
        self._unscaled = self._scaling = False
        self._first_clip = len(self.clips)

    def _clipping(self, parameters: Any, max_norm: float, total_norm: Any = math.nan, *rest: Any) -> None:
        parameters = [parameters] if isinstance(parameters, Tensor) else list(parameters)
        if any(id(parameter) in self._names for parameter in parameters) and math.isfinite(float(max_norm)):
            self._clip(float(total_norm), float(max_norm))

    def _clipping_values(self, parameters: Any, clip_value: float, *rest: Any, **kwargs: Any) -> None:
        if not isinstance(parameters, Tensor) and not isinstance(parameters, (list, tuple)):
            return  # a generator: to look at it would use it up
        self._clipping(parameters, clip_value)

    def _clip(self, norm: float, max_norm: float) -> None:
        place = "in order"
        if not self._backwards:
            place = "after step" if self._used else "before backward"
        self.clips.append((place, norm, max_norm))
        self._begun.clear()
        self.events.append("clip")

    def _unscaling(self, *args: Any, **kwargs: Any) -> None:
        self._unscaled = True
        self._begun.clear()
        self.events.append("unscale")

    def _scaled_step(self, scaler: Any, *args: Any, **kwargs: Any) -> None:
        self.scaler = scaler
        if not self._scale_is(1.0) and not self._unscaled:
            late = [
                ("scaled" if place == "in order" else place, *rest) for place, *rest in self.clips[self._first_clip :]
            ]
            self.clips[self._first_clip :] = late  # type: ignore[assignment]
        self._scaling = True
        self.events.append("scaled step")

    def _scale_is(self, scale: float) -> bool:
        return self._scale() == scale

    def _before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        self._guard(self._before_stepping, optimizer, args, kwargs)

    def _before_stepping(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        closure = any(callable(each) for each in (*args, *kwargs.values()))
        rates = {self._names[id(p)]: float(group["lr"]) for group in optimizer.param_groups for p in group["params"]}
        self._before = {name: parameter.detach().clone() for name, parameter in self.parameters.items()}
        found = {name: None if self.parameters[name].grad is None else self.parameters[name].grad for name in rates}
        norms = _norms({name: gradient for name, gradient in found.items() if gradient is not None})
        if not closure and not self._backwards and any(norm > 0 and name in self._used for name, norm in norms.items()):
            self.repeated += 1
        backward = [norm for name, norm in self._backward_norms.items() if name in rates]
        whole = float(torch.stack(backward).norm()) if backward else 0.0
        norm = math.hypot(*norms.values()) if norms else 0.0
        if not closure and norm == 0 and (self._thrown_away or (self._backwards and whole > 0)):
            self.cleared += 1
        if self._scaling or self._unscaled:
            whole /= self._scale()
        self.steps.append(
            Step(
                {name: norms.get(name) for name in rates}, _norms(self._before), rates,
                self._backwards, whole, norm, closure,
            )
        )  # fmt: skip

    def _scale(self) -> float:
        return float(self.scaler.get_scale()) if self.scaler is not None and self.scaler.is_enabled() else 1.0

    def _after(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        self._guard(self._after_stepping)

    def _after_stepping(self) -> None:
        step = self.steps[-1]
        moved = [name for name, each in self.parameters.items() if each.dtype in NARROW]
        difference = {name: self._difference(name) for name in self.parameters}
        step.update_norms.update(_norms(difference))
        step.moved.update({name: float(norm > 0) for name, norm in step.update_norms.items()})
        for name in moved:  # where an update may be rounded away in a part of the elements
            gradient = self.parameters[name].grad
            if gradient is not None and not gradient.is_sparse and gradient.shape == difference[name].shape:
                live = gradient != 0
                step.moved[name] = float((difference[name] != 0)[live].float().mean()) if bool(live.any()) else 0.0
        self._before = {}
        if not step.closure:
            norms = step.gradient_norms.items()
            self._after_step = {name: norm for name, norm in norms if norm is not None and norm > 0}
        self._used = {name for name, norm in step.gradient_norms.items() if norm}
        self._scaling = self._thrown_away = False
        self._forget()
        self.events.append("step")

    def _difference(self, name: str) -> Tensor:
        """Return the change of a parameter but for its sign, in the memory of its copy."""
        before, now = self._before[name], values(self.parameters[name])
        return before.sub_(now) if before.shape == now.shape and before.dtype == now.dtype else now

    def _gradients(self) -> dict[str, Tensor]:
        return {name: p.grad for name, p in self.parameters.items() if p.is_leaf and p.grad is not None}

    def _look_for_scaling(self) -> None:
        """See whether somebody scaled the gradients after the step that used them: a clip that comes too late."""
        before, self._after_step = self._after_step, {}
        if not before:
            return
        now = _norms({name: gradient for name, gradient in self._gradients().items() if name in before})
        factors = [now[name] / before[name] for name in now]
        if (
            len(factors) == len(before)
            and 0 < max(factors) < SCALED
            and max(factors) - min(factors) < ALIKE * max(factors)
        ):
            self.clipped_after.append(max(factors))


def _norm(tensor: Tensor) -> Tensor:
    """Return the norm of a tensor of any kind, as a scalar that no overflow of its own dtype has made infinite."""
    held = values(tensor)
    if held.dtype in NARROW:
        held = held.float()
    elif not (held.is_floating_point() or held.is_complex()):
        held = held.double()
    norm: Tensor = torch.linalg.vector_norm(held)
    return norm.real.double()


def _norms(tensors: dict[str, Tensor]) -> dict[str, float]:
    """Return the norms of many tensors with one transfer from the device."""
    plain = {
        name for name, tensor in tensors.items() if tensor.layout == torch.strided and tensor.dtype == torch.float32
    }
    together = torch._foreach_norm([tensors[name].detach() for name in plain]) if plain else ()
    norms = dict(zip(plain, together, strict=True))
    norms |= {name: _norm(tensor) for name, tensor in tensors.items() if name not in plain}
    if not norms:
        return {}
    numbers = torch.stack([norms[name].double().cpu() for name in tensors]).tolist()
    found = dict(zip(tensors, numbers, strict=True))
    for name in plain:  # squares of more than 1e19 overflow a float32
        if math.isinf(found[name]):
            found[name] = float(torch.linalg.vector_norm(tensors[name].detach().double()))
    return found
