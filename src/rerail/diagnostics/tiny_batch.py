"""The tiny batch: whether a model can learn a few rows by heart, with everything off that is there to prevent it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.dropout import _DropoutNd
from torch.optim import Optimizer

from rerail.diagnostics.calling import call, named_parameters, tensors
from rerail.diagnostics.finding import CannotAnswer, Cause, Finding, Report, answers, not_applicable
from rerail.diagnostics.loss_forms import is_distribution
from rerail.diagnostics.modes import TRAINS_IN_EVAL, knows_modes
from rerail.diagnostics.spying import LossSpy
from rerail.diagnostics.state import untouched

RATES = (1e-2, 1e-1, 1e-3)  # of Adam: the others only where the first leaves more than LEARNED
LEARNED = 0.05  # of the way from the start to the floor that may be left
CONSTANT = 1e-2  # spread of the outputs between rows, over that of the targets, under which all rows get one output
CLOSE = 1e-3  # relative: a floor is not passed, but for rounding

STUCK = Cause(
    "tiny_batch.does_not_overfit",
    refute="the model cannot express it (a linear model, a bottleneck), or the rows contradict each other",
    next="rerail.gradient_report on this batch, then rerail.update_report around one step",
    wrong_fixes=("more data", "a larger rate without looking", "fewer regularizers in the real run"),
)
ONE_OUTPUT = Cause(
    "tiny_batch.same_output_for_all_rows",
    refute="all rows have the same inputs",
    next="compare the outputs of two rows layer by layer: where do they become equal?",
    wrong_fixes=("a larger network", "a smaller rate", "more epochs"),
)
FLOOR = Cause(
    "tiny_batch.stops_at_known_floor",
    refute="the loss has this floor by design",
    next="rerail.check_loss_contract(loss_fn, output, target)",
    wrong_fixes=("a larger rate", "more steps"),
)
GAP = Cause(
    "tiny_batch.train_eval_gap",
    refute="the running statistics had too few steps to follow",
    next="evaluate the same batch in both modes after every step",
    wrong_fixes=("removing the normalisation", "no eval() at all"),
)


@answers
def overfit_batch(
    model: nn.Module,
    loss_fn: Callable[..., Any] | None,
    batch: Any,
    *,
    steps: int = 200,
    floor: float | Literal["auto"] = "auto",
    forward: Callable[[nn.Module, Any], Any] | None = None,
    optimizer: Optimizer | None = None,
    step: Callable[[], Any] | None = None,
) -> Report:
    """Train on one small batch until it is known by heart, and put everything back.

    Dropout is off, and Adam without weight decay makes the steps, unless `step` gives the training loop's own. What
    passes proves that loss, gradient and update are wired; it says nothing about generalisation, about regularizers
    that were off, or about batches of another shape. What fails points at wiring or optimization, if the model is
    expressive enough.

    Args:
        model: The model.
        loss_fn: `loss_fn(output, target)`, or None where the model gives its loss.
        batch: A few rows: 2 to 64.
        steps: How many steps are made.
        floor: The lowest value that the loss can reach on this batch; "auto" derives it for the losses of torch, from
            rows with equal inputs and different targets too.
        forward: `forward(model, batch)` gives the output.
        optimizer: The optimizer that `step` uses, so that its state is put back.
        step: Makes one step of the training loop under test on this batch, and returns the loss that it reports.

    Returns:
        A report: ok where at most 5 % of the way from the first loss to the floor is left.

    Source:
        The tiny-batch test: Karpathy, "A Recipe for Training Neural Networks" (2019), "overfit one batch". The floor
        of cross entropy on probabilities is ln(e + C - 1) - 1.
    """
    named = named_parameters(model)
    if not any(parameter.requires_grad for _, parameter in named):
        return not_applicable("overfit_batch", "no parameter of the model requires a gradient: nothing can be learned")
    if steps < 1:
        raise CannotAnswer(f"steps must be at least 1, got {steps}")
    with untouched(model, optimizer, loss_fn if isinstance(loss_fn, nn.Module) else None), torch.enable_grad():
        return _learned(model, loss_fn, batch, steps, floor, forward, optimizer, step)


def _learned(
    model: nn.Module,
    loss_fn: Callable[..., Any] | None,
    batch: Any,
    steps: int,
    floor: float | Literal["auto"],
    forward: Callable[[nn.Module, Any], Any] | None,
    optimizer: Optimizer | None,
    step: Callable[[], Any] | None,
) -> Report:
    with LossSpy() as spy, torch.no_grad():
        start = call(model, loss_fn, batch, forward)
    if not bool(torch.isfinite(start.loss).all()):
        raise CannotAnswer(f"the first loss is {float(start.loss)}: rerail.first_nonfinite names where it begins")
    known = _floor(spy, start.target, batch) if floor == "auto" else float(floor)
    findings: list[Finding] = []
    if step is not None:
        curve, modes, tracked = _own_steps(model, step, steps, optimizer)
        findings += _mode(model, modes, tracked)
    else:
        curve = _steps(model, loss_fn, batch, forward, steps, known)
    with torch.no_grad():
        _quiet(model)
        end = call(model, loss_fn, batch, forward)
        model.eval()
        evaluated = float(call(model, loss_fn, batch, forward).loss)
    first, last = float(start.loss), float(end.loss)
    facts: dict[str, Any] = {
        "first": first, "last": last, "reported": curve[-1], "floor": known, "in_eval_mode": evaluated,
        "steps": len(curve), "call": start.how,
        "not_proved": "generalisation, regularizers, other batches",
    }  # fmt: skip
    base = known if known is not None else 0.0
    learned = math.isfinite(last) and last - base <= LEARNED * max(first - base, 0.0) + 1e-6 * max(1.0, abs(first))
    if not learned and not findings:
        findings += _why(spy, end.output, end.target, first, last, known, facts)
    if learned and evaluated - base > 0.5 * (first - base) > 0 and not findings:
        says = f"the batch is learned, {last:.4g} in train mode, and not known in eval mode: {evaluated:.4g}"
        findings.append(GAP.suspicious(says, train=last, evaluation=evaluated))
    return Report("overfit_batch", tuple(findings), facts)


def _steps(
    model: nn.Module,
    loss_fn: Callable[..., Any] | None,
    batch: Any,
    forward: Callable[[nn.Module, Any], Any] | None,
    steps: int,
    floor: float | None,
) -> list[float]:
    """Make the steps with Adam at the first rate; where that fails, with the others, and keep the best."""
    base = floor if floor is not None else 0.0
    kept = [*model.parameters(), *model.buffers()]
    begin = [tensor.detach().clone() for tensor in kept]
    best: tuple[float, list[float], list[Tensor]] | None = None
    for rate in RATES:
        _put(kept, begin)
        curve = _curve(model, loss_fn, batch, forward, steps, rate)
        if best is None or curve[-1] < best[0]:  # nan is never smaller
            best = curve[-1], curve, [tensor.detach().clone() for tensor in kept]
        if curve[-1] - base <= LEARNED * (curve[0] - base):
            break
    assert best is not None
    _put(kept, best[2])
    return best[1]


def _curve(
    model: nn.Module,
    loss_fn: Callable[..., Any] | None,
    batch: Any,
    forward: Callable[[nn.Module, Any], Any] | None,
    steps: int,
    rate: float,
) -> list[float]:
    optimizer = torch.optim.Adam([parameter for parameter in model.parameters() if parameter.requires_grad], lr=rate)
    _quiet(model)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = call(model, loss_fn, batch, forward).loss.sum()
        if not loss.requires_grad:
            raise CannotAnswer("the loss has no graph: rerail.gradient_report says where it is cut")
        torch.autograd.backward(loss)
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses).tolist()


def _put(tensors_there: list[Tensor], values_kept: list[Tensor]) -> None:
    with torch.no_grad():
        for tensor, value in zip(tensors_there, values_kept, strict=True):
            tensor.copy_(value)


def _own_steps(
    model: nn.Module, step: Callable[[], Any], steps: int, optimizer: Optimizer | None
) -> tuple[list[float], list[bool], int]:
    """Make the steps of somebody's loop; note the mode at each backward pass and the batches that norms have seen."""
    modes: list[bool] = []
    before = _tracked(model)
    trained = next(parameter for parameter in model.parameters() if parameter.requires_grad)
    handle = trained.register_hook(lambda _: modes.append(model.training))  # type: ignore[no-untyped-call]
    curve = []
    try:
        for _ in range(steps):
            loss = step()
            if not isinstance(loss, (int, float, Tensor)):
                raise CannotAnswer(f"`step` must return the loss that it reports, got {type(loss).__name__}")
            curve.append(float(loss))
    finally:
        handle.remove()
    return curve, modes, _tracked(model) - before


