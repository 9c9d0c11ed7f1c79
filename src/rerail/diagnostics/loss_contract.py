"""The loss contract: whether a loss gets what it asks for, and rewards what it should."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from rerail.diagnostics.calling import place_of
from rerail.diagnostics.finding import CannotAnswer, Cause, Finding, Report, answers
from rerail.diagnostics.spying import LossCall, LossSpy, spied
from rerail.diagnostics.state import untouched

Kind = Literal["class indices", "probabilities", "labels", "scalars", "next token", "divergence"]

ONE = 1e-3  # a sum that is 1: float16 softmax of 1000 classes is off by less
ROWS = 8  # outputs under which "all in [0, 1]" is what logits may be by chance
SCALES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0)  # of perfect logits; label smoothing has its best between
VIEWS = (
    "View",
    "UnsafeView",
    "ReshapeAlias",
    "Squeeze",
    "Unsqueeze",
    "Select",
    "Slice",
    "Transpose",
    "Permute",
    "Clone",
)
MOVED = 1e-6  # relative change of a loss that should not change at all: rounding of a sum in another order

BROADCAST = Cause(
    "values.broadcast",
    refute="every output is meant to be compared with every target",
    next="print the shapes of output, target and residual; give both sides the same explicit shape",
    wrong_fixes=(".squeeze() without a dimension", "expanding both sides", "a smaller rate", "a larger network"),
)
DOUBLE_SOFTMAX = Cause(
    "values.softmax_before_cross_entropy",
    refute="the outputs are logits that happen to be positive and to sum to 1 in every row",
    next="give the loss the logits; compare its floor ln(e + C - 1) - 1 with where training stops",
    wrong_fixes=("a larger rate", "a temperature", "NLLLoss on probabilities"),
)
NO_LOG = Cause(
    "values.nll_without_log",
    refute="the outputs are log-probabilities up to a constant a row, on purpose",
    next="use log_softmax before nll_loss, or cross_entropy on logits",
    wrong_fixes=("abs() of the loss", "a smaller rate"),
)
SQUASHED = Cause(
    "values.scores_squashed",
    refute="the scores are bounded on purpose, and a factor outside of the activation widens them",
    next="give the loss what the last linear layer gives; compare how low it falls on a tiny batch",
    wrong_fixes=("a larger rate", "more epochs"),
)
DOUBLE_SIGMOID = Cause(
    "values.sigmoid_before_logits_loss",
    refute="the logits lie in [0, 1] by chance",
    next="drop the sigmoid, or use the loss that takes probabilities; compare with the floor 0.6931 / 0.3133",
    wrong_fixes=("pos_weight", "a threshold of 0.73", "more epochs"),
)
KL_INPUT = Cause(
    "values.kl_of_probabilities",
    refute="the input is a log-probability that happens to be positive",
    next="measure the divergence of a distribution from itself: it is 0",
    wrong_fixes=("abs()", "clamp(min=0)", "swapping the arguments", "adding a constant"),
)
KL_TARGET = Cause(
    "values.kl_target_form",
    refute="",
    next="pass probabilities as the target, or log-probabilities with log_target=True",
)
SELF_DIVERGENCE = Cause(
    "values.divergence_of_itself",
    refute="the loss is no divergence",
    next="call the loss with the same tensor on both sides: it must be 0, and positive for different ones",
    wrong_fixes=("abs()", "clamp(min=0)", "adding a constant"),
)
RANGE = Cause(
    "values.labels_out_of_range",
    refute="",
    next="print the set of the labels, and the number of classes",
    wrong_fixes=("another loss that accepts them", "dividing the labels"),
)
PADDING = Cause(
    "values.loss_reads_padding",
    refute="the padding is meant to be learned",
    next="change the outputs at the padded positions: the loss must stay bit-identical",
    wrong_fixes=("a smaller weight for the pad class", "shorter sequences"),
)
PADDED_MEAN = Cause(
    "values.mean_over_padding",
    refute="the loss is meant to shrink with the padding",
    next="append one padded position: a mean over what counts does not change",
    wrong_fixes=("multiplying by the mask and dividing by all positions",),
)
SHIFTED_TWICE = Cause(
    "values.labels_shifted_twice",
    refute="the model is meant to predict the token after the next",
    next="give the loss logits that put all mass on the next token: it must be near 0",
    wrong_fixes=("left padding", "a lower temperature", "more epochs"),
)
NOT_SHIFTED = Cause(
    "values.labels_not_shifted",
    refute="the labels were shifted before the loss: then ask with kind='class indices'",
    next="give the loss logits that put all mass on the next token: it must be near 0",
)
LAYOUT = Cause(
    "values.perfect_prediction_costs",
    refute="the loss has a floor above 0 by design (strong label smoothing, a penalty on confidence)",
    next="follow one known element through every view, reshape and permute up to the loss",
    wrong_fixes=("more epochs", "normalising the channels"),
)
UNREACHABLE = Cause(
    "values.unreachable_targets",
    refute="the unreachable targets are outliers that the loss ignores",
    next="print the range of the targets beside the range of the last activation",
    wrong_fixes=("clipping the targets to the range", "a larger network", "more epochs"),
)
OVER_ROWS = Cause(
    "values.softmax_over_rows",
    refute="the first dimension is the one of the classes",
    next="ask the model for one row alone: every probability is 1",
    wrong_fixes=("serving with the training batch size", "normalising the rows afterwards"),
)
ONE_UNIT = Cause(
    "values.softmax_over_one_unit",
    refute="",
    next="print the set of all predictions: it is {1.0}",
    wrong_fixes=("balancing the classes", "more layers"),
)
MANY_LABELS = Cause(
    "values.softmax_for_many_labels",
    refute="the targets are a distribution that does not sum to 1 on purpose",
    next="use one sigmoid a label with the binary cross entropy",
    wrong_fixes=("a lower threshold", "class weights"),
)
PROBABILITY_SUM = Cause(
    "values.probabilities_do_not_sum_to_one",
    refute="the targets carry weights on purpose",
    next="print the sums of the target's rows",
)


@answers
def check_loss_contract(
    loss_fn: Callable[..., Any],
    output: Tensor,
    target: Tensor,
    *,
    kind: Kind | None = None,
    ignore: int | None = None,
    mask: Tensor | None = None,
    class_dim: int | None = None,
) -> Report:
    """Check that a loss gets what its contract asks for, by calling it on changed outputs and targets.

    The loss is called some ten times on tensors of the same shapes; no model is needed. What the library cannot tell
    from shapes and types it is told by `kind`.

    Args:
        loss_fn: `loss_fn(output, target)`, or `loss_fn(output, target, mask)` where a mask is given.
        output: What the model gave for one batch, shape (rows, ...); keep its graph, the last operation says much.
        target: The target of that batch.
        kind: "class indices" (integers, one a row or position), "probabilities" (rows that sum to 1), "labels"
            (independent 0 and 1), "scalars", "next token" (the loss shifts the tokens itself), or
            "divergence" (both sides in the form that the loss takes). Inferred if None.
        ignore: The class index of what must not count, such as padding.
        mask: True where a position counts, shape of the target.
        class_dim: The dimension of the classes in the output; by default the one that the target lacks.

    Returns:
        A report; its facts hold the kind, the loss, and the lowest loss that a perfect prediction reaches.

    Source:
        The documentation of the loss functions of PyTorch; the invariants are our own: a perfect prediction costs
        nothing, a distribution does not diverge from itself, what is ignored does not move the loss.
    """
    if not isinstance(output, Tensor) or not isinstance(target, Tensor):
        raise CannotAnswer(
            f"output and target must be tensors, got {type(output).__name__} and {type(target).__name__}"
        )
    if not output.numel() or not target.numel():
        raise CannotAnswer(f"there are no rows: output {tuple(output.shape)}, target {tuple(target.shape)}")
    made_by = type(output.grad_fn).__name__.rstrip("0123456789").removesuffix("Backward") if output.grad_fn else ""
    output, target = output.detach(), target.detach()
    given = () if mask is None else (mask,)
    asked = kind or _inferred(output, target)
    with untouched(loss_fn if isinstance(loss_fn, nn.Module) else None), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns about the broadcasting that is reported here
        early = _labels_in_range(output, target, asked, ignore, class_dim)
        if early and output.is_cuda:  # there an index out of range ends the process: the loss must not see it
            return Report("check_loss_contract", tuple(early), {"kind": asked})
        try:
            loss, spy = spied(loss_fn, output, target, *given)
        except (IndexError, RuntimeError):
            if not early:
                raise
            return Report("check_loss_contract", tuple(early), {"kind": asked})
        if not isinstance(loss, Tensor):
            raise CannotAnswer(f"the loss must be a tensor, got {type(loss).__name__}")
        facts: dict[str, Any] = {"kind": asked, "loss": float(loss.float().mean()), "made_by": made_by or None}
        facts["loss_function"] = ", ".join(call.name for call in spy.calls) or None
        ask = lambda *changed: float(loss_fn(*changed, *given).float().mean())  # noqa: E731  one line says it
        findings = [*_broadcast(spy, output, target, loss_fn), *_forms(spy, made_by, output, target, asked)]
        if (
            not findings
            and not early
            and asked in ("class indices", "next token")
            and _takes_scores(spy, ask, output, target)
        ):
            findings += _classes(ask, output, target, asked, ignore, mask, class_dim, facts)
        if ignore is not None or mask is not None:
            findings += _ignored(loss_fn, output, target, ignore, mask, class_dim)
        if asked == "scalars":
            findings += _reach(made_by, target)
        if asked == "divergence" and not findings:
            findings += _divergence(ask, output, target)
    return Report("check_loss_contract", tuple(findings), facts)


def is_distribution(tensor: Tensor, dim: int = -1) -> bool:
    """Return whether all values lie in [0, 1] and sum to 1 along a dimension of more than one entry."""
    if tensor.ndim <= (dim if dim >= 0 else -dim - 1) or tensor.shape[dim] < 2 or not tensor.is_floating_point():
        return False
    wide = tensor.float()
    return bool((wide >= 0).all()) and bool(((wide.sum(dim) - 1).abs() < ONE).all())


def _inferred(output: Tensor, target: Tensor) -> Kind:
    if not target.is_floating_point():
        return "class indices" if target.ndim < output.ndim or output.shape[-1:] == (1,) else "labels"
    if is_distribution(target):
        return "probabilities"
    if bool(((target == 0) | (target == 1)).all()) and bool((target == 1).any()) and bool((target == 0).any()):
        return "labels"
    return "scalars"


def _labels_in_range(
    output: Tensor, target: Tensor, kind: str, ignore: int | None, class_dim: int | None
) -> list[Finding]:
    """Look at class indices before the loss does: an index out of range ends the process on some devices."""
    if kind not in ("class indices", "next token") or output.ndim < 2 or target.ndim >= output.ndim:
        return []
    classes = output.shape[_class_dim(output, target, class_dim)]
    counted = target[(target != ignore) & (target != -100)] if ignore is not None else target[target != -100]
    if not counted.numel() or classes == 1:
        return []
    low, high = int(counted.min()), int(counted.max())
    if low < 0 or high >= classes:
        says = f"the labels run from {low} to {high}, and the output has {classes} classes: 0 to {classes - 1}"
        return [RANGE.fault(says, smallest=low, largest=high, classes=classes)]
    return []


def _broadcast(spy: LossSpy, output: Tensor, target: Tensor, loss_fn: Any) -> list[Finding]:
    one, two = tuple(output.shape), tuple(target.shape)
    rows = one[0] if one else 1
    if one == two or rows < 2 or len(one) == 0 or len(two) == 0 or two[0] != rows:
        return []
    seen = [(shape, place) for left, right, shape, place in spy.broadcasts if {left, right} == {one, two}]
    for call in spy.calls:  # the loss functions of torch broadcast inside
        sides = [call.given.get(name) for name in ("input", "target")]
        shapes = [tuple(side.shape) for side in sides if isinstance(side, Tensor)]
        if len(shapes) == 2 and set(shapes) == {one, two} and call.name not in ("cross_entropy", "nll_loss"):
            seen.append((tuple(_joined(*shapes)), call.place))
    larger = [(shape, place) for shape, place in seen if math.prod(shape) > max(output.numel(), target.numel())]
    if not larger:
        return []
    shape, place = larger[0]
    says = f"output {one} and target {two} broadcast to {shape}: every output is compared with every target"
    where = (place,) if place else place_of(loss_fn)
    return [BROADCAST.fault(says, where=where, output=str(one), target=str(two), result=str(shape))]


def _forms(spy: LossSpy, made_by: str, output: Tensor, target: Tensor, kind: str) -> Iterator[Finding]:
    """Check each torch loss that was called against what it was called with."""
    if output.ndim > 1 and output.shape[-1] == 1 and bool((output == 1).all()) and made_by in ("", "Softmax"):
        yield ONE_UNIT.fault("all outputs are exactly 1: a softmax over one unit is constant", units=1)
        return
    if output.ndim == 2 and output.shape[0] > 1 and not is_distribution(output, 1) and is_distribution(output, 0):
        yield OVER_ROWS.fault("the columns of the output sum to 1, its rows do not", column_sum=1.0)
        return
    for call in spy.calls:
        itself = isinstance(call.given.get("input"), Tensor) and call.given["input"].data_ptr() == output.data_ptr()
        found = _form(call, made_by if itself else "")
        if found is not None:
            yield found
            return
    if (
        kind in ("labels", "probabilities")
        and target.ndim == 2
        and is_distribution(output)
        and target.shape == output.shape
    ):
        sums = target.float().sum(-1)
        if bool(((target == 0) | (target == 1)).all()) and bool((sums > 1).any()):
            says = f"rows of the output sum to 1, and rows of the target hold up to {int(sums.max())} labels"
            yield MANY_LABELS.fault(says, labels=int(sums.max()))


def _form(call: LossCall, made_by: str) -> Finding | None:
    given, goal = call.given.get("input"), call.given.get("target")
    if not isinstance(given, Tensor) or not isinstance(goal, Tensor):
        return None
    where = (call.place,) if call.place else ()
    classes = given.shape[1] if given.ndim > 1 else given.shape[0] if given.ndim else 1
    if call.name == "cross_entropy" and is_distribution(given, 1 if given.ndim > 1 else 0):
        floor = math.log(math.e + classes - 1) - 1
        says = f"cross_entropy got probabilities: its rows sum to 1; the loss cannot fall below {floor:.4f}"
        return DOUBLE_SOFTMAX.fault(says, where=where, floor=floor, classes=classes)
    if (
        call.name == "cross_entropy"
        and goal.is_floating_point()
        and not is_distribution(goal, 1 if goal.ndim > 1 else 0)
    ):
        sums = goal.float().sum(1 if goal.ndim > 1 else 0)
        says = f"the probability targets sum to {float(sums.min()):.4g} to {float(sums.max()):.4g} a row"
        return PROBABILITY_SUM.suspicious(says, where=where, smallest=float(sums.min()), largest=float(sums.max()))
    if call.name == "cross_entropy" and made_by in RANGES:
        low, high = RANGES[made_by]
        says = f"the scores come out of {made_by.lower()}, and cannot leave [{low:g}, {high:g}]"
        return SQUASHED.suspicious(says, where=where, low=low, high=high)
    if call.name == "nll_loss":
        sums = given.float().exp().sum(1 if given.ndim > 1 else 0)
        if not bool(((sums - 1).abs() < 10 * ONE).all()):
            form = "probabilities" if is_distribution(given, 1 if given.ndim > 1 else 0) else "scores"
            says = (
                f"nll_loss got {form}, not log-probabilities: their exponentials sum to {float(sums.mean()):.4g} a row"
            )
            return NO_LOG.fault(says, where=where, sum=float(sums.mean()))
    if call.name == "binary_cross_entropy_with_logits":
        if bool((goal < 0).any()) or bool((goal > 1).any()):
            says = f"the labels run from {float(goal.min()):.4g} to {float(goal.max()):.4g}, not from 0 to 1"
            return RANGE.fault(says, where=where, smallest=float(goal.min()), largest=float(goal.max()))
        unseen = made_by in ("", *VIEWS) and given.numel() >= ROWS  # what made the numbers is not known
        if bool(((given >= 0) & (given <= 1)).all()) and (made_by in ("Sigmoid", "Softmax") or unseen):
            says = f"all {given.numel()} logits lie in [0, 1], {float(given.min()):.3f} to {float(given.max()):.3f}"
            sure = made_by in ("Sigmoid", "Softmax")
            says += f", and {made_by.lower()} made them" if sure else ", as if a sigmoid had been applied"
            floor = math.log1p(math.exp(-1))
            return (DOUBLE_SIGMOID.fault if sure else DOUBLE_SIGMOID.suspicious)(says, where=where, floor=floor)
    if call.name == "kl_div":
        return _kl(call, given, goal, where)
    return None


def _kl(call: LossCall, given: Tensor, goal: Tensor, where: tuple[str, ...]) -> Finding | None:
    last = given.ndim - 1
    if is_distribution(given, last):
        itself = float(functional.kl_div(given, given, reduction="batchmean"))
        says = (
            f"kl_div got probabilities where it takes their logarithms: the input diverges from itself by {itself:.4g}"
        )
        return KL_INPUT.fault(says, where=where, of_itself=itself)
    wants_log = bool(call.given.get("log_target"))
    if wants_log == is_distribution(goal, last) and goal.shape[last] > 1:
        form = "probabilities" if is_distribution(goal, last) else "no probabilities"
        return KL_TARGET.fault(f"the target is {form}, and log_target is {wants_log}", where=where)
    return None


def _classes(
    ask: Callable[..., float],
    output: Tensor,
    target: Tensor,
    kind: str,
    ignore: int | None,
    mask: Tensor | None,
    class_dim: int | None,
    facts: dict[str, Any],
) -> list[Finding]:
    """Ask the loss about a perfect prediction."""
    if not output.is_floating_point() or target.ndim != output.ndim - 1:
        return []
    dim = _class_dim(output, target, class_dim)
    classes = output.shape[dim]
    counted = target != ignore if ignore is not None else target != -100
    if mask is not None:
        counted &= mask.bool()
    if classes < 2 or bool((target[counted] == target[counted][:1]).all()):
        return []
    labels = target.masked_fill(~counted, 0)

    def cost(wanted: Tensor) -> float:
        perfect = functional.one_hot(wanted.long(), classes).movedim(-1, dim).to(output.dtype)
        return min(ask(perfect * scale, target) for scale in SCALES)

    chance = ask(torch.zeros_like(output), target)
    if kind == "next token":
        same, following, after_next = (cost(labels.roll(-shift, -1)) for shift in (0, 1, 2))
        facts |= {"cost_of_next_token": following, "cost_of_same_token": same, "cost_of_token_after_next": after_next}
        if following < min(same, after_next):
            return []
        says = (
            f"logits for the next token cost {following:.4g}, for the same token {same:.4g}, for the one after the next"
        )
        return [(SHIFTED_TWICE if after_next < same else NOT_SHIFTED).fault(f"{says} {after_next:.4g}", next=following)]
    best = cost(labels)
    facts |= {"perfect_prediction": best, "chance": chance}
    if not best < 0.5 * chance and chance > 0:
        says = f"a perfect prediction costs {best:.4g}, equal scores cost {chance:.4g}: the loss does not reward it"
        return [LAYOUT.fault(says, perfect=best, chance=chance)]
    return []


def _takes_scores(spy: LossSpy, ask: Callable[..., float], output: Tensor, target: Tensor) -> bool:
    """Return whether the loss compares scores of classes with a class: it calls such a loss, or behaves like one."""
    if any(call.name in ("cross_entropy", "nll_loss") for call in spy.calls):
        return True
    loss, shifted = ask(output, target), ask(output + 1, target)  # one number added to a whole row changes nothing
    return abs(shifted - loss) < ONE * abs(loss) and ask(output, target.roll(1)) != loss


def _divergence(ask: Callable[..., float], output: Tensor, target: Tensor) -> list[Finding]:
    """Measure the divergence of each side from itself."""
    itself = [ask(side, side) for side in (output, target)]
    between = ask(output, target)
    if max(map(abs, itself)) <= ONE * max(abs(between), ONE) and between >= -MOVED:
        return []
    says = f"the divergence of a distribution from itself is {itself[0]:.4g}, between the two {between:.4g}"
    return [SELF_DIVERGENCE.fault(says, of_itself=itself[0], between=between)]


def _ignored(
    loss_fn: Callable[..., Any],
    output: Tensor,
    target: Tensor,
    ignore: int | None,
    mask: Tensor | None,
    class_dim: int | None,
) -> list[Finding]:
    """Change what must not count, then append more of it."""
    counted = mask.bool() if mask is not None else torch.ne(target, -100 if ignore is None else ignore)
    if bool(counted.all()) or not bool(counted.any()):
        raise CannotAnswer(
            "nothing, or everything, is ignored in this batch: give one with padding and with real positions"
        )

    def ask(one: Tensor, two: Tensor, kept: Tensor) -> float:
        return float((loss_fn(one, two) if mask is None else loss_fn(one, two, kept)).double().mean())

    dim = _class_dim(output, target, class_dim) if target.ndim < output.ndim else output.ndim - 1
    last = output.movedim(dim, -1)  # positions in front, as in the target

    def again(one: Tensor, two: Tensor, kept: Tensor) -> float:
        return ask(one.movedim(-1, dim), two, kept)

    before = again(last, target, counted)
    where = ~counted
    while where.ndim < last.ndim:
        where = where.unsqueeze(-1)
    noise = torch.randn(last.shape, generator=torch.Generator().manual_seed(0)).to(last)
    after = again(torch.where(where, last + 3 * noise, last), target, counted)
    if abs(after - before) > MOVED * max(1.0, abs(before)) or math.isnan(after) != math.isnan(before):
        ignored = int((~counted).sum())
        says = (
            f"other outputs at the {ignored} positions that must not count move the loss: {before:.6g} to {after:.6g}"
        )
        return [PADDING.fault(says, before=before, after=after)]
    if target.ndim < 2:
        return []
    blank = target[~counted][0].expand(target.shape[0], 1, *target.shape[2:])
    longer_mask = torch.cat([counted, torch.zeros_like(counted[:, :1])], 1)
    padded = again(torch.cat([last, last[:, :1]], 1), torch.cat([target, blank], 1), longer_mask)
    if abs(padded - before) > MOVED * max(1.0, abs(before)):
        says = f"one more padded position a row moves the loss from {before:.6g} to {padded:.6g}: the mean counts it"
        return [PADDED_MEAN.fault(says, before=before, after=padded)]
    return []


RANGES = {
    "Sigmoid": (0.0, 1.0),
    "Tanh": (-1.0, 1.0),
    "Relu": (0.0, math.inf),
    "Softmax": (0.0, 1.0),
    "Softplus": (0.0, math.inf),
}


def _reach(made_by: str, target: Tensor) -> list[Finding]:
    if made_by not in RANGES:
        return []
    low, high = RANGES[made_by]
    outside = float(((target < low) | (target > high)).float().mean())
    if not outside:
        return []
    says = f"{outside:.0%} of the targets lie outside [{low:g}, {high:g}], which is what {made_by.lower()} can give"
    return [UNREACHABLE.fault(says, outside_fraction=outside, low=float(target.min()), high=float(target.max()))]


def _class_dim(output: Tensor, target: Tensor, class_dim: int | None) -> int:
    if class_dim is not None:
        return class_dim % output.ndim
    if output.ndim == target.ndim + 1:
        last, second = output.shape[:-1] == target.shape, (*output.shape[:1], *output.shape[2:]) == tuple(target.shape)
        if last and second and output.ndim > 2:
            raise CannotAnswer(
                f"the classes of an output {tuple(output.shape)} may be dimension 1 or the last: give class_dim"
            )
        return output.ndim - 1 if last else 1
    return output.ndim - 1


def _joined(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(torch.broadcast_shapes(*shapes))  # type: ignore[no-untyped-call]
