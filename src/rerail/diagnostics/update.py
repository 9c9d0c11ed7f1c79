"""The update: which parameters moved, by how much, and in which order a step clears, fills, clips and uses."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.optim import Optimizer

from rerail.diagnostics.entries import as_list, membership
from rerail.diagnostics.finding import CannotAnswer, Cause, Finding, Report, answers, renamed, told, unknown
from rerail.diagnostics.modes import TRAINS_IN_EVAL, knows_modes
from rerail.diagnostics.watching import SCALED, Step, StepWatch

LARGE = 1.0  # update-to-weight ratio of all weight matrices: the step is longer than the weights themselves
SMALL = 1e-6  # below it a step changes less than the last bits of float32 weights (2**-24 is 6e-8) in most elements
BARELY = 0.05  # share of the elements with a gradient that moved, under which low precision swallows the update
LOW = (torch.float16, torch.bfloat16)

STALE = Cause(
    "update.gradients_not_cleared",
    refute="the gradients of several steps are summed on purpose",
    next="print the gradient norm at equal weights on the same batch: 1, 2, 3 times the first shows it",
    wrong_fixes=("a smaller rate", "clipping", "clearing between backward and step", "clearing another object"),
)
CLEARED = Cause(
    "update.cleared_before_step",
    refute="the step takes its gradients from elsewhere",
    next="print the gradient norm directly before `step`",
    wrong_fixes=("a larger rate", "another optimizer"),
)
REPEATED = Cause(
    "update.gradients_used_twice",
    refute="the second step is meant to go on along the same gradient",
    next="count the calls of `optimizer.step` between two backward passes",
    wrong_fixes=("half the rate",),
)
MAXIMISES = Cause(
    "update.maximises",
    refute="the objective should be as large as possible",
    next="evaluate the loss on the same batch before and after one step",
)
NO_BACKWARD = Cause(
    "update.step_without_gradient",
    refute="the batch has nothing to learn from: every gradient is exactly 0 by construction",
    next="print the gradient norm directly after `backward`",
)
NO_STEP = Cause(
    "update.no_step",
    refute="the step is made only after several calls: watch a whole accumulation window",
    next="count the calls of `optimizer.step`",
)
CLIP_LATE = Cause(
    "update.clip_after_step",
    refute="the gradients are scaled for another purpose after they were used",
    next="compare the length of the update with the rate times the clipped norm",
    wrong_fixes=("a smaller max_norm", "a smaller rate"),
)
CLIP_EARLY = Cause(
    "update.clip_before_backward",
    refute="the clipped gradients are those of an earlier backward pass that no step has used",
    next="print what the clip returns: 0 means that there was no gradient yet",
    wrong_fixes=("clipping twice", "clipping the loss"),
)
CLIP_SCALED = Cause(
    "update.clip_scaled_gradients",
    refute="the scaler is disabled",
    next="call `scaler.unscale_(optimizer)` before the clip, and print the norm",
    wrong_fixes=("max_norm times the scale", "no clipping", "a smaller initial scale"),
)
ROUNDED = Cause(
    "update.rounded_away",
    refute="the rate is 0 in this step, or a float32 copy is what the optimizer updates",
    next="count the elements that changed in one step, with the weights in float32 and in the low precision",
    wrong_fixes=("a larger rate alone", "more steps", "another epsilon"),
)
UNMOVED = Cause(
    "update.not_moved",
    refute="the optimizer skips these parameters on purpose",
    next="make the same update by hand, `p - lr * grad`, and see whether the parameter holds it",
    wrong_fixes=("a larger rate", "another initialisation"),
)
FROZEN_MOVES = Cause(
    "update.frozen_parameter_moves",
    refute="something else than the optimizer writes to them on purpose, between the hooks of the step",
    next="look at `.grad` of the frozen parameter: zeros instead of None let momentum and weight decay go on",
    wrong_fixes=("requires_grad_(False) alone", "a schedule to rate 0"),
)
FROZEN_NORM = Cause(
    "update.frozen_statistics_move",
    refute="the statistics are meant to adapt, or nothing ever reads them (a momentum encoder)",
    next="compare `running_mean` before and after one training pass; put the frozen part in eval() after every train()",
    wrong_fixes=("leaving it out of the optimizer", "no_grad around it", "momentum=0"),
)
EVAL_TRAINS = Cause(
    "update.eval_is_not_frozen",
    refute="the part is trained on purpose without its dropout, or with fixed statistics",
    next="print requires_grad of the parameters of that part",
    wrong_fixes=("no_grad around the whole model", "rate 0 for all"),
)
TOO_LARGE = Cause(
    "update.rate_too_large",
    refute="the weights start near zero on purpose",
    next="halve the rate, as the only change, until the ratio is near 1e-3 to 1e-2",
    wrong_fixes=("clipping at the same rate", "another seed"),
)
TOO_SMALL = Cause(
    "update.rate_too_small",
    refute="the schedule is warming up",
    next="sweep the rate on one batch, by factors of 10",
    wrong_fixes=("another architecture", "another loss"),
)


class update_report:  # it reads as what it gives, like `torch.no_grad`
    """Watch one or more training steps, and report what they did to the parameters.

    Use it around the calls of a step, then read `.report`. Two steps see more than one: whether gradients were cleared
    shows at the second. The step itself is not changed, and no hook stays.

    Args:
        model: The model that is trained.
        optimizer: Its optimizer, or a list of all optimizers that train parts of it.
        scaler: The gradient scaler, if there is one; one that is not given is found when it steps.

    Attributes:
        report: A `Report`, once the block has ended; one row a parameter in its table.

    Example:
        ```python
        with rerail.update_report(model, optimizer) as update:
            training_step(batch)
            training_step(batch)
        print(update.report)
        ```
    """

    def __init__(self, model: nn.Module, optimizer: Optimizer | Sequence[Optimizer], *, scaler: Any = None) -> None:
        self.report = unknown("update_report", "the block has not ended yet: read `.report` after it")
        self._watch: StepWatch | None = None
        self._arguments = (model, optimizer)
        self._scaler = scaler

    def __enter__(self) -> Self:
        """Begin to watch."""
        model, optimizer = self._arguments
        try:
            self._optimizers = as_list(optimizer)
            self._watch = StepWatch(model, self._optimizers, scaler=self._scaler)
            self._statistics = frozen_statistics(model)
            self._watch.start()
        except CannotAnswer as reason:
            self._watch, self.report = None, unknown("update_report", str(reason))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Take the hooks away and judge; an exception of the block goes on its way."""
        if self._watch is None:
            return
        self._watch.stop()
        if error is not None and not self._watch.steps:
            self.report = unknown("update_report", *told(error))
            return
        self.report = renamed(
            judged(self._arguments[0], self._optimizers, self._watch, self._statistics), "update_report"
        )


