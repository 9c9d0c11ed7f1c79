"""The history checker says that every number is finite, and the run is dead."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rerail.checks import Edit, Failed, Trap, function
from rerail.evidence import Evidence

LAYER, MINUTES, ORDER, POINTS = "process", 8, 1, 1
GRADED = ("nonfinite",)
RECORDED = {
    "reported": "for each value of the grader's own history, counted through its 8 rows: whether `nonfinite` named it",
    "reported_again": "how many pairs name a place that another has named",
    "reported_elsewhere": "how many pairs name a place that has no value",
    "history_changed": "whether the history was changed",
}
BASELINE = "check_every_bad_number_is_found"
HINTS = (
    "observe: the printed rows show numbers that are not finite; which of them does the scan look at? Print the field "
    "names that it goes through",
    "locate: compare those names with the names in the last row",
    "explain: what the list of fields is made from, and what had not been logged yet when that was written",
    "shape of the fix: every row is asked for its own fields; no row speaks for the others",
)

NAN, INF = float("nan"), float("inf")
History = list[dict[str, Any]]
Flags = NDArray[np.bool_]


def cases(seed: int) -> list[dict[str, Any]]:
    """The history of the seed lesson; odd values in the corners; random ones; a single row; good ones; none."""
    return [
        {"history": _late()},
        {"history": _corners()},
        {"history": _random(17, seed)},
        {"history": _random(2, seed + 1)},
        {"history": [{"loss": -INF, "norm": 2, "ok": True}]},
        {"history": [{"a": 1e300, "b": -1e300, "c": 0, "d": 10**15, "e": 5e-324, "note": "nan"} for _ in range(5)]},
        {"history": [{}, {"only": -INF}, {}, {"only": -INF}]},  # equal rows: their numbers are not
        {"history": _named()},
        {"history": _random(300, seed + 2)},
        {"history": [{"a": NAN if row in (1000, 1990) else 1.0} for row in range(2000)]},
        {"history": []},
    ]


def _late() -> History:
    """Fields that begin late, as in the script, and one that is None at first."""
    rows: History = [{"step": i, "train_loss": 1 / (i + 1), "norm": None if i < 2 else float(i)} for i in range(8)]
    rows[3]["validation_loss"] = 0.4
    rows[6] |= {"validation_loss": NAN, "note": "nan"}
    rows[7] |= {"norm": INF, "scale": -INF, "saved": True}
    return rows


def _corners() -> History:
    """A bad number first and last, of each kind, beside what must be left alone."""
    rows: History = [{"step": 50 * i, "a": 1.0, "b": 2, "text": "inf", "flag": False, "none": None} for i in range(6)]
    rows[0] |= {"a": NAN, "b": -INF}
    rows[2] |= {"a": -INF, "extra": INF, "a text": "NaN"}
    rows[5] |= {"a": INF, "b": NAN, "extra": 1e307}
    del rows[3]["a"]
    return rows


def _named() -> History:
    """Names that a scan may take for something else; steps that are no row numbers; one row logged twice; a large int."""
    row = {"step": 70, "twice": NAN}
    names = ("", "_x", "note", "clipped", "epoch", "time", "lr", "global_step", "Val/Loss ", " val/loss", 'Größe, "m"')
    cases = {"lr": 0.1, "LR": INF, "loss": 1.0, "Loss": NAN}
    return [row, {"step": 50, "size": 10**300} | dict.fromkeys(names, INF), row, {"step": NAN, "a": -NAN}, cases]


def _random(count: int, seed: int) -> History:
    rng = np.random.default_rng(seed)
    values = (0.5, -3, 1e290, NAN, INF, -INF, None, "nan", "0.5", True)
    names = [f"field {i}" for i in rng.permutation(9)]
    return [{n: values[int(rng.integers(10))] for n in names if rng.random() < 0.6} for _ in range(count)]


def probe(script: Any, batch: dict[str, Any]) -> dict[str, Any]:
    """Record one flag a cell, and what was named that is no cell; and whether the history was changed."""
    from rerail import probes

    history = batch["history"]
    before = repr(history)
    saved = history[:]
    for others in ([{"other run": -INF} for _ in history], [dict.fromkeys(row, -INF) for row in history]):
        history[:] = others
        script.nonfinite(history)  # an answer about another history of this length, or with its names, must not return
    history[:] = saved
    found = script.nonfinite(history)
    try:
        pairs = [(row, str(name)) for row, name in found]
        len(found)  # a generator would be empty for whoever looks at it next
        if any(isinstance(row, str) for row, _ in pairs):  # the other way round
            raise ValueError
    except (TypeError, ValueError):
        raise probes.Unusable(
            f"`nonfinite` must return a list of pairs (row number, field name), got {probes.described(found)}"
        ) from None
    named = set(pairs)
    return {
        "reported": np.array([cell in named for cell in _cells(batch["history"])], bool),
        "reported_again": len(pairs) - len(named),
        "reported_elsewhere": len(named - set(_cells(batch["history"]))),
        "history_changed": repr(history) != before,
    }


def _cells(history: History) -> list[tuple[int, str]]:
    return [(number, name) for number, row in enumerate(history) for name in row]


def _bad(history: History) -> Flags:
    """Tell for every cell whether it holds a number that is not finite: the definition of the header."""
    values = [history[number][name] for number, name in _cells(history)]
    return np.array([type(v) in (int, float) and not math.isfinite(v) for v in values], bool)


def check_history_is_left_as_it_is(run: Evidence) -> None:
    """the scan leaves the history as it is"""
    if run.history_changed:
        raise Failed("the scan changed the history: whoever reads it next sees another run")


def check_every_bad_number_is_found(run: Evidence, batch: dict[str, Any]) -> None:
    """every number that is not finite is found, in every row and field"""
    missed = _bad(batch["history"]) & ~run.reported
    if missed.any():
        number, name = _cells(batch["history"])[int(np.argmax(missed))]
        raise Failed(
            f"{missed.sum()} of {_bad(batch['history']).sum()} numbers that are not finite are missed, "
            f"one of them in row {number} (the rows are 0 to {len(batch['history']) - 1})",
            show={f"row {number}, {name}": batch["history"][number][name]},
        )


def check_nothing_else_is_named(run: Evidence, batch: dict[str, Any]) -> None:
    """no finite number, no text, no truth value, nothing that was not logged, and nothing twice is named"""
    wrong = ~_bad(batch["history"]) & run.reported
    if wrong.any():
        number, name = _cells(batch["history"])[int(np.argmax(wrong))]
        raise Failed(
            f"{wrong.sum()} places without a fault are named, one of them in row {number}",
            show={f"row {number}, {name}": repr(batch["history"][number][name])},
        )
    if run.reported_again:
        raise Failed(
            f"{run.reported_again} of the pairs name a place that another has named: the faults are not so many"
        )
    if run.reported_elsewhere:
        raise Failed(f"{run.reported_elsewhere} of the pairs name a place where the history has no value")


FIELDS = """\
    row = history[0]
    return [name for name, value in row.items() if type(value) in (int, float)]
