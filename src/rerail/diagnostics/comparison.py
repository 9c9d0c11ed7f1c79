"""Baseline and candidate from equal states on an identical batch: what each computed, not how it ended."""

from __future__ import annotations

import copy
import math
import random
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from rerail.diagnostics.calling import tensors
from rerail.diagnostics.finding import CannotAnswer, Cause, Finding, Report, answers, is_library, told
from rerail.diagnostics.state import digest, untouched, values

TOLERANCE = 1e-5  # relative; float32 sums in another order differ by less

SETUP = Cause(
    "process.setup_failed",
    refute="",
    next="make the set-up run by itself: nothing was compared",
    wrong_fixes=("counting it as a reproduction",),
)
NOT_REPRODUCED = Cause(
    "process.not_reproduced",
    refute="the symptom was described too narrowly",
    next="freeze more of the failing run: batch, state, dtype, device, execution mode",
    wrong_fixes=("counting any failure as the failure", "picking the run that fails"),
)
STILL_FAILS = Cause(
    "process.candidate_still_fails",
    refute="the candidate fails for another reason: read its error",
    next="compare the first intermediate result that differs between the two",
)
OTHER_FAILURE = Cause(
    "process.candidate_fails_otherwise",
    refute="",
    next="read the error of the candidate: the symptom is gone, and another failure came",
    wrong_fixes=("counting the missing symptom as a repair",),
)
DIFFER = Cause(
    "process.steps_differ",
    refute="the two are meant to compute different things from there on",
    next="look at the first intermediate result that differs: all before it agree",
)
STATES = Cause(
    "process.states_differ",
    refute="the two models are meant to have different parameters",
    next="build both from the same code, or map the names of the parameters",
)


@dataclass(frozen=True)
class Setup:
    """One side of a comparison: a model, its optimizer, and a step that uses both.

    Attributes:
        model: The model.
        optimizer: Its optimizer, None if the step makes no update.
        step: Makes one training step on the frozen batch; what it returns is taken as the loss.
    """

    model: nn.Module
    optimizer: Optimizer | None
    step: Callable[[], Any]


@dataclass
class Trial:
    """What one side did, given to `symptom`.

    Attributes:
        error: "TypeName: first line of the message" of the exception that ended it, None if it ran to its end.
        exception: That exception.
        place: `file:line` of the user's code that raised it.
        losses: The loss of each step.
        outputs: `(module, digest, norm)` of every module's output, in the order of the calls of the first step.
        gradients: Norm of each parameter's gradient after the last step.
        updates: Norm of what the steps changed in each parameter.
        draws: Whether a random number was drawn.
    """

    error: str | None = None
    exception: BaseException | None = None
    place: str = ""
    losses: list[float] = field(default_factory=list)
    outputs: list[tuple[str, str, float]] = field(default_factory=list)
    gradients: dict[str, float] = field(default_factory=dict)
    updates: dict[str, float] = field(default_factory=dict)
    draws: bool = False


