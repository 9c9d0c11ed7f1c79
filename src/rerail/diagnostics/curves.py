"""Curves: what the losses, gradient norms and rates of a run show by their shape, compared with themselves."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence

from rerail.diagnostics.finding import Cause, Finding

TREND = 3  # rows, below which nothing is called a trend
SHORT = 5  # rows, up to which there is no noise to compare a rise with, and only a large one counts
RISE, LARGE_RISE = 0.05, 0.3  # share of the best validation loss by which it must have risen; in a short history
RECOVERED = 1.5  # times the largest rise that the same run has recovered from
NEW_LOW = 0.1  # share by which the end of a training loss that falls may lie above its lowest stretch
GROWTH = 30.0  # of the gradient norm over the median of its first quarter; healthy spikes of single steps stay below
STILL = 3.0  # times its own middle, that a growing norm has at its end: a norm that rose once and stays is no growth
FLAT = 0.02  # range of the last half of a series that no longer moves, relative to its level
AT_CHANCE = 0.01  # relative distance from ln C, where C is told
NEAR_LOG = 2e-3  # distance from ln C, where C is not told; the logarithms of neighbours are 1/C apart
COMMON = (1000, 10_000, 21_841, 30_522, 32_000, 50_257, 50_265, 50_304, 65_024, 100_000)  # classes, or words
COLLAPSED = 1e-3  # share of its largest value that a rate has left after one epoch
EXPLODED = 10.0  # of the last loss over the first, for a loss that is positive
TURNED = 10.0  # of the last loss over the least, for one that fell first
OVERFIT = Cause(
    "evaluation.overfit_signal",
    refute="the two losses are measured in other modes, on other reductions, or on rows that shift with time",
    next="evaluate the training rows exactly as the validation rows: a gap that stays is generalisation",
    wrong_fixes=("calling it the cause", "choosing the epoch on the test set"),
)
GROWING = Cause(
    "update.growing_gradient_norm",
    refute="the loss is a sum over longer and longer batches, or the run starts where its gradient is almost zero",
    next="log the unclipped norm by layer, and find the first layer in which it grows",
    wrong_fixes=("clipping, and leaving it at that", "a threshold of 100, whatever the scale of the loss"),
)
CHANCE = Cause(
    "tiny_batch.plateau_at_chance",
    refute="the labels are random, the inputs say nothing, or it is the equilibrium of a network and its adversary",
    next="rerail.gradient_report on one batch: is the gradient of the first layer alive, are its rows different?",
    wrong_fixes=("a larger rate", "more epochs"),
)
SOFT = Cause(
    "values.plateau_at_softmax_floor",
    refute="the loss has another floor of this height",
    next="rerail.check_loss_contract(loss_fn, output, target)",
    wrong_fixes=("a larger rate", "more epochs"),
)
CONSTANT = Cause(
    "update.constant_loss",
    refute="the run has converged to its floor before the first row",
    next="rerail.update_report around one step: does any parameter move?",
    wrong_fixes=("a larger rate", "another architecture"),
)
DIVERGING = Cause(
    "update.diverging_loss",
    refute="the number is a return or a score, which should rise",
    next="halve the rate, as the only change, and log the unclipped gradient norm",
    wrong_fixes=("clipping at the same rate", "another seed"),
)
COLLAPSE = Cause(
    "update.rate_collapsed",
    refute="the schedule is meant to end that early",
    next="count the calls of `scheduler.step()` in an epoch, and the unit of its settings",
    wrong_fixes=("a larger first rate", "no scheduler"),
)
REPEATED = Cause(
    "evaluation.validation_does_not_move",
    refute="the metric takes few values, and has not reached the next",
    next="evaluate with weights that are surely different: does the number change?",
    wrong_fixes=("more epochs",),
)


def read_losses(
    train: list[tuple[int, float]], validation: list[tuple[int, float]], classes: int | None
) -> Iterator[Finding]:
    """Look at the pair of losses, then at the training loss, then at the validation loss; rows with their numbers."""
    yield from _overfit(train, validation)
    losses, held_out = [number for _, number in train], [number for _, number in validation]
    if len(losses) >= SHORT:
        yield from _stuck(losses, classes)
        yield from _diverging(losses)
    if len(held_out) >= SHORT and len(set(held_out)) == 1 and len(set(losses)) > 2 and held_out[0] != 0:
        says = f"the validation loss is {held_out[0]:.6g} in all {len(held_out)} rows, while the training loss moves"
        yield REPEATED.suspicious(says)


def _overfit(train: list[tuple[int, float]], validation: list[tuple[int, float]]) -> Iterator[Finding]:
    """See train fall while validation rises: since its best row, and by more than the run has recovered from before."""
    if len(train) < TREND or len(validation) < TREND:
        return
    numbers_of = [number for _, number in validation]
    best = min(reversed(range(len(numbers_of))), key=numbers_of.__getitem__)  # the last of equals
    after = numbers_of[best + 1 :]
    least = numbers_of[best]
    if not after:
        return
    if len(numbers_of) <= SHORT:
        level, needed = after[-1], LARGE_RISE * abs(least)
    else:
        level = statistics.median_low(numbers_of[-max(2, len(numbers_of) // 8) :])  # of two the smaller: not one row
        needed = max(RISE * abs(least), RECOVERED * _recovered(numbers_of[: best + 1]))
    if (len(numbers_of) > SHORT and len(after) < 2) or level - least <= needed:
        return
    span = max(1, len(train) // 8)
    at_best = [number for row, number in train if row <= validation[best][0]][-span:] or [train[0][1]]
    blocks = [
        statistics.fmean(number for _, number in train[max(0, end - span) : end]) for end in range(len(train), 0, -span)
    ]
    lowest = min(blocks[1:], default=math.inf)
    if not blocks[0] < statistics.fmean(at_best) or blocks[0] > lowest + NEW_LOW * abs(lowest):
        return  # it does not fall, or it swings, as the losses of two adversaries do
    says = f"the training loss falls to {train[-1][1]:.4g}, the validation loss rises "
    says += f"from {least:.4g} (row {validation[best][0]}) to {after[-1]:.4g}"
    yield OVERFIT.suspicious(says, best_row=validation[best][0], rise=level - least)


def _recovered(numbers_of: Sequence[float]) -> float:
    """Return the largest rise above the least value so far, in a series that ends at its least value."""
    rise, least = 0.0, math.inf
    for number in numbers_of[len(numbers_of) // 4 :]:  # the first rows are where a loss jumps most
        least = min(least, number)
        rise = max(rise, number - least)
    return rise


def _stuck(train: list[float], classes: int | None) -> Iterator[Finding]:
    if len(set(train)) == 1 and train[0] != 0:  # a loss of exactly 0 has nothing left to learn
        says = f"the training loss is {train[0]:.6g} to the last digit in all {len(train)} rows"
        yield CONSTANT.suspicious(says)
    late = train[len(train) // 2 :]
    level = statistics.fmean(late)
    if level <= 0 or max(late) - min(late) > FLAT * level:
        return
    if classes is not None:
        chance, soft = math.log(classes), math.log(math.e + classes - 1) - 1
        if abs(level - chance) < AT_CHANCE * chance:
            says = f"the training loss stays at {level:.4f}: ln {classes} is {chance:.4f}, what equal scores cost"
            yield CHANCE.suspicious(says, level=level, chance=chance)
        elif min(train) > soft - 1e-4 and max(train) < soft + 1 + 1e-4 and level - soft < _soft_margin(classes):
            says = (
                f"the training loss stays at {level:.4f}, and never falls below {soft:.4f}: the floor of cross entropy"
            )
            yield SOFT.suspicious(f"{says} on probabilities of {classes} classes", level=level, floor=soft)
        return
    moved = abs(train[0] - level) > 0.1 * level
    nearest = _nearest_count(level)
    if not moved and nearest is not None and max(late) - min(late) < FLAT / 4 * level:
        says = f"the training loss stays at {level:.4f}, which is ln {nearest}: are there {nearest} classes?"
        yield CHANCE.suspicious(says, level=level, chance=math.log(nearest))


def _soft_margin(classes: int) -> float:
    """Return how far above the floor a run still stands at it: an eighth of the way up to ln C, where it starts."""
    return (math.log(classes) - math.log(math.e + classes - 1) + 1) / 8


def _nearest_count(level: float) -> int | None:
    """Return C where a level is ln C, and near no other: beyond some hundred classes only counts that are in use."""
    if level > math.log(100_000) + NEAR_LOG:
        return None
    nearest = round(math.exp(level))
    if nearest >= 2 and abs(level - math.log(nearest)) < min(NEAR_LOG, 0.1 / nearest) and nearest <= 100:
        return nearest
    return next((count for count in COMMON if abs(level - math.log(count)) < NEAR_LOG), None)


def _diverging(train: list[float]) -> Iterator[Finding]:
    smooth = [statistics.median(train[row : row + 3]) for row in range(len(train) - 2)]
    first, last, least = smooth[0], smooth[-1], min(smooth)
    at_end = max(train) in train[-max(3, len(train) // 4) :]
    turned = least > 0 and last > 2 * first and last > TURNED * least
    if first > 0 and at_end and (last > EXPLODED * first or turned):
        says = (
            f"the training loss ends at {last:.4g}, {last / first:.3g} times where it began; its least is {least:.4g}"
        )
        yield DIVERGING.suspicious(says, first=first, last=last, least=least)


def read_norms(norms: list[float]) -> Iterator[Finding]:
    """Compare the last norms with the first of the same run: no number is large by itself."""
    if len(norms) < TREND:
        return
    first = statistics.median(norms[: max(1, len(norms) // 4)])
    middle = statistics.median(norms[len(norms) // 3 : max(len(norms) // 3 + 1, 2 * len(norms) // 3)])
    last = statistics.median(norms[-max(1, len(norms) // 10) :])
    if first > 0 and last > GROWTH * first and last > STILL * middle:
        says = f"the gradient norm ends at {last:.4g}, {last / first:.3g} times its first values"
        yield GROWING.suspicious(says, first=first, last=last, ratio=last / first)


def read_rates(fields: Mapping[str, list[float | None]], roles: Mapping[str, str], rows: int) -> Iterator[Finding]:
    """See a rate that is gone after one epoch; where no field tells the place of a row, each row is an epoch."""
    if "rate" not in roles or ("step" in roles and "epoch" not in roles):
        return
    places: Sequence[float | None] = fields[roles["epoch"]] if "epoch" in roles else [float(row) for row in range(rows)]
    pairs = [
        (place, rate)
        for place, rate in zip(places, fields[roles["rate"]], strict=True)
        if place is not None and rate is not None and math.isfinite(place) and math.isfinite(rate)
    ]
    if not pairs or pairs[-1][0] - pairs[0][0] < 3:
        return
    largest = max(rate for _, rate in pairs)
    second = [rate for place, rate in pairs if place - pairs[0][0] >= 1]
    if largest > 0 and second and max(second) < COLLAPSED * largest:
        says = f"the rate is {max(second):.3g} from the second epoch on, {max(second) / largest:.1e} of its largest"
        yield COLLAPSE.suspicious(says, rate=max(second), largest=largest)