@answers
def judged(
    model: nn.Module, optimizers: list[Optimizer], watch: StepWatch, statistics: dict[str, tuple[_NormBase, Tensor]]
) -> Report:
    """Judge what a watch recorded."""
    if watch.problem:
        raise CannotAnswer(watch.problem)
    findings = list(membership(model, optimizers))
    if not watch.steps:
        if watch.skipped:
            raise CannotAnswer(
                f"the scaler skipped all {watch.skipped} steps: gradients were not finite; watch more steps"
            )
        findings.append(NO_STEP.suspicious("no step of the optimizer was made while it was watched"))
        return Report("update_report", tuple(findings), {"events": " ".join(watch.events) or "none"})
    last = watch.steps[-1]
    findings += _order(watch)
    if any(group.get("maximize") for optimizer in optimizers for group in optimizer.param_groups):
        findings.append(MAXIMISES.suspicious("the optimizer makes the loss larger: `maximize` is set"))
    findings += _movement(watch, last)
    findings += _frozen(model, watch, statistics)
    if not any(each.status == "fault" for each in findings):  # a length says nothing where the order is wrong
        findings += _length(watch, last)
    rows = tuple(
        (
            name, last.gradient_norms.get(name), last.weight_norms[name], last.update_norms.get(name, 0.0),
            _ratio(last, name), last.moved.get(name, 0.0), name in last.rates,
        )
        for name in watch.parameters
    )  # fmt: skip
    facts = {
        "steps": len(watch.steps), "skipped_by_scaler": watch.skipped,
        "unclipped_norm": last.unclipped_norm, "norm_at_step": last.norm,
        "clipped_fraction": _share(step.norm < SCALED * step.unclipped_norm for step in watch.steps),
        "update_to_weight": _whole_ratio(watch, last), "rates": tuple(sorted(set(last.rates.values()))),
    }  # fmt: skip
    columns = ("parameter", "gradient norm", "weight norm", "update norm", "update/weight", "moved", "in optimizer")
    return Report("update_report", tuple(findings), facts, columns, rows, "update/weight")


