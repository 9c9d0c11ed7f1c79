"""The panel is right for nine patients in ten, and for new patients it flips a coin."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rerail.checks import Edit, Failed, Trap, function
from rerail.evidence import Evidence

LAYER, MINUTES, ORDER, POINTS = "data", 12, 2, 1
GRADED = ("cross_validate",)
RECORDED = {
    "arrays_changed": "whether measurements or diagnoses were changed",
    "plain": "the answers for a study of 60 patients",
    "measured": "the answers for other measurements, with the same diagnoses",
    "diagnosed": "the answers for the same measurements, with other diagnoses",
    "swapped*": "the answers when the diagnoses of that fold are swapped (fold 0: patients 0, 5, 10, ...)",
    "moved*": "the answers when the patients of that fold are measured anew, all but its first",
}
BASELINE = "check_held_out_patients_have_no_part_in_their_answers"
HINTS = (
    "observe: swap the diagnoses of one fold only, and compare the answers for that very fold before and after",
    "locate: list what `cross_validate` computes from the diagnoses; for each of these ask whose diagnoses they are",
    "explain: among thousands of markers some agree with any list of diagnoses by chance; a choice that has "
    "seen the held-out patients has picked those that agree with them, too",
    "shape of the fix: what is learnt, from diagnoses or from measurements, is learnt again for every fold, from the "
    "others alone",
)

FOLDS, PANEL = 5, 20  # the script's own
FEW_SEED = 4  # of the study with few sick: with it a deviation by n - 1 ranks otherwise, in 7 of 60 answers
CLEAR = 1e-6  # below this distance from the border, rounding may decide; of 16,000 answers none was nearer than 2e-5

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def cases(seed: int) -> list[dict[str, Any]]:
    """
    Studies of many shapes: with few patients, with many, and with few sick, where deviations count; with as many markers
    as the script's, where a choice among all patients that keeps hundreds of them still shows; and with values far out.
    """
    return [
        _study(60, 400, 0, 0.0),
        _study(37, 90, seed, 0.0),
        _study(23, 60, seed + 1, 1.5),
        _study(15, 60, seed + 2, 0.0),
        _study(120, 60, seed + 3, 0.0),
        _study(60, 400, FEW_SEED, 0.0, sick=15),
        _study(30, 2000, seed + 4, 0.0),
        _study(60, 400, seed + 5, 0.0, far=0.02),
    ]


def _study(
    patients: int, markers: int, seed: int, signal: float, sick: int | None = None, far: float = 0.0
) -> dict[str, Any]:
    """Draw a study; the first markers carry a signal, if any. Then others, and the same with a fold changed."""
    rng = np.random.default_rng(seed)
    y = rng.permutation((np.arange(patients) < (patients // 2 if sick is None else sick)).astype(int))
    x = rng.normal(size=(patients, markers)) * 10.0 ** rng.uniform(-1, 1, markers)
    if far:
        x *= np.where(rng.random(x.shape) < far, 8.0, 1.0)
    x[:, :5] += signal * x[:, :5].std(axis=0) * y[:, None]
    # two more studies of the same shape: each shares one of the two arrays, so that no answer to the first fits
    batch: dict[str, Any] = {"x": x, "y": y, "other_x": np.ascontiguousarray(x[::-1, ::-1]), "other_y": np.roll(y, 1)}
    for fold in range(FOLDS):
        swapped, moved = y.copy(), x.copy()
        swapped[fold::FOLDS] = 1 - swapped[fold::FOLDS]
        others = np.arange(fold, patients, FOLDS)[1:]  # all of the fold but its first patient
        moved[others] += 50 * rng.normal(size=(len(others), markers)) * x.std(axis=0)
        batch |= {f"swapped{fold}": swapped, f"moved{fold}": moved}
    return batch


def probe(script: Any, batch: dict[str, Any]) -> dict[str, Any]:
    """Answer for the study, then with the diagnoses of a fold swapped, then with others of that fold measured anew."""
    from rerail import probes

    changed: list[bool] = []

    def answers(x: Floats, y: Ints) -> Any:
        given_x, given_y = x.copy(), y.copy()
        found = probes.array(script.cross_validate(given_x, given_y), "what `cross_validate` returns")
        changed.append(not (np.array_equal(given_x, x) and np.array_equal(given_y, y)))
        if found.shape != y.shape:
            raise probes.Unusable(f"`cross_validate` must return one answer a patient, {y.shape}, got {found.shape}")
        return found.astype(float)

    record = {"plain": answers(batch["x"], batch["y"])}
    record |= {"measured": answers(batch["other_x"], batch["y"]), "diagnosed": answers(batch["x"], batch["other_y"])}
    for fold in range(FOLDS):
        record[f"swapped{fold}"] = answers(batch["x"], batch[f"swapped{fold}"])
        record[f"moved{fold}"] = answers(batch[f"moved{fold}"], batch["y"])
    return record | {"arrays_changed": any(changed)}


def check_held_out_patients_have_no_part_in_their_answers(run: Evidence) -> None:
    """the answer for a patient does not depend on the diagnoses of its fold, nor on others who are held out with it"""
    for fold in range(FOLDS):
        before, after = run.plain[fold::FOLDS], run[f"swapped{fold}"][fold::FOLDS]
        changed = int(np.sum(~(before == after)))
        if changed:
            raise Failed(
                f"swapping the diagnoses of fold {fold} alone changed {changed} of the {len(before)} answers for it",
                show={"answers that changed": changed, "expected": 0},
            )
        if not run.plain[fold] == run[f"moved{fold}"][fold]:
            raise Failed(f"measuring the other patients of fold {fold} anew changed the answer for patient {fold}")


def check_answers_are_those_of_panels_of_the_other_folds(run: Evidence, batch: dict[str, Any]) -> None:
    """every answer is that of the model with the panel that the other folds choose"""
    studies = {"plain": ("x", "y"), "measured": ("other_x", "y"), "diagnosed": ("x", "other_y")}
    for name, (x, y) in studies.items():
        exact, margin = _right(batch[x], batch[y])
        wrong = ~(run[name] == exact) & (margin > CLEAR)
        if wrong.any():
            study = "" if name == "plain" else " of a second study"
            raise Failed(
                f"{wrong.sum()} of {len(exact)} answers{study} are not those of a panel of {PANEL} markers and a model "
                "that the other folds give",
                show={"first such patient": int(np.argmax(wrong)), "answer": run[name][np.argmax(wrong)]},
            )


def check_arrays_are_left_as_they_are(run: Evidence) -> None:
    """measurements and diagnoses are left as they are"""
    if run.arrays_changed:
        raise Failed(
            "`cross_validate` changed the arrays that it was given: whoever reads them next sees another study"
        )


def _right(x: Floats, y: Ints) -> tuple[Ints, Floats]:
    """Compute the answers as the header asks for them, and how far each is from the border."""
    fold = np.arange(len(y)) % FOLDS
    exact, margin = np.zeros(len(y), int), np.zeros(len(y))
    for held_out in range(FOLDS):
        train, test = fold != held_out, fold == held_out
        sick, well = x[train & (y == 1)], x[train & (y == 0)]
        spread = np.sqrt((sick.var(axis=0) + well.var(axis=0)) / 2)
        chosen = np.argsort(-np.abs(sick.mean(axis=0) - well.mean(axis=0)) / spread)[:PANEL]
        distances = [((x[test][:, chosen] - c.mean(axis=0)[chosen]) ** 2).sum(axis=1) for c in (well, sick)]
        exact[test] = np.argmin(distances, axis=0)
        margin[test] = np.abs(distances[0] - distances[1]) / np.maximum(*distances)
    return exact, margin


CHOICE = "    markers = panel(x, y)\n    fold = np.arange"
NO_CHOICE = "    fold = np.arange"
FIT = "        model = fit(x[train][:, markers], y[train])\n"


def _choosing(text: str) -> list[Edit]:
    """Take the choice out of the top, and put lines before the fit."""
    return [(CHOICE, NO_CHOICE), (FIT, text + FIT)]


ACCEPTED: dict[str, list[Edit]] = {
    "an argument that says who may be seen": [
        (CHOICE, NO_CHOICE),
        ("def panel(x, y):\n", "def panel(x, y, rows):\n"),
        ("    sick, well = x[y == 1], x[y == 0]\n", "    sick, well = x[rows & (y == 1)], x[rows & (y == 0)]\n"),
        (FIT, "        markers = panel(x, y, train)\n" + FIT),
        ("    markers = panel(x, y)\n    new_x", "    markers = panel(x, y, y >= 0)\n    new_x"),
    ],
    "a model that chooses for itself": [
        (CHOICE, NO_CHOICE),
        (
            "def cross_validate",
            """\
