"""A metric: whether its number depends on how the rows are batched, on the call before, or on the scale of a logit."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from rerail.diagnostics.finding import CannotAnswer, Cause, Finding, Report, answers
from rerail.diagnostics.state import untouched

EQUAL = 1e-6  # relative difference of two metrics that are equal but for the order of a sum
NEAR = 0.01  # a logit beside 0: sigmoid gives 0.5025

UNWEIGHTED = Cause(
    "evaluation.mean_of_batch_means",
    refute="every batch is meant to count alike, whatever its size",
    next="sum over rows and divide by their number once",
    wrong_fixes=("drop_last", "a batch size that divides the rows"),
)
NOT_ADDITIVE = Cause(
    "evaluation.metric_of_batches_averaged",
    refute="the mean over the groups is the metric that is wanted",
    next="collect the counts or the scores of all batches, and compute the metric once",
    wrong_fixes=("a mean weighted by batch size", "larger batches"),
)
GUESSES = Cause(
    "evaluation.metric_guesses_logits",
    refute="",
    next="give the metric probabilities or integer labels, never a form that it must guess from the batch",
    wrong_fixes=("larger batches", "clamping the logits"),
)
NOT_RESET = Cause(
    "evaluation.metric_not_reset",
    refute="the metric is meant to run over all epochs",
    next="call the evaluation twice on the same rows: both must give the same number",
    wrong_fixes=("a new metric in the batch loop", "a moving average"),
)
THRESHOLD = Cause(
    "evaluation.logits_threshold",
    refute="the threshold was chosen on validation data, in the scale of the logits",
    next="compare the decisions at logits just above and just below 0",
    wrong_fixes=("tuning the threshold on the test set", "0.5 everywhere"),
)
REDUCTIONS = Cause(
    "evaluation.reductions_differ",
    refute="the two numbers are never compared",
    next="call both on the same batch in the same mode: like-for-like numbers are equal",
)


@answers
def metric_check(
    evaluate: Callable[[list[tuple[Tensor, Tensor]]], Any],
    output: Tensor,
    target: Tensor,
    *,
    sizes: Sequence[int] | None = None,
    logits: bool | None = None,
) -> Report:
    """Ask a metric for the same rows in one batch, in uneven batches, and twice: the number must not change.

    Args:
        evaluate: Takes a list of `(output, target)` batches and returns the number that the loop would report.
        output: Of all rows, shape (rows, ...); at least four rows.
        target: Of all rows, shape (rows, ...).
        sizes: The sizes of the uneven batches; by default about two thirds, a quarter, and the rest.
        logits: Whether the outputs are logits of binary labels, whose decision lies at 0; by default so where an output
            lies outside [0, 1] and the targets are 0 and 1.

    Returns:
        A report with the number in one batch, in uneven batches, and by row.
    """
    rows = output.shape[0] if isinstance(output, Tensor) and output.ndim else 0
    if rows < 4 or target.shape[:1] != output.shape[:1]:
        raise CannotAnswer(f"the metric needs at least four rows of output and target, got {rows}")
    cut = list(sizes) if sizes else _uneven(rows)
    if sum(cut) != rows or min(cut) < 1:
        raise CannotAnswer(f"the sizes must sum to the {rows} rows, got {cut}")
    parts = list(zip(torch.split(output, cut), torch.split(target, cut), strict=True))

    def ask(batches: list[tuple[Tensor, Tensor]]) -> float:
        number = list(numbers_in(evaluate(batches)))
        if not number:
            raise CannotAnswer("`evaluate` must return a number")
        return number[0]

    whole = ask([(output, target)])
    ask([(-output if output.is_floating_point() else output.flip(0), target)])  # other answers, which must be forgotten
    again = ask([(output, target)])
    facts: dict[str, Any] = {"one_batch": whole, "sizes": tuple(cut)}
    if not alike([whole], [again]):
        says = (
            f"the second call on the same rows gives {again:.4g} after {whole:.4g}: the metric keeps what it has seen"
        )
        return Report("metric_check", (NOT_RESET.fault(says, first=whole, second=again),), facts)
    batched = ask(parts)
    each = [ask([part]) for part in parts]
    plain = sum(each) / len(each)
    weighted = sum(number * size for number, size in zip(each, cut, strict=True)) / rows
    facts |= {"uneven_batches": batched, "mean_of_batches": plain, "mean_by_rows": weighted}
    findings = []
    if not alike([whole], [batched]):
        findings.append(_partition(ask, output, parts, whole, batched, plain, weighted))
    binary = bool(((target == 0) | (target == 1)).all()) and output.shape == target.shape
    outside = bool((output < 0).any()) or bool((output > 1).any())
    if not findings and binary and (logits if logits is not None else outside) and output.is_floating_point():
        findings += _threshold(ask, output, target)
    return Report("metric_check", tuple(findings), facts)


@answers
def reduction_check(one: Callable[[Any], Any], other: Callable[[Any], Any], batch: Any, model: nn.Module) -> Report:
    """Compare two losses that are plotted together, such as those of training and validation, on the same batch.

    Args:
        one: Computes the training loss of a batch.
        other: Computes the validation loss of a batch.
        batch: The same batch for both.
        model: The model, which is put in eval mode for both, and back.

    Returns:
        A report with both numbers and their ratio.
    """
    with untouched(model), torch.no_grad():
        model.eval()
        first, second = (next(numbers_in(loss(batch)), math.nan) for loss in (one, other))
    facts = {"one": first, "other": second, "ratio": first / second if second else math.nan}
    if alike([first], [second]):
        return Report("reduction_check", (), facts)
    says = f"on the same batch and in the same mode the two losses are {first:.6g} and {second:.6g}"
    return Report("reduction_check", (REDUCTIONS.suspicious(says, ratio=facts["ratio"]),), facts)


def _partition(
    ask: Callable[[list[tuple[Tensor, Tensor]]], float],
    output: Tensor,
    parts: list[tuple[Tensor, Tensor]],
    whole: float,
    batched: float,
    plain: float,
    weighted: float,
) -> Finding:
    """Tell why a number depends on the batches: what combines them, or what each of them is."""
    numbers: dict[str, Any] = {
        "one_batch": whole,
        "uneven_batches": batched,
        "mean_of_batches": plain,
        "mean_by_rows": weighted,
    }
    says = f"the same rows give {whole:.4g} in one batch and {batched:.4g} in {len(parts)} uneven ones"
    if output.is_floating_point() and bool(((output < 0) | (output > 1)).any()):
        scaled = [(part.sigmoid(), goal) for part, goal in parts]
        together = (torch.cat([part for part, _ in scaled]), torch.cat([goal for _, goal in scaled]))
        inside = [not bool(((part < 0) | (part > 1)).any()) for part, _ in parts]
        if any(inside) and alike([ask([together])], [ask(scaled)]):
            return GUESSES.fault(f"{says}; with sigmoid applied first both agree", **numbers)
    if alike([weighted], [whole]) and alike([batched], [plain]):
        return UNWEIGHTED.fault(f"{says}: the mean of the batches, whatever their size", **numbers)
    return NOT_ADDITIVE.fault(f"{says}: the metric of a union is not the mean of metrics", **numbers)


def _threshold(ask: Callable[[list[tuple[Tensor, Tensor]]], float], output: Tensor, target: Tensor) -> list[Finding]:
    """Ask for the share of right answers just beside 0, and far away: a decision at 0 tells both apart."""
    ones = torch.ones_like(target)
    near, far = ask([(torch.full_like(output, NEAR), ones)]), ask([(torch.full_like(output, 30.0), ones)])
    below, deep = ask([(torch.full_like(output, -NEAR), ones)]), ask([(torch.full_like(output, -30.0), ones)])
    if far == deep or not {near, below} <= {far, deep}:
        return []  # no decision: a loss, or a ranking
    if near == far and below == deep:
        return []
    side = "above" if near != far else "below"
    says = f"a logit of {NEAR:g} beside 0 is decided as one far on the other side: the threshold lies {side} 0"
    return [THRESHOLD.suspicious(says, near=near, far=far)]


def _uneven(rows: int) -> list[int]:
    first = max(1, (2 * rows) // 3)
    second = max(1, (rows - first) * 2 // 3)
    return [size for size in (first, second, rows - first - second) if size > 0]


def numbers_in(result: Any) -> Iterator[float]:
    """Give every number in a number, a tensor, an array scalar, or nested lists and mappings of them."""
    if isinstance(result, (bool, int, float)):
        yield float(result)
    elif isinstance(result, Tensor):
        yield from result.detach().double().reshape(-1).tolist()
    elif isinstance(result, dict):
        for value in result.values():
            yield from numbers_in(value)
    elif isinstance(result, (list, tuple)):
        for value in result:
            yield from numbers_in(value)
    elif hasattr(result, "item") and getattr(result, "size", 1) == 1:
        yield float(result.item())


def alike(one: Sequence[float], other: Sequence[float]) -> bool:
    """Return whether two lists of numbers agree but for rounding; nan agrees with nan."""
    return len(one) == len(other) and all(
        a == b or (a != a and b != b) or abs(a - b) <= EQUAL * max(abs(a), abs(b))
        for a, b in zip(one, other, strict=True)
    )