def _mode(model: nn.Module, modes: list[bool], tracked: int) -> list[Finding]:
    if not modes or not knows_modes(model):
        return []
    asleep = modes.count(False)
    if asleep == 0:
        return []
    says = f"{asleep} of {len(modes)} backward passes ran with the model in eval mode"
    norms = any(isinstance(module, _NormBase) and module.running_mean is not None for module in model.modules())
    if norms:
        says += f"; its batch statistics saw {tracked} of {len(modes)} batches"
    return [TRAINS_IN_EVAL.suspicious(says, in_eval=asleep, steps=len(modes), batches_tracked=tracked)]


def _why(
    spy: LossSpy, output: Any, target: Any, first: float, last: float, floor: float | None, facts: dict[str, Any]
) -> list[Finding]:
    """Compare where the loss has stopped with what is known: a floor, or one output for all rows."""
    given = next((each for _, each in tensors(output) if each.is_floating_point() and each.ndim), None)
    soft = _soft_floor(spy, target)
    if soft is not None and last > soft * (1 - CLOSE):
        says = f"the loss stops at {last:.4f}; it gets probabilities where it takes scores: its floor is {soft:.4f}"
        return [FLOOR.fault(says, floor=soft, last=last)]
    if given is not None and given.shape[0] > 1 and isinstance(target, Tensor) and target.ndim and target.shape[0] > 1:
        spread = float((given - given[:1]).abs().max())
        size = float(given.abs().max())
        facts["spread_of_outputs"] = spread
        if spread <= CONSTANT * max(size, 1e-12) and bool((target != target[:1]).any()):
            says = (
                f"the loss stops at {last:.4g}, and every row gets the same output (spread {spread:.2g} of {size:.2g})"
            )
            return [ONE_OUTPUT.suspicious(says, spread=spread, last=last)]
    says = f"after {facts['steps']} steps the loss is {last:.4g}, from {first:.4g}"
    says += f", with a floor of {floor:.4g}" if floor is not None else ", and its floor is not known"
    return [STUCK.suspicious(says, first=first, last=last)]