class Panel:
    def fit(self, x, y):
        self.markers = panel(x, y)
        self.means = fit(x[:, self.markers], y)
        return self

    def predict(self, x):
        return predict(self.means, x[:, self.markers])


def cross_validate""",
        ),
        (FIT, ""),
        (
            "        answers[test] = predict(model, x[test][:, markers])\n",
            "        answers[test] = Panel().fit(x[train], y[train]).predict(x[test])\n",
        ),
    ],
    "one patient at a time, the whole fold held out": [
        function(
            "cross_validate",
            """
def cross_validate(x, y):
    answers = []
    for i in range(len(y)):
        seen = [j for j in range(len(y)) if j % FOLDS != i % FOLDS]
        markers = panel(x[seen], y[seen])
        model = fit(x[np.ix_(seen, markers)], y[seen])
        answers.append(int(predict(model, x[[i]][:, markers])[0]))
    return answers
""",
        )
    ],
    "the study cut before anything else": [
        function(
            "cross_validate",
            """
def cross_validate(x, y):
    parts = [np.arange(k, len(y), FOLDS) for k in range(FOLDS)]
    answers = np.zeros(len(y))
    for k, part in enumerate(parts):
        rest = np.sort(np.concatenate(parts[:k] + parts[k + 1 :]))
        x_rest, y_rest = x[rest], y[rest]
        score = np.abs(x_rest[y_rest == 1].mean(0) - x_rest[y_rest == 0].mean(0))
        score /= np.sqrt(x_rest[y_rest == 1].var(0) + x_rest[y_rest == 0].var(0))
        best = np.argpartition(score, -PANEL)[-PANEL:]
        answers[part] = predict(fit(x_rest[:, best], y_rest), x[part][:, best])
    return answers
