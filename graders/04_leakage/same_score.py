"""The scores stay where they are, and yet one test wine moves every prediction."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rerail.checks import Edit, Failed, Trap, function
from rerail.evidence import Evidence

LAYER, MINUTES, ORDER, POINTS = "data", 10, 1, 1
GRADED = ("experiment",)
RECORDED = {
    "accuracy/*": "the accuracy by part for a table of 60 wines",
    "plain": "the probabilities of these wines",
    "near": "the same after a small change of all wines of one scored part",
    "far": "the same after a large change of one scored wine",
    "reverse": "the probabilities when the table is handed over in reverse",
}
BASELINE = "check_scored_wines_have_no_say_in_other_predictions"
HINTS = (
    "observe: run `experiment` twice, the second time with one test wine changed, and compare what reaches `train` "
    "in the two runs, value by value",
    "locate: which wines are trained on, and their labels, is the same in both runs; look at the step between the table "
    "and those rows, and at which rows each number in it is computed from",
    "explain: a mean over rows is a message from each of those rows to every row that is scaled with it; the scores "
    "need not move for that",
    "shape of the fix: decide first who may be seen, learn the scale from those rows alone, then apply that one scale "
    "to every wine",
)

Floats = NDArray[np.float64]

STEPS, LEARNING_RATE, CULTIVARS = 20, 0.5, 3  # the header keeps them
SCORED = {"validation": 1, "test": 0}  # of every five wines: the places of those that are only scored
# A prediction that nothing of a changed wine reaches is the same to the last bit. Over 40 seeds, the smallest move
# that a leak in TRAPS causes on a batch is 0.03.
UNMOVED = 1e-5
# Float32 and eps <= 1e-5 in the deviation move a probability by less than 1e-4; statistics of all wines instead of
# those that are trained on by 0.05 or more (40 seeds).
EXACT = 1e-3


def cases(seed: int) -> list[dict[str, Any]]:
    """Tables of overlapping cultivars, in units as different as those of the wines."""
    return [
        _wines(60, 13, 0, "test", "validation"),
        _wines(43, 5, seed, "validation", "test"),
        _wines(31, 7, seed + 1, "test", "validation"),
    ]


def _wines(count: int, columns: int, seed: int, near: str, far: str) -> dict[str, Any]:
    """Make a table and two changes of it: all wines of one part a little off, and one wine of another far off."""
    rng = np.random.default_rng(seed)
    y = rng.permutation(np.arange(count) % CULTIVARS)
    scale = 10 ** rng.uniform(-0.3, 2.5, size=columns)
    x = (rng.normal(size=(CULTIVARS, columns))[y] + rng.normal(size=(count, columns)) + rng.uniform(2, 8)) * scale
    close, labels, distant = x.copy(), y.copy(), x.copy()
    close[SCORED[near] :: 5] += scale
    labels[SCORED[near] :: 5] = (y[SCORED[near] :: 5] + 1) % CULTIVARS
    distant[SCORED[far]] = 1e6 * scale
    changes = {"near": {"x": close, "y": labels, "part": near}, "far": {"x": distant, "y": y, "part": far}}
    return {"x": x, "y": y, **changes}


def probe(script: Any, batch: dict[str, Any]) -> dict[str, Any]:
    """Predict with the table as it is, with scored wines changed, and with the rows in reverse."""
    accuracy, plain = _predicted(script, batch["x"], batch["y"])
    return {
        "accuracy": accuracy,
        "plain": plain,
        "near": _predicted(script, batch["near"]["x"], batch["near"]["y"])[1],
        "far": _predicted(script, batch["far"]["x"], batch["far"]["y"])[1],
        "reverse": _predicted(script, batch["x"][::-1], batch["y"][::-1])[1],
    }


def _predicted(script: Any, x: Floats, y: NDArray[np.int64]) -> tuple[dict[str, float], Any]:
    from rerail import probes

    returned = script.experiment(x.copy(), y.copy())
    if not (isinstance(returned, tuple | list) and len(returned) == 2 and isinstance(returned[0], Mapping)):
        found = probes.described(returned)
        raise probes.Unusable(f"`experiment` must return the accuracy by part and the probabilities, got {found}")
    scores, probabilities = returned
    missing = [part for part in SCORED if part not in scores]
    if missing:
        raise probes.Unusable(f"the accuracies that `experiment` returns must name {missing[0]!r}, got {list(scores)}")
    accuracy = {part: probes.number(scores[part], f"the accuracy of {part!r}") for part in SCORED}
    table = probes.array(probabilities, "the probabilities that `experiment` returns")
    if table.shape != (len(x), CULTIVARS):
        expected = (len(x), CULTIVARS)
        raise probes.Unusable(f"the probabilities of {len(x)} wines must have shape {expected}, got {table.shape}")
    return accuracy, table


def check_scored_wines_have_no_say_in_other_predictions(run: Evidence, batch: dict[str, Any]) -> None:
    """a wine that is only scored has no say in the prediction for another wine"""
    for kind, what in (("near", "all {} wines a little"), ("far", "one {} wine")):
        same = (batch["x"] == batch[kind]["x"]).all(axis=1)
        moved = np.abs(run[kind] - run.plain).max(axis=1)[same]
        if not moved.max() <= UNMOVED:  # nan fails
            raise Failed(
                f"changing {what.format(batch[kind]['part'])} moved the prediction for "
                f"{(~(moved <= UNMOVED)).sum()} of {len(moved)} other wines",
                show={"largest move of a probability": float(moved.max()), "expected": 0.0},
            )


def check_model_is_trained_on_standardized_wines(run: Evidence, batch: dict[str, Any]) -> None:
    """the model is the one that 20 steps give on training wines with mean 0 and deviation 1"""
    for order, name in ((slice(None), "plain"), (slice(None, None, -1), "reverse")):
        x, y = batch["x"][order], batch["y"][order]
        wrong = min(_apart(run[name], exact, _trained_on(len(x))) for exact in _right(x, y))
        if not wrong <= EXACT:
            raise Failed(
                "the predictions for the wines that are trained on are not those of this model on standardized wines",
                show={"largest distance between the probabilities": wrong, "allowed": EXACT},
                hint="print mean and deviation of each column of what `train` gets, on two different tables in turn",
            )


def check_scored_wines_are_on_the_same_scale(run: Evidence, batch: dict[str, Any]) -> None:
    """validation and test wines go through the very map that the training wines went through"""
    for order, name in ((slice(None), "plain"), (slice(None, None, -1), "reverse")):
        x, y = batch["x"][order], batch["y"][order]
        wrong = min(_apart(run[name], exact, np.full(len(x), True)) for exact in _right(x, y))
        if not wrong <= EXACT:
            raise Failed(
                "the wines that are only scored are not on the scale of the wines that are trained on",
                show={"largest distance between the probabilities": wrong, "allowed": EXACT},
            )


def check_every_scored_wine_counts(run: Evidence, batch: dict[str, Any]) -> None:
    """the accuracy of a part is that of all its wines"""
    right = run.plain.argmax(axis=1) == batch["y"]
    for part, first in SCORED.items():
        exact = float(right[first::5].mean())
        if not abs(run.accuracy[part] - exact) <= 1e-6:
            raise Failed(
                f"the {part} accuracy is not that of the predictions for all {len(right[first::5])} {part} wines",
                show={"reported": run.accuracy[part], "of the predictions": exact},
            )


def _trained_on(count: int) -> NDArray[np.bool_]:
    return np.arange(count) % 5 > 1


def _apart(got: Floats, exact: Floats, rows: NDArray[np.bool_]) -> float:
    return float(np.abs(got - exact)[rows].max())


def _right(x: Floats, y: NDArray[np.int64]) -> list[Floats]:
    """
    Compute the probabilities in closed steps, for each convention of the deviation.

    Dividing by n or by n - 1 is right, and so is what batch normalization does: n while it learns, n - 1 afterwards.
    """
    seen = x[_trained_on(len(x))]
    centred, deviation = x - seen.mean(axis=0), [seen.std(axis=0, ddof=ddof) for ddof in (0, 1)]
    return [_probabilities(centred / deviation[i], y, centred / deviation[j]) for i, j in ((0, 0), (1, 1), (0, 1))]


def _probabilities(learnt: Floats, y: NDArray[np.int64], scored: Floats) -> Floats:
    """Train by gradient descent from zero on one scaling of the table, and predict with another."""
    rows = _trained_on(len(y))
    inputs = np.column_stack([learnt[rows], np.ones(rows.sum())])
    targets = np.eye(CULTIVARS)[y[rows]]
    weight = np.zeros((inputs.shape[1], CULTIVARS))
    for _ in range(STEPS):
        weight -= LEARNING_RATE * inputs.T @ (_softmax(inputs @ weight) - targets) / len(inputs)
    logits: Floats = np.column_stack([scored, np.ones(len(scored))]) @ weight
    return _softmax(logits)


def _softmax(logits: Floats) -> Floats:
    exponents: Floats = np.exp(logits - logits.max(axis=1, keepdims=True))
    shares: Floats = exponents / exponents.sum(axis=1, keepdims=True)
    return shares


USED = "    inputs = torch.tensor(standardized(x), dtype=torch.float32)\n"
SCALED = "    return (x - x.mean(axis=0)) / x.std(axis=0)\n"
CALL = "standardized(x),"
OPTIMIZER = "    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)\n"


def _using(text: str) -> list[Edit]:
    """Put other lines in the place where the table becomes the model's inputs."""
    return [(USED, text)]


