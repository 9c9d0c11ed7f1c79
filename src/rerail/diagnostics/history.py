"""The history of a run, read for what its numbers alone can show: signals and their limits, never causes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rerail.diagnostics import curves
from rerail.diagnostics.finding import CannotAnswer, Cause, Finding, Report, answers, unknown
from rerail.diagnostics.reading import PLACE, ROLES, cell_of, number_in, plain_name, read_rows, rows_in

# Names as `_plain_name` gives them: "train/loss", "Train loss" and "train-loss" are all train_loss. The first counts.
SMALL = {"loss", "error", "mse", "mae", "rmse", "perplexity", "ppl", "wer", "cer", "fid", "nll", "bce"}
LARGE = {"accuracy", "acc", "f1", "auc", "auroc", "iou", "miou", "dice", "bleu", "rouge", "recall", "precision", "r2",
         "psnr", "ssim", "return", "reward"}  # fmt: skip
CERTAIN = {"loss", "accuracy", "acc"}  # a name with one of these has one direction; the others are said with a doubt


MISSING = ("", "none", "null", "na", "n_a")  # how a logger writes what it has not, as `plain_name` gives it

COLUMNS = ("field", "rows", "first", "last", "least", "largest", "not finite")

NOT_FINITE = Cause(
    "values.non_finite_history",
    refute="nan stands for an empty cell there, as a data frame writes it",
    next="replay the first of these rows: rerail.first_nonfinite(step, model, optimizer)",
    wrong_fixes=("skipping the row", "plotting without it"),
)
DIRECTION = Cause(
    "evaluation.best_epoch_by_wrong_direction",
    refute="the name of the metric misleads: `direction` says which way it should go",
    next="derive the mode from the metric: a loss is minimised, an accuracy maximised",
    wrong_fixes=("keeping all and choosing by eye", "monitoring the training loss"),
)
OTHER_METRIC = Cause(
    "evaluation.stopped_on_another_metric",
    refute="both metrics are best in the same row, or the weights of the last row are the ones that are used",
    next="give stopping and checkpoint the same metric and mode, and say which weights are returned",
    wrong_fixes=("a longer patience",),
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
        raise CannotAnswer(f"the history has {f'{len(rows)} rows, and no field in them' if rows else 'no rows'}")
    fields = _fields(rows)
    if not fields:
        raise CannotAnswer(f"the history has {len(rows)} rows and no number in them")
    roles = _found_roles(fields)
    empty = _empty_cells(fields)
    frame = hasattr(records, "to_dict") and not isinstance(records, Mapping)
    findings = [*_not_finite(fields, roles, _blank_in_frame(fields, empty) if frame else set(), empty, frame)]
    findings += _words(rows, fields)
    series = {role: _finite(fields[name]) for role, name in roles.items()}
    losses = {role: series.get(role, []) for role in ("train", "validation") if ways.get(roles.get(role, "")) != "max"}
    findings += curves.read_losses(losses.get("train", []), losses.get("validation", []), wanted)
    findings += curves.read_norms([number for _, number in series.get("gradient_norm", [])])
    findings += curves.read_rates(fields, roles, len(rows))
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
    if len(rows) < curves.TREND:
        facts["trends"] = f"not judged: {curves.TREND} rows are the least"
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


def _words(rows: Sequence[Mapping[str, Any]], fields: Mapping[str, list[float | None]]) -> Iterator[Finding]:
    """Tell what was left out: words where numbers are read, in a field that has numbers or is named as a loss is."""
    measures = {name for role, names in ROLES.items() if role not in ("epoch", "step") for name in names}
    for name in dict.fromkeys(name for row in rows for name in row):
        if plain_name(name) in PLACE or not (name in fields or plain_name(name) in measures):
            continue
        cells = [(number, row[name]) for number, row in enumerate(rows) if isinstance(row.get(name), str)]
        words = [each for each in cells if isinstance(cell_of(each[1]), str) and plain_name(each[1]) not in MISSING]
        if words:
            row, word = words[0]
            many = f"{len(words)} cells hold" if len(words) > 1 else "1 cell holds"
            says = f"{many} no number in {name}, which was read without them; the first is {word[:40]!r} in row {row}"
            yield unknown("diagnose_history", says).findings[0]


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
