"""The form of what a loss of torch was called with: scores, probabilities, their logarithms, labels."""

from __future__ import annotations

import math
from collections.abc import Iterator

from torch import Tensor
from torch.nn import functional

from rerail.diagnostics.finding import Cause, Finding
from rerail.diagnostics.spying import LossCall, LossSpy

ONE = 1e-3  # a sum that is 1: float16 softmax of 1000 classes is off by less
ROWS = 8  # outputs under which "all in [0, 1]" is what logits may be by chance
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
RANGES = {
    "Sigmoid": (0.0, 1.0),
    "Tanh": (-1.0, 1.0),
    "Relu": (0.0, math.inf),
    "Softmax": (0.0, 1.0),
    "Softplus": (0.0, math.inf),
}

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
RANGE = Cause(
    "values.labels_out_of_range",
    refute="",
    next="print the set of the labels, and the number of classes",
    wrong_fixes=("another loss that accepts them", "dividing the labels"),
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


def is_distribution(tensor: Tensor, dim: int = -1) -> bool:
    """Return whether all values lie in [0, 1] and sum to 1 along a dimension of more than one entry."""
    if tensor.ndim <= (dim if dim >= 0 else -dim - 1) or tensor.shape[dim] < 2 or not tensor.is_floating_point():
        return False
    wide = tensor.float()
    return bool((wide >= 0).all()) and bool(((wide.sum(dim) - 1).abs() < ONE).all())


def forms(spy: LossSpy, made_by: str, output: Tensor, target: Tensor, kind: str) -> Iterator[Finding]:
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