def _soft_floor(spy: LossSpy, target: Any) -> float | None:
    """Return the floor of a loss that takes scores and got probabilities, None if it got scores."""
    given = spy.calls[0].given.get("input") if spy.calls else None
    if not isinstance(given, Tensor) or not isinstance(target, Tensor):
        return None
    over = 1 if given.ndim > 1 else 0
    if spy.calls[0].name == "cross_entropy" and is_distribution(given, over):
        return math.log(math.e + given.shape[over] - 1) - 1
    if spy.calls[0].name == "binary_cross_entropy_with_logits" and bool(((given >= 0) & (given <= 1)).all()):
        goal = target.double()
        return float((goal * math.log1p(math.exp(-1)) + (1 - goal) * math.log(2)).mean())
    return None


def _floor(spy: LossSpy, target: Any, batch: Any) -> float | None:
    """Return the lowest loss on this batch for a loss of torch that was called alone, None for others."""
    if not spy.calls or not isinstance(target, Tensor):
        return None
    name, given = spy.calls[0].name, spy.calls[0].given
    if (
        given.get("reduction", "mean") != "mean"
        or given.get("weight") is not None
        or given.get("pos_weight") is not None
    ):
        return 0.0 if name != "kl_div" else None
    goal = given["target"]
    if name == "cross_entropy":
        if goal.is_floating_point():
            return float((goal * -goal.clamp_min(1e-30).log()).sum(1).mean()) if goal.ndim == 2 else None
        classes = given["input"].shape[1 if given["input"].ndim > 1 else 0]
        smoothing = float(given.get("label_smoothing", 0.0))
        if smoothing:
            off = smoothing / classes
            kept = 1 - smoothing + off
            return float(-kept * math.log(kept) - (classes - 1) * off * math.log(off))
        if goal.ndim != 1:
            return 0.0
        return _conflict(batch, functional.one_hot(goal.clamp_min(0), classes).double(), squares=False)
    if name in ("binary_cross_entropy_with_logits", "binary_cross_entropy"):
        soft = goal.double().clamp(1e-12, 1 - 1e-12)
        return float((soft * -soft.log() - (1 - soft) * (1 - soft).log()).mean())
    if name == "mse_loss":
        return _conflict(batch, goal.double().reshape(goal.shape[0], -1), squares=True) if goal.ndim else 0.0
    return 0.0 if name in ("l1_loss", "smooth_l1_loss", "huber_loss", "nll_loss") else None


def _conflict(batch: Any, goal: Tensor, *, squares: bool) -> float:
    """Return the mean loss that rows with equal inputs and different targets leave, by the mean of their targets."""
    inputs = next((each for _, each in tensors(batch) if each.ndim and each.shape[0] == goal.shape[0]), None)
    if inputs is None or inputs.shape[0] < 2:
        return 0.0
    _, group = torch.unique(inputs.reshape(inputs.shape[0], -1), dim=0, return_inverse=True)
    count = torch.zeros(int(group.max()) + 1, dtype=torch.float64).index_add_(
        0, group, torch.ones(len(group), dtype=torch.float64)
    )
    mean = torch.zeros(len(count), goal.shape[1], dtype=torch.float64).index_add_(0, group, goal) / count[:, None]
    if squares:
        return float((goal - mean[group]).square().mean())
    return float((goal * -mean[group].clamp_min(1e-30).log()).sum(1).mean())


def _quiet(model: nn.Module) -> None:
    """Put the model in train mode, dropout in eval mode."""
    model.train()
    for module in model.modules():
        if isinstance(module, _DropoutNd):
            module.eval()
        if isinstance(module, nn.RNNBase):
            module.dropout = 0.0


def _tracked(model: nn.Module) -> int:
    counts = [int(each) for name, each in model.named_buffers() if name.endswith("num_batches_tracked")]
    return max(counts, default=0)
