"""
The scores stay where they are, and yet one test wine moves every prediction.

A linear model tells three cultivars of wine apart by thirteen measurements. Then the decimal
point slips in one test wine: the accuracy hardly notices, but the model answers differently
for the wines that it was trained on.

Task: no wine that is only scored may have a say in the prediction for another wine. Keep the
parts (`parts` says which wine is in which), the model and its steps. What the model is trained
on has mean 0 and deviation 1 in every column, and all wines are on that one scale.
`experiment` takes a table of 30 wines or more with any number of columns (finite, none of them
constant) and labels 0, 1, 2 as numpy arrays; it returns the accuracy by part and the
probabilities of all wines, shape (wines, 3), in the order of the table.
Graded: `experiment`. Run it: python exercises/04_leakage/same_score.py
"""
from pathlib import Path

import numpy as np
import torch

CULTIVARS = 3
STEPS = 20
LEARNING_RATE = 0.5


def table():
    """Read the measurements of 178 wines and their cultivars; data/README.md tells the source."""
    rows = np.loadtxt(Path(__file__).parent / "data" / "wine.csv", delimiter=",", skiprows=1)
    return rows[:, :-1], rows[:, -1].astype(int)


def parts(count):
    """Deal out the wines, which are sorted by cultivar: of every five, one test, one validation."""
    place = np.arange(count) % 5
    return {"train": place > 1, "validation": place == 1, "test": place == 0}


def standardized(x):
    """Bring measurements of very different units to one scale."""
    return (x - x.mean(axis=0)) / x.std(axis=0)


def train(inputs, labels):
    """Fit a linear model to all rows at once, from zero: the loss is convex."""
    model = torch.nn.Linear(inputs.shape[1], CULTIVARS)
    torch.nn.init.zeros_(model.weight)
    torch.nn.init.zeros_(model.bias)
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()
    return model


def experiment(x, y):
    """Train on one part of the wines, score the others, and predict all of them."""
    part = parts(len(x))
    inputs = torch.tensor(standardized(x), dtype=torch.float32)
    labels = torch.tensor(y)
    model = train(inputs[part["train"]], labels[part["train"]])
    with torch.inference_mode():
        probabilities = model(inputs).softmax(dim=1).numpy()
    right = probabilities.argmax(axis=1) == y
    return {name: right[part[name]].mean() for name in ("validation", "test")}, probabilities


if __name__ == "__main__":
    x, y = table()
    slipped = x.copy()
    slipped[90, -1] *= 10  # wine 90 is a test wine; its last column is proline, in mg/l
    before, probabilities = experiment(x, y)
    after, probabilities_after = experiment(slipped, y)
    for name in ("validation", "test"):
        print(f"{name:10}  accuracy {before[name]:.3f}, after the slip {after[name]:.3f}")
    moved = np.abs(probabilities_after - probabilities).max(axis=1)
    moved[90] = 0
    print(f"other wines whose prediction moved by 0.01 or more: {(moved >= 0.01).sum()} of 177")
    print(f"largest move of a probability: {moved.max():.3f}")