@answers
def compare_steps(
    baseline: Callable[[], Setup],
    candidate: Callable[[], Setup],
    *,
    symptom: Callable[[Trial], bool] | type[BaseException] | str | None = None,
    steps: int = 1,
    repeats: int = 1,
    seed: int = 0,
    tolerance: float = TOLERANCE,
) -> Report:
    """Run two versions of a step from equal model, optimizer and random states, and compare what they computed.

    With a `symptom` the question is whether the candidate repairs the baseline: a baseline that fails for another
    reason is no reproduction, and a candidate that fails otherwise is no repair. Without one it is whether the two
    compute the same: the first intermediate result that differs is named.

    Args:
        baseline: Builds the failing side, `rerail.Setup(model, optimizer, step)`. An exception in here is a failure of
            the set-up, never the symptom.
        candidate: Builds the side with the change.
        symptom: Tells from a `rerail.Trial` whether it shows; or the type of the exception; or a part of its text.
        steps: Steps of each side.
        repeats: Runs of each side, with the seeds `seed`, `seed + 1`, ...: for a symptom of chance. All count.
        seed: Of the generators of torch, NumPy and Python: set before the set-up, and before the steps.
        tolerance: Relative difference under which two numbers are equal.

    Returns:
        A report; ok where the baseline shows the symptom in some run and the candidate in none, or where both agree.

    Example:
        ```python
        dies = lambda trial: not math.isfinite(trial.losses[-1])
        report = rerail.compare_steps(broken, repaired, symptom=dies)
        print(rerail.run_report(report, command="python train.py --tiny"))
        ```
    """
    if repeats < 1 or steps < 1:
        raise CannotAnswer(f"steps and repeats must be at least 1, got {steps} and {repeats}")
    shown = {"baseline": 0, "candidate": 0}
    findings: list[Finding] = []
    trials: list[tuple[Trial, Trial]] = []
    with untouched(None):
        for number in range(repeats):
            sides = {}
            for name, make in (("baseline", baseline), ("candidate", candidate)):
                try:
                    _seeded(seed + number)
                    sides[name] = make()
                except Exception as error:
                    says, place = told(error)
                    failed = SETUP.fault(f"the set-up of the {name} failed: {says}", where=(place,))
                    return Report("compare_steps", (failed,))
                if not isinstance(sides[name], Setup):
                    raise CannotAnswer(f"the {name} must return rerail.Setup, got {type(sides[name]).__name__}")
            unequal = _equalised(sides["baseline"], sides["candidate"])
            pair = tuple(_tried(sides[name], steps, seed + number) for name in sides)
            trials.append((pair[0], pair[1]))
            if unequal and not findings:
                findings.append(STATES.suspicious(f"{len(unequal)} parameters exist on one side only", where=unequal))
            for name, trial in zip(sides, pair, strict=True):
                shown[name] += symptom is not None and _shows(symptom, trial)
    facts = {"seed": seed, **_facts(trials, shown, symptom, repeats)}
    if symptom is None:
        findings += _agreement(trials, tolerance)
    else:
        findings += _repair(trials, shown, repeats)
    return Report("compare_steps", tuple(findings), facts)


def _seeded(seed: int) -> None:
    torch.manual_seed(seed)
    numpy.random.seed(seed % 2**32)
    random.seed(seed)


def _equalised(one: Setup, two: Setup) -> list[str]:
    """Copy the baseline's parameters, buffers and optimizer state to the candidate; return what has no counterpart."""
    states = one.model.state_dict(), two.model.state_dict()
    fits = {name: each for name, each in states[0].items() if name in states[1] and each.shape == states[1][name].shape}
    with torch.no_grad():
        for name, held in fits.items():
            states[1][name].copy_(held)
    if one.optimizer is not None and type(one.optimizer) is type(two.optimizer) and one.optimizer.state:
        assert two.optimizer is not None
        rates = [group["lr"] for group in two.optimizer.param_groups]
        two.optimizer.load_state_dict(copy.deepcopy(one.optimizer.state_dict()))  # it keeps the tensors it is given
        for group, rate in zip(two.optimizer.param_groups, rates, strict=True):
            group["lr"] = rate  # a setting of the candidate, not a state
    return sorted(name for name in set(states[0]) | set(states[1]) if name not in fits)


def _tried(side: Setup, steps: int, seed: int) -> Trial:
    trial = Trial()
    before = {name: parameter.detach().clone() for name, parameter in side.model.named_parameters()}
    handles = [
        module.register_forward_hook(lambda _, __, output, name=name: _noted(trial, name or "the model", output))
        for name, module in side.model.named_modules()
    ]
    _seeded(seed)
    start = digest()
    try:
        for _ in range(steps):
            loss = side.step()
            trial.losses.append(float(loss.detach().sum()) if isinstance(loss, Tensor) else float(loss or 0.0))
            for handle in handles:
                handle.remove()
            handles = []
    except Exception as error:
        trial.exception = error
        trial.error = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
        trial.place = _place(error)
    finally:
        for handle in handles:
            handle.remove()
    trial.draws = digest() != start
    with torch.no_grad():
        for name, parameter in side.model.named_parameters():
            if parameter.grad is not None:
                trial.gradients[name] = float(values(parameter.grad).double().norm())
            trial.updates[name] = float((parameter.double() - before[name].double()).norm())
    return trial


def _noted(trial: Trial, name: str, output: Any) -> None:
    for _, each in tensors(output):
        held = values(each)
        norm = float(held.double().norm()) if not held.is_complex() else float(held.abs().double().norm())
        trial.outputs.append((name, f"{tuple(each.shape)} {each.dtype}", norm))