"""
TEST = "            if type(value) in (int, float) and not math.isfinite(value):\n"
LOOP = """\
    found = []
    for name in numeric_fields(history):
        for number, row in enumerate(history):
            value = row.get(name)
"""
ALL = "    return {name for row in history for name in row}\n"

ACCEPTED: dict[str, list[Edit]] = {
    "the fields of all rows": [(FIELDS, ALL)],
    "row by row, each by its own fields": [
        (
            LOOP,
            """\
    found = []
    for number, row in enumerate(history):
        for name, value in row.items():
""",
        )
    ],
    "a comprehension": [
        function(
            "nonfinite",
            """
def nonfinite(history):
    return [
        (i, k)
        for i, row in enumerate(history)
        for k, v in row.items()
        if isinstance(v, (int, float)) and not isinstance(v, bool) and not -math.inf < v < math.inf
    ]
""",
        )
    ],
    "a difference that is not zero": [(FIELDS, ALL), ("not math.isfinite(value)", "value - value != 0")],
    "texts left out by name": [
        (FIELDS, "    return list(dict.fromkeys(name for row in history for name in row))\n"),
        (TEST, '            if isinstance(value, float) and str(value).lstrip("-") in ("nan", "inf"):\n'),
    ],
}
TRAPS: dict[str, Trap] = {
    "the last row speaks for all": Trap(
        [("row = history[0]", "row = history[-1]")],
        "check_every_bad_number_is_found",
        "the last row logs other fields than the first, and not all of them either",
    ),
    "the fields of this log": Trap(
        [(FIELDS, '    return ["train_loss", "validation_loss", "gradient_norm", "scale"]\n')],
        "check_every_bad_number_is_found",
        "the next run logs under other names, and this scan will call it healthy",
    ),
    "the longest row": Trap(
        [("row = history[0]", "row = max(history, key=len)")],
        "check_every_bad_number_is_found",
        "no single row has every field",
    ),
    "nan alone": Trap(
        [(FIELDS, ALL), ("not math.isfinite(value)", "value != value")],
        "check_every_bad_number_is_found",
        "nan is unequal to itself; inf and -inf are equal to themselves",
    ),
    "larger than any loss": Trap(
        [(FIELDS, ALL), ("not math.isfinite(value)", "not abs(value) < 1e6")],
        "check_nothing_else_is_named",
        "1e300 is a finite number: a scan that cries at large numbers will be switched off",
    ),
    "texts read as numbers": Trap(
        [
            (FIELDS, ALL),
            (TEST, '            if value not in (None, "start", "saved") and not math.isfinite(float(value)):\n'),
        ],
        "check_nothing_else_is_named",
    ),
    "a missing value is a fault": Trap(
        [(FIELDS, ALL), (TEST, "            if value is None or type(value) is float and not math.isfinite(value):\n")],
        "check_nothing_else_is_named",
        "most fields are logged now and then: what was not logged is not broken",
    ),
    "mend the log": Trap(
        [
            (FIELDS, ALL),
            (
                "                found.append((number, name))\n",
                "                found.append((number, name))\n                row[name] = 0.0\n",
            ),
        ],
        "check_history_is_left_as_it_is",
        "the scan reports once, and hides the death of the run from everyone after it",
    ),
    "a row looked up by what it holds": Trap(
        [
            function(
                "nonfinite",
                """
def nonfinite(history):
    cells = [(history.index(row), name, value) for row in history for name, value in row.items()]
    return [(i, n) for i, n, v in cells if type(v) in (int, float) and not math.isfinite(v)]
""",
            )
        ],
        "check_every_bad_number_is_found",
        "`index` answers with the first row that is equal: of two rows alike the second is never named",
    ),
    "the first one is enough": Trap(
        [
            (FIELDS, ALL),
            ("                found.append((number, name))\n", "                return [(number, name)]\n"),
        ],
        "check_every_bad_number_is_found",
        "the first in which order? The earliest row may stand in another field",
    ),
    "the fields of all rows, once for every row": Trap(
        [(FIELDS, "    return [name for row in history for name in row]\n")],
        "check_nothing_else_is_named",
        "a field that all rows have is scanned once for each of them, and its faults are counted as often",
    ),
}
