"""The loss contract: whether a loss gets what it asks for, and rewards what it should."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from rerail.diagnostics.calling import place_of
from rerail.diagnostics.finding import CannotAnswer, Cause, Finding, Report, answers
from rerail.diagnostics.loss_forms import ONE, RANGE, RANGES, forms, is_distribution
from rerail.diagnostics.spying import LossSpy, spied
from rerail.diagnostics.state import untouched

Kind = Literal["class indices", "probabilities", "labels", "scalars", "next token", "divergence"]

SCALES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0)  # of perfect logits; label smoothing has its best between
MOVED = 1e-6  # relative change of a loss that should not change at all: rounding of a sum in another order

BROADCAST = Cause(
    "values.broadcast",
    refute="every output is meant to be compared with every target",
    next="print the shapes of output, target and residual; give both sides the same explicit shape",
    wrong_fixes=(".squeeze() without a dimension", "expanding both sides", "a smaller rate", "a larger network"),
)
SELF_DIVERGENCE = Cause(
    "values.divergence_of_itself",
    refute="the loss is no divergence",
    next="call the loss with the same tensor on both sides: it must be 0, and positive for different ones",
    wrong_fixes=("abs()", "clamp(min=0)", "adding a constant"),
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
        findings = [*_broadcast(spy, output, target, loss_fn), *forms(spy, made_by, output, target, asked)]
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
