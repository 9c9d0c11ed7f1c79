"""The history of a run, read for what its numbers alone can show: signals and their limits, never causes."""

from __future__ import annotations

import csv
import itertools
import json
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rerail.diagnostics.finding import CannotAnswer, Cause, Finding, Report, answers

TRAIN = ("train_loss", "training_loss", "loss", "train/loss", "loss/train", "train_loss_epoch")
VALIDATION = ("validation_loss", "val_loss", "valid_loss", "eval_loss", "val/loss", "loss/val", "test_loss")
NORM = ("gradient_norm", "grad_norm", "unclipped_norm", "grad/norm", "gradient norm")
RATE = ("learning_rate", "lr", "rate", "lr-sgd", "lr-adam", "lr-adamw")
PLACE = ("epoch", "step", "global_step", "iteration", "batch")

GROWTH = 30.0  # of the gradient norm over the median of its first quarter; healthy spikes of single steps stay below
RISES = 3.0  # times the noise of the series, by which it must end above its best
FLAT = 1e-3  # relative range of the last half of a series that no longer moves
AT_CHANCE = 0.02  # relative distance from ln C
COLLAPSED = 1e-3  # share of its first value that a rate has left after one epoch
EXPLODED = 10.0  # of the last loss over the first, for a loss that is positive

