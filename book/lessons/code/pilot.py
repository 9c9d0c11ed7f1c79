"""A screening model for a rare condition; the worked run of the lesson on leakage."""

import numpy as np

RARE = 0.15  # share of patients who have the condition


def patients(count=400, seed=0):
    """Six measurements a patient, shape (patients, 6), and whether the patient has the condition, 0 or 1."""
    rng = np.random.default_rng(seed)
    y = (rng.random(count) < RARE).astype(int)
    x = rng.normal(size=(count, 6))
    x[:, :2] += 0.9 * y[:, None]
    return x, y


def balanced(x, y, rng):
    """Repeat patients who have the condition until both classes are of one size."""
    have = np.flatnonzero(y == 1)
    more = rng.choice(have, size=(y == 0).sum() - len(have))
    rows = np.concatenate([np.arange(len(y)), more])
    return x[rows], y[rows]


def prepare(x, y, seed=0):
    """Balance the classes, then split: rows and labels, train and test."""
    rng = np.random.default_rng(seed)
    x, y = balanced(x, y, rng)
    order = rng.permutation(len(x))
    cut = int(0.3 * len(x))
    test, train = order[:cut], order[cut:]
    return x[train], y[train], x[test], y[test]


def prepare_repaired(x, y, seed=0):
    """Split, then balance the classes among the training rows."""
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(x))
    cut = int(0.3 * len(x))
    test, train = order[:cut], order[cut:]
    return *balanced(x[train], y[train], rng), x[test], y[test]


def nearest(x_train, y_train, x):
    """Give every row the label of the nearest training row."""
    distance = ((x[:, None] - x_train[None]) ** 2).sum(axis=2)
    return y_train[distance.argmin(axis=1)]


def balanced_accuracy(answers, y):
    """Mean of the share of right answers in each class: 0.5 for any answer that does not look at the row."""
    return float(np.mean([(answers[y == c] == c).mean() for c in (0, 1)]))
