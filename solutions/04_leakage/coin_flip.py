"""
The panel is right for nine patients in ten, and for new patients it flips a coin.

A study measures 2,000 blood markers of 60 patients, half of whom have a disease. A panel of the 20
markers that differ most between sick and well is formed, and a patient is called sick whose panel
is nearer to the mean of the sick. Cross-validation in five folds promises a success. The same
panel, applied to new patients, knows nothing.

Task: make `cross_validate` answer for each patient with a panel and a model in which this patient
had no part, neither by measurements nor by diagnosis: all patients of a fold are held out together.
Keep the folds (patient i is in fold i % FOLDS), the panel's size, how `panel` ranks the markers,
and the model. `cross_validate` takes measurements, shape (patients, markers), and diagnoses (0 or
1), shape (patients,), as numpy arrays: 15 patients or more, both diagnoses in any four folds, more
markers than the panel has. It returns one answer, 0 or 1, for each patient, in their order, and
leaves both arrays as they are.
Graded: `cross_validate`. Run it: python exercises/04_leakage/coin_flip.py
"""
import numpy as np

FOLDS = 5
PANEL = 20


def study(patients=60, markers=2000, seed=0):
    """Measurements, shape (patients, markers), and diagnoses, shape (patients,)."""
    rng = np.random.default_rng(seed)
    diagnoses = rng.permutation(np.arange(patients) % 2)
    return rng.normal(size=(patients, markers)), diagnoses


def panel(x, y):
    """Numbers of the markers whose means differ most between sick and well, in deviations."""
    sick, well = x[y == 1], x[y == 0]
    spread = np.sqrt((sick.var(axis=0) + well.var(axis=0)) / 2)
    difference = np.abs(sick.mean(axis=0) - well.mean(axis=0)) / spread
    return np.argsort(-difference)[:PANEL]


def fit(x, y):
    """The model: the mean of the well and the mean of the sick."""
    return np.stack([x[y == 0].mean(axis=0), x[y == 1].mean(axis=0)])


def predict(model, x):
    """0 or 1: which mean is nearer."""
    distance = ((x[:, None] - model[None]) ** 2).sum(axis=2)
    return distance.argmin(axis=1)


def cross_validate(x, y):
    """Answer for every patient with a model of the other folds."""
    fold = np.arange(len(y)) % FOLDS
    answers = np.empty(len(y), int)
    for held_out in range(FOLDS):
        train, test = fold != held_out, fold == held_out
        # the choice of markers is part of the training: whoever is held out must not take part in it
        markers = panel(x[train], y[train])
        model = fit(x[train][:, markers], y[train])
        answers[test] = predict(model, x[test][:, markers])
    return answers


if __name__ == "__main__":
    x, y = study()
    answers = cross_validate(x, y)
    print(f"cross-validation: {(answers == y).mean():.0%} of {len(y)} patients are right")
    markers = panel(x, y)
    new_x, new_y = study(1000, seed=1)
    right = predict(fit(x[:, markers], y), new_x[:, markers]) == new_y
    print(f"new patients:     {right.mean():.0%} of {len(new_y)}")