NOT_FINITE = Cause(
    "values.non_finite_history",
    refute="the field is meant to be empty there, and nan stands for that",
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
    refute="the loss is a sum over longer and longer batches",
    next="log the unclipped norm by layer, and find the first layer in which it grows",
    wrong_fixes=("clipping, and leaving it at that", "a threshold of 100, whatever the scale of the loss"),
)
CHANCE = Cause(
    "tiny_batch.plateau_at_chance",
    refute="the labels are random, or the inputs say nothing about them",
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
    refute="the metric is one that should be as large as possible",
    next="derive the mode from the metric: a loss is minimised",
    wrong_fixes=("keeping all and choosing by eye", "monitoring the training loss"),
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


@answers
def diagnose_history(
    records: Any,
    *,
    direction: Mapping[str, str] | None = None,
    classes: int | None = None,
    best: Mapping[str, Any] | None = None,
) -> Report:
    """Read the history of a run: every number that is not finite, and the signals that a curve can give.

    A curve shows that something is so, and hardly ever why: apart from numbers that are not finite, all that it shows
    is at most "suspicious". A validation loss below the training loss is no signal: dropout explains it.

    Args:
        records: A list of mappings, one a row; a mapping of lists; or the path of a CSV, JSONL or JSON file, such as
            the `metrics.csv` of Lightning or the saved `history.history` of Keras.
        direction: "min" or "max" by field, for numbers whose name does not say it; all losses are "min".
        classes: The number of classes, for the plateau at ln C.
        best: What was taken as the best row: `{"metric": name, "mode": "min" or "max", "epoch": number}`, and
            "stopped_on" if the training was stopped by another metric.

    Returns:
        A report; `facts` say which field was read as what.

    Example:
        ```python
        print(rerail.diagnose_history("logs/version_3/metrics.csv", classes=10))
        ```
    """
    rows = read_history(records) if isinstance(records, (str, Path)) else _rows(records)
    if not rows:
        raise CannotAnswer("the history has no rows")
    fields = {name: [_number(row.get(name)) for row in rows] for name in _numeric_fields(rows)}
    if not fields:
        raise CannotAnswer(f"the history has {len(rows)} rows and no number in them")
    roles = {role: _named(fields, names) for role, names in _ROLES.items()}
    facts: dict[str, Any] = {"rows": len(rows), **{role: name for role, name in roles.items() if name}}
    findings = [*_not_finite(fields)]
    series = {role: _finite(fields[name]) for role, name in roles.items() if name}
    raised = {name for name, way in (direction or {}).items() if way == "max"}
    losses = {
        role: numbers
        for role, numbers in series.items()
        if role in ("train", "validation") and roles[role] not in raised
    }
    findings += _losses(losses, classes)
    findings += _norms(series.get("gradient_norm", []))
    findings += _rates(rows, fields, roles)
    findings += _best(fields, best, direction or {})
    return Report("diagnose_history", tuple(findings), facts)


def read_history(path: str | Path) -> list[dict[str, Any]]:
    """Read a history from a CSV, JSONL or JSON file; rows of one epoch are joined.

    Args:
        path: The file. A JSON file holds a list of rows, or a mapping of lists.

    Returns:
        One mapping a row; an empty cell is left out.

    Raises:
        OSError: If the file cannot be read.
        ValueError: If it holds no history; the message names the line.
    """
    text = Path(path).read_text("utf-8", errors="replace").lstrip("\ufeff")
    if "\0" in text:
        raise ValueError("it is no text: give the log, not the checkpoint")
    if text.lstrip().startswith(("[", "{")):
        return _joined(_json(text))
    lines = [line for line in text.splitlines() if line.strip()]
    if not lines:
        return []
    try:
        table = csv.Sniffer().sniff("\n".join(lines[:5]), ",;\t").delimiter
    except csv.Error:
        table = ","
    rows = list(csv.DictReader(lines, delimiter=table))
    cleaned = [
        {name: _cell(value) for name, value in row.items() if name and isinstance(value, str) and value.strip()}
        for row in rows
    ]
    if not any(isinstance(value, float) for row in cleaned for value in row.values()):
        raise ValueError("it has no column of numbers: expected a CSV with a line of names, JSONL, or JSON")
    return _joined(cleaned)


def _json(text: str) -> list[dict[str, Any]]:
    try:
        held = json.loads(text)
    except ValueError:
        held = []
        for number, line in enumerate(text.splitlines(), 1):
            if not line.strip():
                continue
            try:
                held.append(json.loads(line))
            except ValueError:
                raise ValueError(f"line {number} is no JSON: {line.strip()[:60]!r}") from None
    return _rows(held)


def _rows(records: Any) -> list[dict[str, Any]]:
    """Return any form of a history as rows."""
    if isinstance(records, Mapping):
        if isinstance(records.get("history"), (list, Mapping)):
            return _rows(records["history"])
        columns = {
            str(name): list(value)
            for name, value in records.items()
            if isinstance(value, (list, tuple)) or hasattr(value, "tolist")
        }
        if not columns:
            return [{str(name): value for name, value in records.items()}] if records else []
        length = max(map(len, columns.values()))
        return [{name: value[row] for name, value in columns.items() if row < len(value)} for row in range(length)]
    if hasattr(records, "to_dict"):  # a data frame
        return _rows(records.to_dict("list"))
    if hasattr(records, "history"):  # what `fit` of Keras returns
        return _rows(records.history)
    if isinstance(records, Iterable) and not isinstance(records, (str, bytes)):
        return [{str(name): value for name, value in row.items()} for row in records if isinstance(row, Mapping)]
    raise CannotAnswer(f"a history is a list of mappings, a mapping of lists or a file, got {type(records).__name__}")


def _joined(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Join the rows of one step or epoch that hold different fields, as loggers write them."""
    joined: list[dict[str, Any]] = []
    for row in rows:
        names = {name for name in row if name.lower() not in PLACE}
        last = joined[-1] if joined else {}
        same = [name for name in row if name.lower() == "epoch" and last.get(name) == row[name]]
        if same and not names & set(last):
            joined[-1] = {**last, **row}
        else:
            joined.append(dict(row))
    return joined


def _cell(text: str) -> Any:
    try:
        return float(text)
    except ValueError:
        return text


def _number(value: Any) -> float | None:
    """Return a number, also of NumPy or torch; None for what is none: a truth value, a text, a missing one."""
    if isinstance(value, bool) or value is None or isinstance(value, (str, bytes)):
        return None
    if isinstance(value, int):
        try:
            return float(value)
        except OverflowError:
            return None
    if isinstance(value, float):
        return value
    dtype = str(getattr(value, "dtype", ""))
    if dtype and "bool" not in dtype and "complex" not in dtype and hasattr(value, "item"):
        try:
            return float(value.item())
        except (ValueError, TypeError, RuntimeError):
            return None
    return None


def _numeric_fields(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    names = dict.fromkeys(name for row in rows for name in row)
    return [name for name in names if any(_number(row.get(name)) is not None for row in rows)]


_ROLES = {"train": TRAIN, "validation": VALIDATION, "gradient_norm": NORM, "rate": RATE, "epoch": ("epoch",)}


def _named(fields: Mapping[str, Any], names: tuple[str, ...]) -> str | None:
    lower = {name.lower(): name for name in fields}
    return next((lower[name] for name in names if name in lower), None)


def _finite(numbers: list[float | None]) -> list[float]:
    return [number for number in numbers if number is not None and math.isfinite(number)]


def _not_finite(fields: Mapping[str, list[float | None]]) -> list[Finding]:
    broken = [
        (row, name, number)
        for name, numbers in fields.items()
        for row, number in enumerate(numbers)
        if number is not None and not math.isfinite(number)
    ]
    if not broken:
        return []
    broken.sort(key=lambda each: each[0])
    row, name, number = broken[0]
    says = f"{len(broken)} numbers are not finite; the first is {name} = {number} in row {row}"
    where = [f"row {row}, {name}" for row, name, _ in broken]
    return [NOT_FINITE.fault(says, where=where, first_row=row, first_field=name, numbers=len(broken))]


def _losses(losses: Mapping[str, list[float]], classes: int | None) -> list[Finding]:
    train, validation = losses.get("train", []), losses.get("validation", [])
    findings = [*_overfit(train, validation)]
    if len(train) >= 5:
        findings += _stuck(train, classes)
        findings += _diverging(train)
    if len(validation) >= 5 and len(set(validation)) == 1 and len(set(train)) > 2 and validation[0] != 0:
        says = (
            f"the validation loss is {validation[0]:.6g} in all {len(validation)} rows, while the training loss moves"
        )
        findings.append(REPEATED.suspicious(says))
    return findings


def _overfit(train: list[float], validation: list[float]) -> list[Finding]:
    """See train fall while validation rises: since its best row, by more than it scatters."""
    if len(train) < 3 or len(validation) < 3:
        return []
    best = min(range(len(validation)), key=validation.__getitem__)
    rise = validation[-1] - validation[best]
    part = best * len(train) // len(validation)
    falls = statistics.fmean(train[-max(1, len(train) // 5) :]) < train[min(part, len(train) - 1)]
    if best == len(validation) - 1 or not falls:
        return []
    noise = _noise(validation[: best + 1]) if best >= 3 else 0.0
    least = max(RISES * noise, 0.05 * abs(validation[best]))
    if len(validation) > 5 and (len(validation) - 1 - best < 2 or min(validation[-2:]) - validation[best] <= least):
        return []  # one row is no trend
    if rise <= least:
        return []
    says = f"the training loss falls to {train[-1]:.4g}, the validation loss rises "
    says += f"from {validation[best]:.4g} (row {best}) to {validation[-1]:.4g}"
    return [OVERFIT.suspicious(says, best_row=best, rise=rise)]


def _noise(numbers: list[float]) -> float:
    """Return the typical size of a jump from row to row, robustly."""
    jumps = [abs(two - one) for one, two in itertools.pairwise(numbers)]
    return statistics.median(jumps) if jumps else 0.0


def _stuck(train: list[float], classes: int | None) -> list[Finding]:
    if len(set(train)) == 1:
        if train[0] == 0:
            return []
        says = f"the training loss is {train[0]:.6g} to the last digit in all {len(train)} rows"
        return [CONSTANT.suspicious(says)]
    late = train[len(train) // 2 :]
    level = statistics.fmean(late)
    if level <= 0 or max(late) - min(late) > 20 * FLAT * level or abs(train[0] - level) > 0.5 * level:
        return []
    if classes is not None and classes > 1:
        chance, soft = math.log(classes), math.log(math.e + classes - 1) - 1
        if abs(level - chance) < AT_CHANCE * chance:
            says = f"the training loss stays at {level:.4f}: ln {classes} is {chance:.4f}, what equal scores cost"
            return [CHANCE.suspicious(says, level=level, chance=chance)]
        if abs(level - soft) < AT_CHANCE * soft:
            says = f"the training loss stays at {level:.4f}: the floor of cross entropy on probabilities is {soft:.4f}"
            return [SOFT.suspicious(says, level=level, floor=soft)]
        return []
    nearest = round(math.exp(level)) if level < math.log(1e5) else 0
    if 2 <= nearest <= 1000 and abs(level - math.log(nearest)) < 2e-3 and max(late) - min(late) < 5 * FLAT * level:
        says = f"the training loss stays at {level:.4f}, which is ln {nearest}: are there {nearest} classes?"
        return [CHANCE.suspicious(says, level=level, chance=math.log(nearest))]
    return []


def _diverging(train: list[float]) -> list[Finding]:
    first, last = statistics.median(train[:3]), statistics.median(train[-3:])
    if first > 0 and last > EXPLODED * first and max(train) in train[-max(3, len(train) // 4) :]:
        says = f"the training loss ends at {last:.4g}, {last / first:.3g} times where it began"
        return [DIVERGING.suspicious(says, first=first, last=last)]
    return []


def _norms(norms: list[float]) -> list[Finding]:
    """Compare the last norms with the first of the same run: no number is large by itself."""
    if len(norms) < 3:
        return []
    first = statistics.median(norms[: max(1, len(norms) // 4)])
    last = statistics.median(norms[-max(1, len(norms) // 10) :])
    if first > 0 and last > GROWTH * first:
        says = f"the gradient norm ends at {last:.4g}, {last / first:.3g} times its first values"
        return [GROWING.suspicious(says, first=first, last=last, ratio=last / first)]
    return []


def _rates(
    rows: Sequence[Mapping[str, Any]], fields: Mapping[str, list[float | None]], roles: Mapping[str, str | None]
) -> list[Finding]:
    name, epoch = roles["rate"], roles["epoch"]
    if name is None or epoch is None:
        return []
    pairs = [
        (place, rate)
        for place, rate in zip(fields[epoch], fields[name], strict=True)
        if place is not None and rate is not None and math.isfinite(place)
    ]
    if not pairs or pairs[-1][0] - pairs[0][0] < 3:
        return []
    largest = max(rate for _, rate in pairs)
    second = [rate for place, rate in pairs if place - pairs[0][0] >= 1]
    if largest > 0 and second and max(second) < COLLAPSED * largest:
        says = f"the rate is {max(second):.3g} from the second epoch on, {max(second) / largest:.1e} of its largest"
        return [COLLAPSE.suspicious(says, rate=max(second), largest=largest)]
    return []


def _best(
    fields: Mapping[str, list[float | None]], best: Mapping[str, Any] | None, direction: Mapping[str, str]
) -> list[Finding]:
    if not best or best.get("metric") not in fields:
        return []
    name = str(best["metric"])
    wanted = direction.get(name) or ("min" if "loss" in name.lower() or "error" in name.lower() else None)
    numbers = [(number, row) for row, number in enumerate(fields[name]) if number is not None and math.isfinite(number)]
    findings = []
    if wanted and best.get("mode") and best["mode"] != wanted:
        size = "small" if wanted == "min" else "large"
        says = f"the best row is chosen by the {best['mode']} of {name}, which should be as {size} as possible"
        findings.append(DIRECTION.fault(says, metric=name, mode=str(best["mode"])))
    elif wanted and numbers and best.get("epoch") is not None:
        row = (min(numbers) if wanted == "min" else max(numbers))[1]
        taken = [number for number, each in numbers if each == best["epoch"]]
        if taken and taken[0] != fields[name][row]:
            says = f"row {best['epoch']} was taken, the {wanted} of {name} is in row {row}"
            findings.append(DIRECTION.suspicious(says, taken=best["epoch"], best=row))
    if best.get("stopped_on") and best["stopped_on"] != name:
        says = f"training is stopped by {best['stopped_on']}, and the weights are chosen by {name}"
        findings.append(DIRECTION.suspicious(says))
    return findings
