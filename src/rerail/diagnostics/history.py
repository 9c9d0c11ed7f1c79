"""The history of a run, read for what its numbers alone can show: signals and their limits, never causes."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rerail.diagnostics.finding import CannotAnswer, Cause, Finding, Report, answers, unknown
from rerail.diagnostics.reading import PLACE, ROLES, cell_of, number_in, plain_name, read_rows, rows_in

# Names as `_plain_name` gives them: "train/loss", "Train loss" and "train-loss" are all train_loss. The first counts.
SMALL = {"loss", "error", "mse", "mae", "rmse", "perplexity", "ppl", "wer", "cer", "fid", "nll", "bce"}
LARGE = {"accuracy", "acc", "f1", "auc", "auroc", "iou", "miou", "dice", "bleu", "rouge", "recall", "precision", "r2",
         "psnr", "ssim", "return", "reward"}  # fmt: skip
CERTAIN = {"loss", "accuracy", "acc"}  # a name with one of these has one direction; the others are said with a doubt

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

COLUMNS = ("field", "rows", "first", "last", "least", "largest", "not finite")

NOT_FINITE = Cause(
    "values.non_finite_history",
    refute="nan stands for an empty cell there, as a data frame writes it",
    next="replay the first of these rows: rerail.first_nonfinite(step, model, optimizer)",
    wrong_fixes=("skipping the row", "plotting without it"),
)
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
DIRECTION = Cause(
    "evaluation.best_epoch_by_wrong_direction",
    refute="the name of the metric misleads: `direction` says which way it should go",
    next="derive the mode from the metric: a loss is minimised, an accuracy maximised",
    wrong_fixes=("keeping all and choosing by eye", "monitoring the training loss"),
)
COLLAPSE = Cause(
    "update.rate_collapsed",
    refute="the schedule is meant to end that early",
    next="count the calls of `scheduler.step()` in an epoch, and the unit of its settings",
    wrong_fixes=("a larger first rate", "no scheduler"),
)
OTHER_METRIC = Cause(
    "evaluation.stopped_on_another_metric",
    refute="both metrics are best in the same row, or the weights of the last row are the ones that are used",
    next="give stopping and checkpoint the same metric and mode, and say which weights are returned",
    wrong_fixes=("a longer patience",),
)
REPEATED = Cause(
    "evaluation.validation_does_not_move",
    refute="the metric takes few values, and has not reached the next",
    next="evaluate with weights that are surely different: does the number change?",
    wrong_fixes=("more epochs",),
)


@answers
def diagnose_history(
    records: Any,
    *,
    direction: Mapping[str, str] | None = None,
    classes: int | None = None,
    best: Mapping[str, Any] | None = None,
) -> Report:
    """Read the history of a run: every number that is not finite, and the signals that a curve can give.

    A curve shows that something is so, and hardly ever why: apart from numbers that are not finite, and from a best
    row chosen the wrong way round, all that it shows is at most "suspicious". A validation loss below the training
    loss is no signal: dropout explains it. Signals are ratios of the run's own numbers, never a fixed size; two rows
    are no trend.

    Args:
        records: A list of mappings, one a row; a mapping of lists; a data frame; or the path of a CSV, JSONL or JSON
            file, such as the `metrics.csv` of Lightning or the saved `history.history` of Keras. Rows count from 0,
            in a file after rows of one epoch are joined. In a data frame nan is an empty cell as well: it counts
            where no value follows and no other kind of row explains it.
        direction: "min" or "max" by field, for numbers whose name does not say it; all losses are "min".
        classes: The number of classes, for the plateau at ln C.
        best: What was taken as the best row: `{"metric": name, "mode": "min" or "max", "epoch": number}`, and
            "stopped_on" if the training was stopped by another metric. The number is a value of the field "epoch",
            or a row where there is no such field.

    Returns:
        A report; `facts` say which field was read as what, the table has a row for each field.

    Source:
        Equal scores for C classes cost ln C under cross entropy. Cross entropy applied to probabilities cannot fall
        below ln(e + C - 1) - 1, nor rise above ln(e + C - 1): the probabilities of a sure answer are 1 and 0.

    Example:
        ```python
        print(rerail.diagnose_history("logs/version_3/metrics.csv", classes=10))
        ```
    """
    ways, wanted = _ways(direction), _count(classes)
    chosen = _mapping(best, "best", 'such as {"metric": "val_loss", "mode": "min", "epoch": 3}')
    rows = read_rows(records) if isinstance(records, (str, Path)) else rows_in(records)
    if not any(rows):
        raise CannotAnswer("the history has no rows")
    fields = _fields(rows)
    if not fields:
        raise CannotAnswer(f"the history has {len(rows)} rows and no number in them")
    roles = _found_roles(fields)
    empty = _empty_cells(fields)
    frame = hasattr(records, "to_dict") and not isinstance(records, Mapping)
    findings = [*_not_finite(fields, roles, _blank_in_frame(fields, empty) if frame else set(), empty, frame)]
    series = {role: _finite(fields[name]) for role, name in roles.items()}
    losses = {role: series.get(role, []) for role in ("train", "validation") if ways.get(roles.get(role, "")) != "max"}
    findings += _losses(losses.get("train", []), losses.get("validation", []), wanted)
    findings += _norms([number for _, number in series.get("gradient_norm", [])])
    findings += _rates(fields, roles, len(rows))
    findings += _best(fields, roles, chosen, ways)
    return Report("diagnose_history", tuple(findings), _facts(rows, roles, series), COLUMNS, tuple(_table(fields)))


def _ways(direction: Any) -> dict[str, str]:
    ways = _mapping(direction, "direction", 'such as {"val_return": "max"}')
    for name, way in ways.items():
        if way not in ("min", "max"):
            raise CannotAnswer(f'the direction of {name!r} is {way!r}: give "min" or "max"')
    return ways


def _mapping(given: Any, name: str, example: str) -> dict[str, Any]:
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise CannotAnswer(f"`{name}` must be a mapping {example}, got {type(given).__name__}")
    return {str(key): value for key, value in given.items()}


def _count(classes: Any) -> int | None:
    if classes is None:
        return None
    number = number_in(classes)
    if number is None or not number.is_integer() or number < 1:
        raise CannotAnswer(f"`classes` must be a whole number of classes, got {classes!r}")
    return int(number) if number > 1 else None  # one class has no chance level: its cross entropy is always 0


def _fields(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[float | None]]:
    """Return the numbers of each field; a text counts where it names a number in a field that has others: "nan"."""
    fields: dict[str, list[float | None]] = {}
    for name in dict.fromkeys(name for row in rows for name in row):
        column = [number_in(row.get(name)) for row in rows]
        if all(number is None for number in column):
            continue
        for row, held in enumerate(rows):
            if isinstance(held.get(name), str) and isinstance(number := cell_of(held[name]), float):
                column[row] = number
        fields[name] = column
    return fields


def _found_roles(fields: Iterable[str]) -> dict[str, str]:
    """Return the name of the field by its role."""
    plain: dict[str, str] = {}
    for name in fields:
        plain.setdefault(plain_name(name), name)
    roles = {}
    for role, names in ROLES.items():
        found = next((plain[name] for name in names if name in plain), None)
        if found is None and role == "rate":  # `LearningRateMonitor` appends the name of the optimizer
            found = next((name for short, name in plain.items() if short.startswith(("lr_", "learning_rate_"))), None)
        if found is not None:
            roles[role] = found
    return roles


def _finite(column: Sequence[float | None]) -> list[tuple[int, float]]:
    return [(row, number) for row, number in enumerate(column) if number is not None and math.isfinite(number)]


def _facts(
    rows: Sequence[Any], roles: Mapping[str, str], series: Mapping[str, list[tuple[int, float]]]
) -> dict[str, Any]:
    facts: dict[str, Any] = {"rows": len(rows), **roles}
    for role in ("train", "validation"):
        if numbers_of := series.get(role):
            facts[f"{role}_first"], facts[f"{role}_last"] = numbers_of[0][1], numbers_of[-1][1]
    if series.get("validation"):
        facts["validation_least_in_row"] = min(series["validation"], key=lambda each: each[1])[0]
    if len(rows) < TREND:
        facts["trends"] = f"not judged: {TREND} rows are the least"
    return facts


def _table(fields: Mapping[str, list[float | None]]) -> Iterator[tuple[Any, ...]]:
    for name, column in fields.items():
        held = [number for number in column if number is not None]
        finite = [number for number in held if math.isfinite(number)]
        ends = (finite[0], finite[-1], min(finite), max(finite)) if finite else (None,) * 4
        yield (name, len(held), *ends, len(held) - len(finite))


def _empty_cells(fields: Mapping[str, list[float | None]]) -> set[tuple[int, str]]:
    """Return the nan cells of rows of another kind: of two fields, each is nan in all rows where the other is a number.

    That is how a data frame holds the rows of a logger that writes training and validation values apart.
    """
    measured = [name for name in fields if plain_name(name) not in PLACE]
    empty = {name: {row for row, number in enumerate(fields[name]) if number != number} for name in measured}
    finite = {name: {row for row, _ in _finite(fields[name])} for name in measured}
    sparse = [name for name in measured if empty[name] and finite[name]]
    return {
        (row, one)
        for one in sparse
        for other in sparse
        if one != other and finite[one] <= empty[other] and finite[other] <= empty[one]
        for row in finite[other]
    }


def _blank_in_frame(fields: Mapping[str, list[float | None]], empty: set[tuple[int, str]]) -> set[tuple[int, str]]:
    """Return the nan cells of a data frame that say nothing: of another kind of row, or with a value after them."""
    blank = set(empty)
    for name, column in fields.items():
        last = max((row for row, _ in _finite(column)), default=-1)
        runs = [len(list(run)) for nan, run in itertools.groupby(column[: last + 1], lambda each: each != each) if nan]
        tail = len(column) - 1 - last
        end = len(column) if last >= 0 and tail <= max(runs, default=0) else last
        blank |= {(row, name) for row in range(max(end, 0)) if column[row] != column[row]}
    return blank


def _not_finite(
    fields: Mapping[str, list[float | None]],
    roles: Mapping[str, str],
    blank: set[tuple[int, str]],
    empty: set[tuple[int, str]],
    frame: bool,
) -> Iterator[Finding]:
    broken = [
        (row, name, number)
        for name, column in fields.items()
        for row, number in enumerate(column)
        if number is not None and not math.isfinite(number) and (row, name) not in blank
    ]
    broken.sort(key=lambda each: each[0])
    sure = [each for each in broken if each[2] == each[2] or not (frame or each[:2] in empty)]
    if not broken:
        return
    row, name, number = broken[0]
    epoch = fields[roles["epoch"]][row] if "epoch" in roles else None
    at = f"row {row}" if epoch is None or not math.isfinite(epoch) else f"row {row} ({roles['epoch']} {epoch:g})"
    many = "1 number is" if len(broken) == 1 else f"{len(broken)} numbers are"
    says = f"{many} not finite; the first is {name} = {number} in {at}"
    says += "" if sure else "; a data frame writes an empty cell as nan, too"
    where = [f"row {row}, {name}" for row, name, _ in broken]
    find = NOT_FINITE.fault if sure else NOT_FINITE.suspicious
    yield find(says, where=where, first_row=row, first_field=name, numbers=len(broken))


def _losses(
    train: list[tuple[int, float]], validation: list[tuple[int, float]], classes: int | None
) -> Iterator[Finding]:
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


def _norms(norms: list[float]) -> Iterator[Finding]:
    """Compare the last norms with the first of the same run: no number is large by itself."""
    if len(norms) < TREND:
        return
    first = statistics.median(norms[: max(1, len(norms) // 4)])
    middle = statistics.median(norms[len(norms) // 3 : max(len(norms) // 3 + 1, 2 * len(norms) // 3)])
    last = statistics.median(norms[-max(1, len(norms) // 10) :])
    if first > 0 and last > GROWTH * first and last > STILL * middle:
        says = f"the gradient norm ends at {last:.4g}, {last / first:.3g} times its first values"
        yield GROWING.suspicious(says, first=first, last=last, ratio=last / first)


def _rates(fields: Mapping[str, list[float | None]], roles: Mapping[str, str], rows: int) -> Iterator[Finding]:
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


def _way(name: str, direction: Mapping[str, str]) -> tuple[str | None, bool]:
    """Return "min" or "max" for a metric, None where its name does not say, and whether that is certain."""
    if name in direction:
        return direction[name], True
    parts = set(plain_name(name).split("_"))
    small, large = bool(parts & SMALL), bool(parts & LARGE)
    if small == large:
        return None, False
    if parts & {"neg", "negative"}:
        return ("max" if small else "min"), False
    return ("min" if small else "max"), bool(parts & CERTAIN)


def _best(
    fields: Mapping[str, list[float | None]],
    roles: Mapping[str, str],
    best: Mapping[str, Any],
    direction: Mapping[str, str],
) -> Iterator[Finding]:
    if not best:
        return
    name = str(best.get("metric"))
    if name not in fields:
        says = f"the best row is chosen by {name!r}, which is no field of numbers: there are {', '.join(fields)}"
        yield unknown("diagnose_history", says).findings[0]
        return
    way, certain = _way(name, direction)
    mode = str(best.get("mode"))
    if way is not None and mode in ("min", "max") and mode != way:
        size = "small" if way == "min" else "large"
        says = f"the best row is chosen by the {mode} of {name}, which should be as {size} as possible"
        yield (DIRECTION.fault if certain else DIRECTION.suspicious)(says, metric=name, mode=mode)
    elif (chosen := way or mode) in ("min", "max"):
        yield from _taken(fields, roles, name, chosen, number_in(best.get("epoch")))
    stopped = str(best.get("stopped_on") or name)
    if stopped != name:
        says = f"training is stopped by {stopped}, and the weights are chosen by {name}"
        yield OTHER_METRIC.suspicious(says + _apart(fields, direction, name, stopped))


def _taken(
    fields: Mapping[str, list[float | None]], roles: Mapping[str, str], name: str, way: str, epoch: float | None
) -> Iterator[Finding]:
    held = _finite(fields[name])
    if epoch is None or not held:
        return
    places: Sequence[float | None] = fields[roles["epoch"]] if "epoch" in roles else range(len(fields[name]))
    taken = [(row, number) for row, number in held if places[row] == epoch]
    row, best = (min if way == "min" else max)(held, key=lambda each: each[1])
    if taken and all(number != best for _, number in taken):
        there = (min if way == "min" else max)(number for _, number in taken)
        place = "epoch" if "epoch" in roles else "row"
        says = f"{place} {epoch:g} was taken, where {name} is {there:.4g}; its {way} is {best:.4g}, in row {row}"
        yield DIRECTION.suspicious(says, taken=epoch, best=row)


def _apart(fields: Mapping[str, list[float | None]], direction: Mapping[str, str], one: str, other: str) -> str:
    """Return in words which rows two metrics would choose; nothing where that is not known."""
    rows = []
    for name in (one, other):
        way, held = _way(name, direction)[0], _finite(fields.get(name, []))
        if way is None or not held:
            return ""
        rows.append((min if way == "min" else max)(held, key=lambda each: each[1])[0])
    return f"; the best rows are {rows[1]} and {rows[0]}"