def frozen_statistics(model: nn.Module) -> dict[str, tuple[_NormBase, Tensor]]:
    """Return the running means of normalisation layers whose own parameters are frozen, in a model that trains."""
    if not any(parameter.requires_grad for parameter in model.parameters()):
        return {}
    return {
        name: (module, module.running_mean.clone())
        for name, module in model.named_modules()
        if isinstance(module, _NormBase)
        and module.training
        and module.affine
        and module.running_mean is not None
        and not any(parameter.requires_grad for parameter in module.parameters())
    }


def _order(watch: StepWatch) -> list[Finding]:
    steps = len(watch.steps)
    findings = []
    if watch.stale:
        names = [name for name in watch.parameters if name in watch.stale]
        says = f"backward added to gradients that a step had already used, in {len(names)} parameters"
        findings.append(STALE.fault(says, where=names, parameters=len(names), norm=watch.steps[-1].norm))
    if watch.cleared:
        says = f"the gradients were cleared between backward and step in {watch.cleared} of {steps} steps"
        findings.append(CLEARED.fault(says, cleared=watch.cleared, steps=steps))
    elif watch.repeated:
        says = f"{watch.repeated} of {steps} steps used gradients that a step had used, with no backward pass between"
        findings.append(REPEATED.suspicious(says, repeated=watch.repeated, steps=steps))
    elif watch.steps[-1].norm == 0 and not watch.steps[-1].closure:
        says = "every gradient that the step found was None or 0"
        findings.append(NO_BACKWARD.suspicious(says, backwards=watch.steps[-1].backwards))
    for place, cause, says in (
        ("after step", CLIP_LATE, "the clip came after the step that it should have changed"),
        ("before backward", CLIP_EARLY, "the clip came before backward: it clipped nothing"),
        ("scaled", CLIP_SCALED, "the clip saw gradients that the scaler had not unscaled"),
    ):
        found = [(norm, limit) for each, norm, limit in watch.clips if each == place]
        if found:
            norm, limit = found[-1]
            says = f"{says}: it returned {norm:.4g} for max_norm {limit:.4g}, the step used {watch.steps[-1].norm:.4g}"
            findings.append(cause.fault(says, returned=norm, max_norm=limit, norm_at_step=watch.steps[-1].norm))
    if watch.clipped_after and not any(place == "after step" for place, _, _ in watch.clips):
        factor = watch.clipped_after[-1]
        says = f"all gradients were scaled by {factor:.4g} after the step had used them"
        findings.append(CLIP_LATE.fault(says, factor=factor))
    return findings