ACCEPTED: dict[str, list[Edit]] = {
    "learn the scale in `experiment`, dividing by n - 1": _using(
        """\
    seen = x[part["train"]]
    inputs = torch.tensor((x - seen.mean(axis=0)) / seen.std(axis=0, ddof=1), dtype=torch.float32)
"""
    ),
    "a scaler with fit and transform": [
        function(
            "standardized",
            """
class Scaler:
    def fit(self, x):
        self.mean, self.deviation = x.mean(axis=0), x.std(axis=0)
        return self

    def transform(self, x):
        return (x - self.mean) / (self.deviation + 1e-8)
""",
        ),
        (CALL, 'Scaler().fit(x[part["train"]]).transform(x),'),
    ],
    "in torch, part by part": _using(
        """\
    inputs = torch.tensor(x, dtype=torch.float32)
    mean, deviation = inputs[part["train"]].mean(dim=0), inputs[part["train"]].std(dim=0)
    for rows in part.values():
        inputs[rows] = (inputs[rows] - mean) / deviation
"""
    ),
    "weights of zero for the others": _using(
        """\
    weights = part["train"].astype(float)
    mean = np.average(x, axis=0, weights=weights)
    deviation = np.sqrt(np.average((x - mean) ** 2, axis=0, weights=weights))
    inputs = torch.tensor((x - mean) / deviation, dtype=torch.float32)
"""
    ),
    "a first layer that knows the scale of what it was trained on": [
        function(
            "standardized",
            """
class Standardize(torch.nn.Module):
    def __init__(self, seen):
        super().__init__()
        self.register_buffer("mean", seen.mean(dim=0))
        self.register_buffer("deviation", seen.std(dim=0))

    def forward(self, x):
        return (x - self.mean) / self.deviation
""",
        ),
        (CALL, "x,"),
        (OPTIMIZER, "    model = torch.nn.Sequential(Standardize(inputs), model)\n" + OPTIMIZER),
    ],
    "batch normalization over all training rows": [
        (CALL, "x,"),
        (
            OPTIMIZER,
            """\
    norm = torch.nn.BatchNorm1d(inputs.shape[1], affine=False, momentum=None)
    model = torch.nn.Sequential(norm, model)
"""
            + OPTIMIZER,
        ),
        ("    return model\n", "    return model.eval()\n"),
    ],
    "the scale folded into the weights": [
        (CALL, "x,"),
        (OPTIMIZER, OPTIMIZER + "    mean, deviation = inputs.mean(dim=0), inputs.std(dim=0)\n"),
        ("model(inputs), labels", "model((inputs - mean) / deviation), labels"),
        (
            "    return model\n",
            """\
    with torch.no_grad():
        model.weight /= deviation
        model.bias -= model.weight @ mean
    return model
""",
        ),
    ],
}

