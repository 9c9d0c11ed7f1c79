"""The first non-finite value of a step: the operation, the optimizer or the scale that made it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from rerail.diagnostics.calling import eager, named_parameters, tensors
from rerail.diagnostics.entries import as_list
from rerail.diagnostics.finding import Cause, Finding, Report, answers
from rerail.diagnostics.origins import Origin, Recorder, is_finite, told_of_backward, unrecorded
from rerail.diagnostics.state import untouched

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
    before = [name for name, parameter in named.items() if not is_finite(parameter)]
    before += [name for name, buffer in model.named_buffers() if not is_finite(buffer)]
    stored = [name for each in optimizers for name in _broken_state(each, named)]
    if before or stored:
        says = (
            f"before the step {len(before)} parameters and buffers and {len(stored)} of the optimizer's averages "
            "were already not finite"
        )
        return Report("first_nonfinite", (PARAMETER.fault(says, where=[*before, *stored]),))
    inputs = [name for name, tensor in tensors(batch) if not is_finite(tensor)]
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


@dataclass
class _Outcome:
    finding: Finding | None
    operations: int
    skipped: bool = False


def _replayed(
    step: Callable[[], object],
    model: nn.Module,
    named: dict[str, nn.Parameter],
    optimizers: list[Optimizer],
    scaler: Any,
) -> _Outcome:
    """Make the step under a recorder, put everything back, and judge what was recorded."""
    recorder = Recorder()
    gradients: dict[str, bool] = {}
    steps: list[str] = []
    result: object = None

    def look(optimizer: Optimizer, *_: Any) -> None:
        with unrecorded():
            steps.append("step")
            gradients.update({name: is_finite(p.grad) for name, p in named.items() if p.grad is not None})

    with untouched(model, *optimizers, scaler), torch.enable_grad(), eager():
        for parameter in named.values():
            parameter.grad = None
        handles = [each.register_step_pre_hook(look) for each in optimizers]
        try:
            with recorder, told_of_backward(recorder):
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
        after = [name for name, parameter in named.items() if not is_finite(parameter)]
        after += [name for each in optimizers for name in _broken_state(each, named)]
        left = [name for name, p in named.items() if p.grad is not None and not is_finite(p.grad)]
    if isinstance(result, Tensor) and not is_finite(result) and recorder.origins.get(result) is not None:
        recorder.lost.append(recorder.origins[result])
    skipped = scaler is not None and bool(scaler.is_enabled()) and not steps and bool(left)
    return _Outcome(_judged(recorder, gradients, after, left, result), recorder.operations, skipped)


def _judged(
    recorder: Recorder, gradients: dict[str, bool], after: list[str], left: list[str], result: object
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
    if isinstance(result, Tensor) and not is_finite(result):
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


def _where(origin: Origin) -> tuple[str, ...]:
    return (origin.place,) if origin.place else ()


def _broken_state(optimizer: Optimizer, named: dict[str, nn.Parameter]) -> list[str]:
    names = {id(parameter): name for name, parameter in named.items()}
    return [
        f"{names.get(id(key), 'a parameter')} ({kind})"
        for key, state in optimizer.state.items()
        for kind, value in state.items()
        if isinstance(value, Tensor) and not is_finite(value)
    ]