def _movement(watch: StepWatch, last: Step) -> list[Finding]:
    low: list[str] = []
    barely: list[str] = []
    still: list[str] = []
    for name, rate in last.rates.items():
        gradient = last.gradient_norms[name]
        if not gradient or not math.isfinite(gradient) or rate == 0 or not watch.parameters[name].requires_grad:
            continue
        if watch.parameters[name].dtype in LOW and last.moved[name] < BARELY:
            (low if last.moved[name] == 0 else barely).append(name)
        elif last.update_norms[name] == 0 and rate * gradient > SMALL * last.weight_norms[name]:  # else it rounds
            still.append(name)
    findings = []
    if low:
        says = (
            f"{len(low)} parameters have gradients and did not move in any element: the update is smaller than half "
            f"the spacing of {str(watch.parameters[low[0]].dtype).removeprefix('torch.')} there"
        )
        findings.append(ROUNDED.fault(says, where=low, moved_fraction=0.0))
    if barely:
        share = max(last.moved[name] for name in barely)
        says = f"at most {share:.1%} of the elements of {len(barely)} low-precision parameters moved"
        findings.append(ROUNDED.suspicious(says, where=barely, moved_fraction=share))
    if still:
        says = f"{len(still)} parameters have gradients, are in the optimizer, and did not move in any element"
        strided = [name for name in still if not watch.parameters[name].is_contiguous()]
        findings.append(UNMOVED.fault(says, where=still, not_contiguous=tuple(strided)))
    return findings


def _frozen(model: nn.Module, watch: StepWatch, statistics: dict[str, tuple[_NormBase, Tensor]]) -> list[Finding]:
    findings = []
    last = watch.steps[-1]
    moved = [
        name for name, parameter in watch.parameters.items()
        if not parameter.requires_grad and name in last.rates and last.update_norms.get(name)
    ]  # fmt: skip
    if moved:
        says = f"the optimizer moved {len(moved)} parameters that do not require gradients"
        findings.append(FROZEN_MOVES.fault(says, where=moved, moved=last.update_norms[moved[0]]))
    shifts = {
        name: float((module.running_mean - kept).abs().max())
        for name, (module, kept) in statistics.items()
        if module.running_mean is not None
    }
    shifted = [name for name, shift in shifts.items() if shift > 0]
    if shifted:
        largest = max(shifts.values())
        says = f"the running statistics of {len(shifted)} frozen normalisation layers moved, by up to {largest:.3g}"
        findings.append(FROZEN_NORM.suspicious(says, where=shifted, largest=largest))
    if watch.modes and not any(watch.modes) and knows_modes(model):
        says = (
            f"{len(watch.modes)} backward passes ran with the model in eval mode: dropout and batch statistics were off"
        )
        findings.append(TRAINS_IN_EVAL.suspicious(says, in_eval=len(watch.modes)))
    asleep = [
        name for name, module in model.named_modules()
        if name and model.training and not module.training and isinstance(module, (nn.Linear, nn.modules.conv._ConvNd))
        and any(last.update_norms.get(f"{name}.{own}") for own, _ in module.named_parameters(recurse=False))
    ]  # fmt: skip
    if asleep:
        says = f"{len(asleep)} layers are in eval() while the model trains, and their weights moved"
        findings.append(EVAL_TRAINS.suspicious(says, where=asleep))
    return findings


def _length(watch: StepWatch, last: Step) -> list[Finding]:
    ratio = max((_whole_ratio(watch, step) or 0.0 for step in watch.steps), default=0.0)
    if not math.isfinite(ratio) or max(last.rates.values()) == 0 or last.norm == 0:
        return []
    if ratio > LARGE:
        return [TOO_LARGE.suspicious(f"one step is {ratio:.3g} times as long as the weights", ratio=ratio)]
    if 0 < ratio < SMALL:
        return [TOO_SMALL.suspicious(f"one step changes the weights by {ratio:.2g} of their length", ratio=ratio)]
    return []


def _whole_ratio(watch: StepWatch, last: Step) -> float | None:
    """Return the length of the update over that of the weights, for all matrices that are not zero."""
    names = [name for name in last.rates if watch.parameters[name].ndim > 1 and last.weight_norms[name] > 0]
    weights = math.hypot(*(last.weight_norms[name] for name in names))
    return math.hypot(*(last.update_norms.get(name, 0.0) for name in names)) / weights if weights else None


def _ratio(step: Step, name: str) -> float | None:
    weight = step.weight_norms[name]
    return step.update_norms.get(name, 0.0) / weight if weight else None


def _share(flags: Iterable[bool]) -> float:
    every = list(flags)
    return sum(every) / len(every)