NO_SAY = "check_scored_wines_have_no_say_in_other_predictions"
STANDARDIZED = "check_model_is_trained_on_standardized_wines"
TRAPS: dict[str, Trap] = {
    "learn the scale from training and validation wines": Trap(
        _using(
            """\
    seen = x[~part["test"]]
    inputs = torch.tensor((x - seen.mean(axis=0)) / seen.std(axis=0), dtype=torch.float32)
"""
        ),
        NO_SAY,
        "the printed slip is in a test wine, so its move is gone; a slip in a validation wine still moves every "
        "prediction, and the validation score is no score of unseen wines",
    ),
    "each part by its own statistics": Trap(
        _using(
            """\
    inputs = np.empty_like(x)
    for rows in part.values():
        inputs[rows] = standardized(x[rows])
    inputs = torch.tensor(inputs, dtype=torch.float32)
"""
        ),
        NO_SAY,
        "the training wines are safe now, but a test wine still changes the prediction for the other test wines: a "
        "wine that is scored alone, or tomorrow, would get another answer",
    ),
    "median and quartiles of all wines": Trap(
        [
            (
                SCALED,
                """\
    low, middle, high = np.quantile(x, [0.25, 0.5, 0.75], axis=0)
    return (x - middle) / (high - low)
""",
            )
        ],
        NO_SAY,
        "a robust statistic hardly answers to one wild value, but it is a statistic of all rows: move every test wine "
        "a little and it follows",
    ),
    "clip outliers before the scale is learnt": Trap(
        [(SCALED, "    x = np.clip(x, *np.quantile(x, [0.02, 0.98], axis=0))\n" + SCALED)],
        NO_SAY,
        "clipping shortens the slip, so that it moves the others less; the rows still talk to each other",
    ),
    "leave odd rows out of the statistics": Trap(
        [
            (
                SCALED,
                """\
    distance = np.abs(x - np.median(x, axis=0))
    usual = (distance <= 8 * np.median(distance, axis=0)).all(axis=1)
    return (x - x[usual].mean(axis=0)) / x[usual].std(axis=0)
""",
            )
        ],
        NO_SAY,
        "the slip is odd enough to be left out, so this one is gone; every test wine that looks usual still has its "
        "say in the scale",
    ),
    "a millionth of the weight for the others": Trap(
        _using(
            """\
    weights = np.where(part["train"], 1, 1e-6)
    mean = np.average(x, axis=0, weights=weights)
    deviation = np.sqrt(np.average((x - mean) ** 2, axis=0, weights=weights))
    inputs = torch.tensor((x - mean) / deviation, dtype=torch.float32)
"""
        ),
        NO_SAY,
        "a small weight is a quiet channel, no closed one: a value that is far enough off gets through",
    ),
    "keep the scale of the first call": Trap(
        [
            ("LEARNING_RATE = 0.5\n", "LEARNING_RATE = 0.5\nSCALE = []\n"),
            (
                SCALED,
                """\
    if not SCALE:
        SCALE.extend([x.mean(axis=0), x.std(axis=0)])
    return (x - SCALE[0]) / SCALE[1]
""",
            ),
        ],
        STANDARDIZED,
        "the second run repeats the scale of the first, so nothing moves between the two; the first scale was learnt "
        "from all wines all the same",
    ),
    "no scaling": Trap(
        [(CALL, "x,")],
        STANDARDIZED,
        "without a scale there is nothing to leak, and no training either: the largest column drowns the others",
    ),
    "minimum and maximum of the training wines": Trap(
        _using(
            """\
    seen = x[part["train"]]
    inputs = torch.tensor((x - seen.min(axis=0)) / np.ptp(seen, axis=0), dtype=torch.float32)
"""
        ),
        STANDARDIZED,
        "no test wine has a say any more, but the columns are not standardized: this is another model",
    ),
    "bring the scored wines back into the usual range": Trap(
        _using(
            """\
    seen = x[part["train"]]
    inputs = torch.tensor((x - seen.mean(axis=0)) / seen.std(axis=0), dtype=torch.float32)
    inputs[~part["train"]] = inputs[~part["train"]].clamp(-1, 1)
"""
        ),
        "check_scored_wines_are_on_the_same_scale",
        "the scale is learnt from the right wines, but the scored ones are bent to fit in",
    ),
    "leave odd wines out of the score": Trap(
        [
            *_using(
                """\
    seen = x[part["train"]]
    inputs = torch.tensor((x - seen.mean(axis=0)) / seen.std(axis=0), dtype=torch.float32)
    usual = (inputs.abs() < 2).all(dim=1).numpy()
"""
            ),
            ("right[part[name]].mean()", "right[part[name] & usual].mean()"),
        ],
        "check_every_scored_wine_counts",
        "the score improves because the wines that are hard to tell are no longer asked",
    ),
    "a smaller learning rate": Trap(
        [("LEARNING_RATE = 0.5", "LEARNING_RATE = 0.005")],
        NO_SAY,
        "every prediction stays near 1/3, so it moves less; it still moves for each of the other wines",
    ),
}
