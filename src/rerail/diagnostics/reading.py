"""A history in whatever form a logger wrote it: CSV, JSONL, JSON, a data frame, a mapping of lists."""

from __future__ import annotations

import csv
import decimal
import json
import numbers
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rerail.diagnostics.finding import CannotAnswer

ROLES = {
    "train": ("train_loss", "training_loss", "train_loss_epoch", "loss", "loss_train", "loss_training", "loss_epoch",
              "train_loss_step", "loss_step"),
    "validation": ("validation_loss", "val_loss", "valid_loss", "eval_loss", "dev_loss", "loss_validation", "loss_val",
                   "loss_valid", "loss_eval", "validation_loss_epoch", "val_loss_epoch", "valid_loss_epoch",
                   "eval_loss_epoch", "test_loss"),
    "gradient_norm": ("gradient_norm", "grad_norm", "unclipped_norm", "total_norm", "grad_2_0_norm_total"),
    "rate": ("learning_rate", "lr", "rate"),
    "epoch": ("epoch", "epochs"),
    "step": ("step", "global_step", "iteration", "iter", "batch"),
}  # fmt: skip
PLACE = (*ROLES["epoch"], *ROLES["step"])  # where a row stands, not what was measured


def read_history(path: str | Path) -> list[dict[str, Any]]:
    """Read a history from a CSV, JSONL or JSON file; rows of one epoch are joined.

    Training and validation values of one epoch often stand on rows of their own, with empty cells. Such a row is added
    to the last row of its epoch (of its step, where there is no epoch), unless the two hold the same field.

    Args:
        path: The file. A JSON file holds a list of rows, or a mapping of lists, also under "history" or "log_history".

    Returns:
        One mapping a row; an empty cell is left out.

    Raises:
        OSError: If the file cannot be read.
        ValueError: If it holds no history; the message names the line.

    Example:
        ```python
        rows = rerail.read_history("lightning_logs/version_0/metrics.csv")
        rows[-1]["val_loss"]
        ```
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
    try:
        reader = csv.DictReader(lines, delimiter=table, skipinitialspace=True)
        rows = list(reader)
    except csv.Error as error:
        raise ValueError(f"it is no table: {error}; expected a CSV with a line of names") from None
    for number, row in enumerate(rows):
        if any(cell.strip() for cell in row.get(None) or ()):
            names = len(reader.fieldnames or ())
            cells = names + len(row[None])
            raise ValueError(f"row {number} has {cells} cells under {names} names: {lines[number + 1][:60]!r}")
    cleaned = [
        {
            name.strip(): cell_of(value)
            for name, value in row.items()
            if name and isinstance(value, str) and value.strip()
        }
        for row in rows
    ]
    if not any(isinstance(value, float) for row in cleaned for value in row.values()):
        raise ValueError("it has no column of numbers: expected a CSV with a line of names, JSONL, or JSON")
    return _joined(cleaned)


def read_rows(path: str | Path) -> list[dict[str, Any]]:
    """Return the rows of a file."""
    try:
        return read_history(path)
    except OSError as error:
        reason = error.strerror or str(error)
    except ValueError as error:
        reason = str(error)
    raise CannotAnswer(f"{str(path)!r} was not read as a history: {reason}")


def _json(text: str) -> list[dict[str, Any]]:
    try:
        held = json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply for a history") from None
    except ValueError:
        held = []
        for number, line in enumerate(text.splitlines(), 1):
            if not line.strip():
                continue
            try:
                held.append(json.loads(line))
            except (ValueError, RecursionError):
                raise ValueError(f"line {number} is no JSON: {line.strip()[:60]!r}") from None
    for number, row in enumerate(held if isinstance(held, list) else ()):
        if not isinstance(row, Mapping):
            raise ValueError(f"row {number} is {str(row)[:60]!r}; expected an object with a number by name")
    return rows_in(held)


def rows_in(records: Any) -> list[dict[str, Any]]:
    """Return any form of a history as rows; what is no mapping stays as an empty row, so that numbers hold."""
    if isinstance(records, Mapping):
        for name in ("history", "log_history"):  # what Keras saves, what the trainer of transformers saves
            if isinstance(records.get(name), (list, Mapping)):
                return rows_in(records[name])
        columns = {
            str(name): list(value)
            for name, value in records.items()
            if isinstance(value, (list, tuple, range))
            or (hasattr(value, "tolist") and getattr(value, "ndim", None) != 0)
        }
        if not columns:
            return [{str(name): value for name, value in records.items()}] if records else []
        length = max(map(len, columns.values()))
        return [{name: value[row] for name, value in columns.items() if row < len(value)} for row in range(length)]
    if hasattr(records, "to_dict"):  # a data frame
        return rows_in(records.to_dict("list"))
    if hasattr(records, "history"):  # what `fit` of Keras returns
        return rows_in(records.history)
    if isinstance(records, Iterable) and not isinstance(records, (str, bytes)):
        return [
            {str(name): value for name, value in row.items()} if isinstance(row, Mapping) else {} for row in records
        ]
    raise CannotAnswer(f"a history is a list of mappings, a mapping of lists or a file, got {type(records).__name__}")


def _joined(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Join the rows of one epoch that hold different fields, as loggers write them."""
    joined: list[dict[str, Any]] = []
    last: dict[tuple[str, Any], int] = {}  # row in `joined` by epoch
    for row in rows:
        keys = {plain_name(name): value for name, value in row.items() if isinstance(value, (int, float, str))}
        place = next(((name, keys[name]) for name in PLACE if name in keys), None)
        at = last.get(place) if place is not None else None
        if at is not None and not measured_in(row) & measured_in(joined[at]):
            joined[at] = {**joined[at], **row}
            continue
        if place is not None:
            last[place] = len(joined)
        joined.append(dict(row))
    return joined


def measured_in(row: Mapping[str, Any]) -> set[str]:
    """Return the names of what a row measured, its place left out."""
    return {name for name in row if plain_name(name) not in PLACE}


def plain_name(name: str) -> str:
    """Return a name in small letters, with `_` for all that parts words."""
    return re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")


def cell_of(text: str) -> Any:
    """Return a number where a text is one, else the text."""
    try:
        return float(text)
    except ValueError:
        return text


def number_in(value: Any) -> float | None:
    """Return a number, also of NumPy, torch or TensorFlow; None for a truth value, a text, a missing one."""
    if isinstance(value, bool) or value is None or isinstance(value, (str, bytes)):
        return None
    if isinstance(value, (numbers.Real, decimal.Decimal)):
        try:
            return float(value)
        except (OverflowError, ValueError):
            return None
    dtype = str(getattr(value, "dtype", ""))
    if not dtype or "bool" in dtype or "complex" in dtype:
        return None
    try:
        return float(value.item() if hasattr(value, "item") else value.numpy())
    except (AttributeError, ValueError, TypeError, RuntimeError, OverflowError):
        return None  # several numbers, or none
