"""The gradient path: where a gradient is cut, zero or not finite on its way from the loss to the parameters."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from rerail.diagnostics.activations import Activations
from rerail.diagnostics.calling import (
    Called,
    call,
    eager,
    named_parameters,
    optimizer_parameters,
    place_of,
    tensors,
    wide,
)
from rerail.diagnostics.finding import Cause, Finding, Report, answers, not_applicable, told
from rerail.diagnostics.graph import GROWS, held_in_plain_containers, leaves_of
from rerail.diagnostics.state import untouched, values

VANISHED = 1e-6  # gradient over weight, relative to the median layer: 10 sigmoid layers give 1e-8, healthy nets > 1e-3
DEAD = 0.9  # share of the units that are 0 on the whole batch
SATURATED = 0.9  # share of the outputs of a tanh or sigmoid where less than 2 % of the gradient passes
ENOUGH = 16  # values of a unit in the batch, under which a unit that is 0 on all of them says little
SAME = 1e-3  # relative difference of rows that differ by rounding only
ADDED = ("bias", "beta", "shift", "offset")  # names of parameters that are added; all others may multiply
CANCELLED = 1e-6  # of the norm of all gradients: what is smaller is a sum that cancels

CUT_LOSS = Cause(
    "gradient_path.loss_without_graph",
    refute="the loss is only reported, and another one is trained",
    next="print `loss.grad_fn`, then `grad_fn` of each tensor that the loss is made of, backwards",
    wrong_fixes=("loss.requires_grad_(True)", "torch.tensor(loss, requires_grad=True)", "retain_graph=True"),
)
LEAF_LOSS = Cause(
    "gradient_path.leaf_loss",
    refute="the loss is itself the parameter that is trained",
    next="remove the call that marks the loss, and find the operation without a derivative (argmax, item, numpy)",
    wrong_fixes=("requires_grad_(True) on the loss", "a larger rate"),
)
CUT = Cause(
    "gradient_path.cut",
    refute="the part is kept fixed on purpose by detaching what it gives",
    next="print `requires_grad` of what each module returns: the first False is behind the cut",
    wrong_fixes=("a larger rate for that part", "requires_grad_(True) on its parameters", "retain_graph=True"),
)
UNUSED = Cause(
    "gradient_path.unused_parameters",
    refute="this batch does not need them: another task's head, another expert",
    next="look for the module in `forward`",
)
UNREGISTERED = Cause(
    "gradient_path.unregistered_parameters",
    refute="they belong to another module on purpose, which saves and moves them",
    next="use nn.ModuleList, nn.ModuleDict or nn.Parameter, and count `state_dict()` before and after",
    wrong_fixes=("giving them to the optimizer by hand", "a larger head", "more steps"),
)
ALL_ZERO = Cause(
    "gradient_path.all_gradients_zero",
    refute="the loss is at its minimum on this batch",
    next="print the share of zeros of the output, and the gradient of the output",
    wrong_fixes=("another seed", "a smaller rate", "a bias that starts larger"),
)
ZERO = Cause(
    "gradient_path.zero_gradient",
    refute="a factor that starts at 0 on purpose stands in between (LoRA, a gate), or no row of the batch uses it",
    next="look at the activations after these parameters: dead, saturated, rounded, or multiplied by 0",
)
NON_FINITE = Cause(
    "gradient_path.non_finite_gradient",
    refute="a scaler is calibrating its scale, and skips this step",
    next="rerail.first_nonfinite(step, model, optimizer) names the operation",
    wrong_fixes=("nan_to_num on the output or on the gradient", "clipping", "skipping the batch"),
)
NON_FINITE_LOSS = Cause(
    "values.non_finite_loss",
    refute="the batch is meant to give no loss (every row is ignored), and the step is skipped",
    next="rerail.first_nonfinite(step, model, optimizer) names the operation",
    wrong_fixes=("nan_to_num on the loss", "skipping the batch", "a smaller rate"),
)
IN_PLACE = Cause(
    "gradient_path.changed_in_place",
    refute="",
    next="write the operation out of place, or clone before the write",
    wrong_fixes=("the same write through .data or .detach()", "retain_graph=True"),
)
CONSTANT = Cause(
    "tiny_batch.constant_initialisation",
    refute="a single layer (convex), or rows that other parameters keep apart",
    next="print the number of different rows of the first weight and of its gradient",
    wrong_fixes=("a larger rate", "float64", "dropout to break the symmetry"),
)
VANISHING = Cause(
    "gradient_path.vanishing_gradient",
    refute="these layers are meant to learn that much slower",
    next="print the gradient norm of each layer from the last to the first, and see where it falls",
    wrong_fixes=("more epochs", "a larger rate", "a loss times 1000"),
)
DEAD_UNITS = Cause(
    "gradient_path.dead_units",
    refute="the batch is too small to wake the units",
    next="print the mean and the deviation of what goes into the activation",
    wrong_fixes=("another seed", "clipping at the same scale"),
)
SATURATED_UNITS = Cause(
    "gradient_path.saturated_units",
    refute="it is the output of a model that has converged, or a gate",
    next="print the scale of what goes into the activation: the inputs or the initialisation are too large",
)


@answers
def gradient_report(
    model: nn.Module,
    loss_fn: Callable[..., Any] | None,
    batch: Any,
    *,
    optimizer: Optimizer | None = None,
    forward: Callable[[nn.Module, Any], Any] | None = None,
) -> Report:
    """Follow the gradient from the loss to every parameter, and leave no trace.

    Args:
        model: The model, in the mode in which it trains.
        loss_fn: `loss_fn(output, target)`, or None where the model gives its loss.
        batch: One batch, `(inputs..., target)` or a mapping.
        optimizer: Its optimizer: a cut before parameters that it holds is a fault, otherwise a question.
        forward: `forward(model, batch)` gives the output, where the habits of PyTorch do not fit.

    Returns:
        A report; its table has a row a parameter, with "none", "zero", "fine", "non-finite" or "frozen", the norm of
        the gradient, and its ratio to the norm of the weight.

    Example:
        ```python
        report = rerail.gradient_report(model, nn.functional.cross_entropy, (x, y))
        print(report)            # the verdict
        print(report.verbose())  # all parameters
        ```
    """
    named = named_parameters(model)
    if not any(parameter.requires_grad for _, parameter in named):
        return not_applicable("gradient_report", "no parameter of the model requires a gradient: all are frozen")
    held = set() if optimizer is None else {id(parameter) for parameter in optimizer_parameters(optimizer)}
    with untouched(model, optimizer, loss_fn if isinstance(loss_fn, nn.Module) else None):
        for _, parameter in named:
            parameter.grad = None
        ran: set[str] = set()
        handles = [
            module.register_forward_hook(lambda *_, name=name: ran.add(name)) for name, module in model.named_modules()
        ]
        activations = Activations(model)
        try:
            with torch.enable_grad(), eager(), activations:
                called = call(model, loss_fn, batch, forward)
        finally:
            for handle in handles:
                handle.remove()
        early = _without_graph(called, loss_fn)
        if early is not None:
            return Report("gradient_report", (early,), {"call": called.how})
        leaves = list(leaves_of(called.loss))
        try:
            with torch.enable_grad():
                torch.autograd.backward(called.loss.sum())
        except RuntimeError as error:
            return Report("gradient_report", (_backward_failed(error),), {"call": called.how})
        return _judged(model, named, called, leaves, ran, held, activations, batch, loss_fn)


def _without_graph(called: Called, loss_fn: Any) -> Finding | None:
    place = place_of(loss_fn) if loss_fn is not None else ()
    loss = called.loss
    if not loss.requires_grad:
        dtype = str(loss.dtype).removeprefix("torch.")
        says = f"the loss ({dtype}) has no graph behind it: backward cannot reach any parameter"
        return CUT_LOSS.fault(says, where=place, loss=float(loss.detach().sum()))
    if loss.is_leaf:
        says = (
            "the loss is a new leaf that was marked to require gradients: backward stops there, every gradient is None"
        )
        return LEAF_LOSS.fault(says, where=place, loss=float(loss.detach().sum()))
    return None


def _backward_failed(error: RuntimeError) -> Finding:
    says, place = told(error)
    where = (place,) if place else ()
    if "inplace" in str(error):
        return IN_PLACE.fault(says, where=where)
    if "second time" in str(error):
        return GROWS.fault(f"the graph of an earlier forward pass is still attached: {says}", where=where)
    raise error


def _judged(
    model: nn.Module,
    named: list[tuple[str, nn.Parameter]],
    called: Called,
    leaves: list[Tensor],
    ran: set[str],
    held: set[int],
    activations: Activations,
    batch: Any,
    loss_fn: Any,
) -> Report:
    loss = float(called.loss.detach().sum())
    rows = tuple((name, *_kind(parameter)) for name, parameter in named)
    kinds = {row[0]: row[1] for row in rows}
    findings: list[Finding] = []
    if not math.isfinite(loss):
        findings.append(NON_FINITE_LOSS.fault(f"the loss is {loss}", loss=loss))
    broken = [name for name, kind in kinds.items() if kind == "non-finite"]
    if broken and math.isfinite(loss):
        says = f"the loss is {loss:.4g}, and the gradients of {len(broken)} of {len(kinds)} parameters are not finite"
        findings.append(NON_FINITE.fault(says, where=broken, loss=loss))
    findings += _unregistered(model, leaves, held, batch, loss_fn)
    findings += _missing(named, kinds, ran, held)
    dead = _dead(activations)
    if set(kinds.values()) <= {"zero", "none", "frozen"} and "zero" in kinds.values():
        where = [name for name, kind in kinds.items() if kind == "zero"]
        says = f"all {len(where)} gradients are exactly 0" + (f"; {dead[0].says}" if dead else "")
        findings.append(ALL_ZERO.fault(says, where=where, loss=loss))
    else:
        findings += dead + _zero(named, kinds)
        if not broken and math.isfinite(loss):
            findings += _symmetric(named) + _vanishing(named)
    counted = Counter(kinds.values())
    facts: dict[str, Any] = {"loss": loss, "call": called.how, **{kind: counted[kind] for kind in sorted(counted)}}
    facts |= {"dead_units": activations.worst("dead"), "saturated": activations.worst("saturated")}
    columns = ("parameter", "gradient", "norm", "gradient/weight")
    return Report("gradient_report", tuple(findings), facts, columns, rows, "norm")


def _kind(parameter: nn.Parameter) -> tuple[str, float | None, float | None]:
    if not parameter.requires_grad:
        return "frozen", None, None
    if parameter.grad is None:
        return "none", None, None
    norm = float(torch.linalg.vector_norm(wide(values(parameter.grad))))
    weight = float(torch.linalg.vector_norm(wide(values(parameter))))
    kind = "zero" if norm == 0 else "fine" if math.isfinite(norm) else "non-finite"
    return kind, norm, norm / weight if weight else None


def _unregistered(model: nn.Module, leaves: list[Tensor], held: set[int], batch: Any, loss_fn: Any) -> list[Finding]:
    known = {id(parameter) for parameter in model.parameters()} | {id(tensor) for _, tensor in tensors(batch)}
    if isinstance(loss_fn, nn.Module):
        known |= {id(parameter) for parameter in loss_fn.parameters()}
    foreign = [leaf for leaf in leaves if id(leaf) not in known]
    if not foreign:
        return []
    plain = held_in_plain_containers(model)
    inside = [plain[id(leaf)] for leaf in foreign if id(leaf) in plain]
    outside = [f"a leaf {tuple(leaf.shape)}" for leaf in foreign if id(leaf) not in plain and id(leaf) not in held]
    findings = []
    if inside:
        total = len(list(model.parameters()))
        says = (
            f"{len(inside)} tensors get gradients and are not among the model's {total} parameters: "
            "they are not saved, not moved by .to(), and no optimizer of `model.parameters()` has them"
        )
        findings.append(UNREGISTERED.fault(says, where=inside, unregistered=len(inside), registered=total))
    if outside:
        says = (
            f"{len(outside)} tensors get gradients and belong neither to the model nor to the loss nor to the optimizer"
        )
        findings.append(UNREGISTERED.suspicious(says, where=outside, unregistered=len(outside)))
    return findings


def _missing(
    named: list[tuple[str, nn.Parameter]], kinds: dict[str, str], ran: set[str], held: set[int]
) -> list[Finding]:
    without = [(name, id(parameter) in held) for name, parameter in named if kinds[name] == "none"]
    owners = {name: {each.rpartition(".")[0] for each in name.split(" = ")} for name, _ in without}
    cut = [(name, trained) for name, trained in without if owners[name] & ran]
    unused = [name for name, _ in without if not owners[name] & ran]
    findings = []
    if cut:
        names, trained = [name for name, _ in cut], any(trained for _, trained in cut)
        reached = sum(kind in ("fine", "zero", "non-finite") for kind in kinds.values())
        says = f"{len(cut)} parameters took part in forward and get no gradient (None), {reached} others do"
        says += ", although the optimizer holds them" if trained else ""
        findings.append((CUT.fault if trained else CUT.suspicious)(says, where=names, none=len(cut), reached=reached))
    if unused:
        says = f"{len(unused)} parameters that require gradients took no part in this forward pass"
        findings.append(UNUSED.suspicious(says, where=unused, unused=len(unused)))
    return findings


def _dead(activations: Activations) -> list[Finding]:
    findings = []
    dead = [(layer, share) for layer, share, count in activations.dead if share >= DEAD and count >= ENOUGH]
    if dead:
        share = max(share for _, share in dead)
        says = f"{share:.0%} of the units of an activation are 0 on the whole batch"
        findings.append(DEAD_UNITS.suspicious(says, where=[layer for layer, _ in dead], dead_fraction=share))
    saturated = [(layer, share) for layer, share, _ in activations.saturated[:-1] if share >= SATURATED]
    if saturated:
        share = max(share for _, share in saturated)
        says = f"{share:.0%} of the outputs of an activation are saturated: less than 2 % of the gradient passes"
        findings.append(
            SATURATED_UNITS.suspicious(says, where=[layer for layer, _ in saturated], saturated_fraction=share)
        )
    return findings


def _zero(named: list[tuple[str, nn.Parameter]], kinds: dict[str, str]) -> list[Finding]:
    zero = [name for name, kind in kinds.items() if kind == "zero"]
    factors = [p for name, p in named if p.ndim > 1 or not name.rpartition(".")[2].startswith(ADDED)]
    if not zero or any(not bool(values(factor).any()) for factor in factors):  # a factor of 0 opens with the first step
        return []
    says = f"{len(zero)} of {len(kinds)} parameters get a gradient that is exactly 0"
    return [ZERO.suspicious(says, where=zero, zero=len(zero))]


def _symmetric(named: list[tuple[str, nn.Parameter]]) -> list[Finding]:
    """Find a weight whose rows are all alike and get gradients that are all alike: its units will never differ."""
    total = math.hypot(*(float(wide(values(p.grad)).norm()) for _, p in named if p.grad is not None))
    alike, constant = [], []
    matrices = [(name, p) for name, p in named if p.ndim > 1 and p.shape[0] > 1 and p.grad is not None]
    for name, parameter in matrices:
        if parameter.grad is None or parameter.grad.is_sparse or not _rows_alike(values(parameter), 0.0):
            continue
        if _rows_alike(values(parameter.grad), CANCELLED * total):
            alike.append(name)
        elif bool(values(parameter).any()) and name != matrices[-1][0]:
            constant.append(name)
    if alike:
        says = (
            f"all rows of {len(alike)} weights are equal, and so are the rows of their gradients: the units stay copies"
        )
        return [CONSTANT.fault(says, where=alike, different_rows=1)]
    if constant:
        says = f"all rows of {len(constant)} weights are equal: only noise keeps their units apart"
        return [CONSTANT.suspicious(says, where=constant, different_rows=1)]
    return []


def _rows_alike(matrix: Tensor, noise: float) -> bool:
    rows = wide(matrix.reshape(matrix.shape[0], -1))
    spread = float((rows - rows[0]).norm())
    return spread <= max(noise, SAME * float(rows.norm()))


def _vanishing(named: list[tuple[str, nn.Parameter]]) -> list[Finding]:
    ratios = {}
    for name, parameter in named:
        if parameter.ndim > 1 and parameter.grad is not None:
            weight, gradient = (float(wide(values(each)).norm()) for each in (parameter, parameter.grad))
            if weight > 0 and gradient > 0:
                ratios[name] = gradient / weight
    if len(ratios) < 3:
        return []
    middle = sorted(ratios.values())[len(ratios) // 2]
    last = list(ratios.values())[-1]
    reference = max(middle, last)
    lost = [name for name, ratio in ratios.items() if ratio < VANISHED * reference]
    if not lost:
        return []
    least = min(ratios.values()) / reference
    says = f"the gradient of {len(lost)} weights, relative to their size, is down to {least:.1e} of the last layer's"
    return [VANISHING.suspicious(says, where=lost, ratio=least)]
