"""
The history checker says that every number is finite, and the run is dead.

A training run appends one row a step to its history. Before the next night of training, the
history of the last one is scanned: a number that is not finite would show where it died. The scan
of this history says that all is well, and the model answers nan to everything.

Task: make `nonfinite` find every number that is not finite, in every row and every field, wherever
it stands and whatever the field is called. A history is a list of rows, a row a dict with a text,
a truth value, None, an int or a float behind each field name. Numbers are the values of type int
and float (where they are finite, below 1e308 in size). A field that is missing in a row, or is
None, was not logged there: that is no fault. A truth value is no number, and a text is none either,
whatever it says. `nonfinite` returns a list of pairs (row number, field name), each once, in any
order, and leaves the history as it is. The row number is the place in the list, from 0, whatever
the row says of itself; a history may be empty.
Graded: `nonfinite`. Run it: python exercises/01_symptom/all_finite.py
"""
import math

NAN = float("nan")

HISTORY = [
    {"step": 0, "train_loss": 0.72, "gradient_norm": 1.2, "note": "start"},
    {"step": 1, "train_loss": 0.31, "gradient_norm": 3.8, "clipped": False},
    {"step": 2, "train_loss": 0.08, "gradient_norm": 180.0, "validation_loss": 0.91},
    {"step": 3, "train_loss": 0.07, "gradient_norm": 150.0, "clipped": True, "scale": 65536.0},
    {"step": 4, "train_loss": 0.11, "gradient_norm": 170.0, "validation_loss": NAN, "note": "ok"},
    {"step": 5, "train_loss": 0.12, "validation_loss": NAN, "scale": math.inf},
]


def numeric_fields(history):
    """Names of the fields that hold numbers."""
    # a field is what any row logs: validation, clipping and scaling begin after the first
    items = [item for row in history for item in row.items()]
    return {name for name, value in items if type(value) in (int, float)}


def nonfinite(history):
    """List (row number, field name) of every number that is not finite."""
    if not history:
        return []
    found = []
    for name in numeric_fields(history):
        for number, row in enumerate(history):
            value = row.get(name)
            if type(value) in (int, float) and not math.isfinite(value):
                found.append((number, name))
    return found


def report(history):
    """Say in one line what the scan found."""
    found = nonfinite(history)
    if not found:
        return f"{len(history)} rows scanned, every number is finite"
    number, name = min(found)
    count = f"{len(found)} numbers are not finite"
    return f"{len(history)} rows scanned, {count}, the first is {name} in row {number}"


if __name__ == "__main__":
    for row in HISTORY:
        print("  ".join(f"{name} {value}" for name, value in row.items()))
    print(report(HISTORY))