def _place(error: BaseException) -> str:
    own = [frame for frame in traceback.extract_tb(error.__traceback__) if not is_library(frame.filename)]
    own = [frame for frame in own if frame.filename != __file__]
    return f"{own[-1].filename}:{own[-1].lineno}" if own else ""


def _shows(symptom: Callable[[Trial], bool] | type[BaseException] | str, trial: Trial) -> bool:
    if isinstance(symptom, str):
        return trial.error is not None and symptom in f"{trial.error} {trial.exception}"
    if isinstance(symptom, type):
        return isinstance(trial.exception, symptom)
    try:
        return bool(symptom(trial))
    except (IndexError, KeyError):  # it looked at a step that an exception kept from happening
        return False


def _repair(trials: list[tuple[Trial, Trial]], shown: dict[str, int], repeats: int) -> list[Finding]:
    first = next((one for one, _ in trials if one.error), None)
    if not shown["baseline"]:
        says = f"the baseline did not show the symptom in {repeats} run(s)"
        if first is not None:
            return [NOT_REPRODUCED.fault(f"{says}; it failed otherwise: {first.error}", where=(first.place,))]
        return [NOT_REPRODUCED.fault(f"{says}: it ran to its end")]
    if shown["candidate"]:
        says = f"the candidate shows the symptom in {shown['candidate']} of {repeats} run(s)"
        says += f", the baseline in {shown['baseline']}"
        return [STILL_FAILS.fault(says, candidate=shown["candidate"], baseline=shown["baseline"])]
    other = next((two for _, two in trials if two.error), None)
    if other is not None:
        return [OTHER_FAILURE.fault(f"the candidate fails otherwise: {other.error}", where=(other.place,))]
    return []


def _agreement(trials: list[tuple[Trial, Trial]], tolerance: float) -> list[Finding]:
    for one, two in trials:
        if one.error != two.error:
            says = f"the baseline ended with {one.error or 'no error'}, the candidate with {two.error or 'no error'}"
            return [DIFFER.fault(says, where=tuple(filter(None, (one.place, two.place))))]
        difference = _first_difference(one, two, tolerance)
        if difference:
            return [DIFFER.suspicious(f"the first result that differs: {difference}")]
    return []


def _first_difference(one: Trial, two: Trial, tolerance: float) -> str:
    for (name, form, norm), (other, other_form, other_norm) in zip(one.outputs, two.outputs, strict=False):
        if (name, form) != (other, other_form):
            return f"the output of {name} {form}, and of {other} {other_form}"
        if not _equal(norm, other_norm, tolerance):
            return f"the output of {name}, of norm {norm:.6g} and {other_norm:.6g}"
    if len(one.outputs) != len(two.outputs):
        return f"the number of module calls, {len(one.outputs)} and {len(two.outputs)}"
    for what, left, right in (("gradient", one.gradients, two.gradients), ("update", one.updates, two.updates)):
        for name in left.keys() | right.keys():
            norms = left.get(name, math.nan), right.get(name, math.nan)
            if not _equal(*norms, tolerance):
                return f"the {what} of {name}, of norm {norms[0]:.6g} and {norms[1]:.6g}"
    for number, (left_loss, right_loss) in enumerate(zip(one.losses, two.losses, strict=False), 1):
        if not _equal(left_loss, right_loss, tolerance):
            return f"the loss of step {number}, {left_loss:.6g} and {right_loss:.6g}"
    return ""


def _equal(one: float, two: float, tolerance: float) -> bool:
    return one == two or (one != one and two != two) or abs(one - two) <= tolerance * max(abs(one), abs(two))


def _facts(trials: list[tuple[Trial, Trial]], shown: dict[str, int], symptom: object, repeats: int) -> dict[str, Any]:
    def outcome(trial: Trial) -> str:
        if trial.error:
            return trial.error
        return "finished, loss " + ", ".join(f"{loss:.6g}" for loss in trial.losses[:4])

    facts: dict[str, Any] = {"baseline": outcome(trials[0][0]), "candidate": outcome(trials[0][1]), "repeats": repeats}
    if symptom is not None:
        facts |= {"baseline_shown": shown["baseline"], "candidate_shown": shown["candidate"]}
    facts["random"] = trials[0][0].draws or trials[0][1].draws
    facts["update_norms"] = tuple(math.hypot(*trial.updates.values()) for trial in trials[0])
    return facts