""",
        )
    ],
}
NO_PART = "check_held_out_patients_have_no_part_in_their_answers"
RIGHT = "check_answers_are_those_of_panels_of_the_other_folds"
TRAPS: dict[str, Trap] = {
    "a smaller panel": Trap(
        [("PANEL = 20", "PANEL = 5")],
        NO_PART,
        "five markers that agree by chance are fewer than twenty, and were chosen by the same look at everyone",
    ),
    "more folds": Trap(
        [("FOLDS = 5", "FOLDS = 20")],
        NO_PART,
        "the folds divide the model's patients; the panel was chosen before there were folds",
    ),
    "shuffle the patients first": Trap(
        [
            (
                CHOICE,
                """\
    markers = panel(x, y)
    fold = np.random.default_rng(0).permutation(len(y)) % FOLDS
    _ = np.arange""",
            )
        ],
        NO_PART,
        "another division of the same patients, after the same look at all of them",
    ),
    "markers that every fold chooses": Trap(
        [
            (
                CHOICE,
                """\
    parts = np.arange(len(y)) % FOLDS
    votes = [panel(x[parts != k], y[parts != k]) for k in range(FOLDS)]
    markers = np.argsort(-np.bincount(np.concatenate(votes), minlength=x.shape[1]), kind="stable")[:PANEL]
    fold = np.arange""",
            )
        ],
        NO_PART,
        "each patient is held out of one vote and takes part in the other four: together the votes have seen everyone",
    ),
    "choose on the held-out fold": Trap(
        _choosing("        markers = panel(x[test], y[test])\n"),
        NO_PART,
        "this is the leak at its purest: the panel is chosen to suit those who test it",
    ),
    "choose on half of the patients": Trap(
        [
            (
                CHOICE,
                "    half = np.arange(len(y)) % 2 == 0\n    markers = panel(x[half], y[half])\n    fold = np.arange",
            )
        ],
        NO_PART,
        "the half that chose is among the patients of every fold",
    ),
    "any twenty markers": Trap(
        [(CHOICE, "    markers = np.random.default_rng(0).permutation(x.shape[1])[:PANEL]\n    fold = np.arange")],
        RIGHT,
        "no leak and no panel: a marker that does tell the sick would not be found either",
    ),
    "all markers": Trap(
        [(CHOICE, "    markers = np.arange(x.shape[1])\n    fold = np.arange")],
        RIGHT,
        "without a choice nothing can leak through it, but a panel of 20 was asked for",
    ),
    "choose by shuffled diagnoses": Trap(
        [(CHOICE, "    markers = panel(x, np.random.default_rng(0).permutation(y))\n    fold = np.arange")],
        NO_PART,
        "the number looks honest now, and the panel means nothing",
    ),
    "the panel of the first fold for all": Trap(
        [
            (
                CHOICE,
                """\
    first = np.arange(len(y)) % FOLDS != 0
    markers = panel(x[first], y[first])
    fold = np.arange""",
            )
        ],
        NO_PART,
        "fold 0 is held out of the choice; the other four took part in it and are tested with it",
    ),
    "swap the answers that are too good": Trap(
        [
            *_choosing("        markers = panel(x[train], y[train])\n"),
            ("    return answers\n", "    answers[::7] = 1 - answers[::7]\n    return answers\n"),
        ],
        RIGHT,
    ),
    "the repair, on measurements that are centred in place": Trap(
        [
            (CHOICE, "    x -= x.mean(axis=0)\n    fold = np.arange"),
            (FIT, "        markers = panel(x[train], y[train])\n" + FIT),
        ],
        "check_arrays_are_left_as_they_are",
        "the answers are right, and the caller's table is not what it was",
    ),
    "the best 500 of everyone first, then a panel a fold": Trap(
        [
            (
                CHOICE,
                "    x = x[:, np.argsort(-np.abs(x[y == 1].mean(0) - x[y == 0].mean(0)) / x.std(0))[:500]]\n    fold = np.arange",
            ),
            (FIT, "        markers = panel(x[train], y[train])\n" + FIT),
        ],
        NO_PART,
        "a first choice to save time is a choice: it was made with the diagnoses of all",
    ),
    "the repair, with values far out drawn in by everyone's deviation": Trap(
        [
            (
                CHOICE,
                "    x = x.clip(x.mean(axis=0) - 4 * x.std(axis=0), x.mean(axis=0) + 4 * x.std(axis=0))\n    fold = np.arange",
            ),
            (FIT, "        markers = panel(x[train], y[train])\n" + FIT),
        ],
        RIGHT,
        "where to clip was learned from the held-out patients too, and the measurements are others",
    ),
}
