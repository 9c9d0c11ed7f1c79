"""The loss of one row is nan, and so is the loss of all the others without it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rerail.checks import Edit, Failed, Trap, function
from rerail.evidence import Evidence

LAYER, MINUTES, ORDER, POINTS = "process", 15, 2, 2
GRADED = ("smallest",)
RECORDED = {
    "changed": "whether the batch was changed",
    "dtypes": "the data types of what `smallest` left of the batch",
    "left/*": "what `smallest` left of the batch, name by name, the rows first; the numbers are those of the rows",
}
BASELINE = "check_what_is_left_fails_as_the_batch_does"
HINTS = (
    "observe: print, stage by stage, how many numbers are not finite: once for the whole batch, once for the one row"
    " that is left. Then for two healthy rows, and for one",
    "locate: go down both lists and note the first stage that is not finite. Which of the two lists explains the batch?",
    "explain: a batch can fail in more than one way. What does a spread make of one row, and what does `fails` say to it?",
    "shape of the fix: find out how the whole batch fails before anything is taken away, and ask of every smaller one"
    " whether it fails in that way",
)

Flags = NDArray[np.bool_]


def cases(seed: int) -> list[dict[str, Any]]:
    """
    Batches that fail in several ways: in the padding, by two or three rows together, by an exception, by their dtype.

    `faulty` are the rows without which nothing fails; the failure needs `needed` of them and `rows_needed` rows in all.
    """
    return [
        padded(256, 24, [132], 0),
        padded(21, 9, [0, 8, 13], seed),
        together(61, [12, 40], 2, seed),
        together(34, [3, 4, 17, 33], 3, seed + 1),
        labelled(37, [36], seed),
        labelled(6, [0, 1], seed + 1),
        half(19, [4], seed),
        padded(1, 5, [0], seed + 1),
        apart(23, [9, 14], seed),
        counted(26, [5, 20], seed),
    ]


def padded(rows: int, width: int, faulty: list[int], seed: int) -> dict[str, Any]:
    """Words, padding of which some is inf, and sentences that are alike: their spread is 0."""
    rng = np.random.default_rng(seed)
    mask = np.arange(width) < rng.integers(2, width - 1, rows)[:, None]
    values = np.where(mask[..., None], rng.normal(size=(rows, width, 3)), 0)
    mask[-3:], values[-3:] = mask[-1], values[-1]
    for row in faulty:
        values[row, -1, row % 3] = np.inf
    return batch("padded", faulty, 1, 1, values=values, mask=mask, labels=rng.integers(0, 3, rows))


def together(rows: int, faulty: list[int], needed: int, seed: int) -> dict[str, Any]:
    """Scores whose exponentials are finite one by one, and overflow where `needed` of them are added."""
    rng = np.random.default_rng(seed)
    scores = rng.normal(size=rows)
    largest = np.log(np.finfo(np.float32).max)
    scores[faulty] = largest - np.log(needed) + 0.5 * np.log(needed / (needed - 1))
    return batch("together", faulty, needed, needed, scores=scores, votes=rng.uniform(size=rows))


def labelled(rows: int, faulty: list[int], seed: int) -> dict[str, Any]:
    """Labels that the table does not hold, behind a normalization that refuses single rows."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 4, rows)
    labels[faulty] = 4
    return batch("labelled", faulty, 1, 2, inputs=rng.normal(size=(rows, 5)), labels=labels)


def half(rows: int, faulty: list[int], seed: int) -> dict[str, Any]:
    """Half precision, in which the energy of a full sentence overflows: 12 * 80 ** 2 is beyond 65504."""
    rng = np.random.default_rng(seed)
    mask = np.arange(12) < rng.integers(1, 6, rows)[:, None]
    mask[faulty] = True
    values = rng.integers(76, 85, (rows, 12)) * rng.choice([-1.0, 1.0], (rows, 12))
    return batch("half", faulty, 1, 1, values=values, mask=mask)


def apart(rows: int, faulty: list[int], seed: int) -> dict[str, Any]:
    """Rows that fail at the first stage, and at both edges rows that fail at the second alone."""
    rng = np.random.default_rng(seed)
    left, right = rng.normal(size=rows), rng.uniform(1, 2, rows)
    left[faulty], right[[0, 1, -2, -1]] = 1e30, 0
    return batch("apart", faulty, 1, 1, left=left, right=right)


def counted(rows: int, faulty: list[int], seed: int) -> dict[str, Any]:
    """Labels that are refused with a sentence that counts them, and single rows with an exception of a kind below."""
    labels = np.random.default_rng(seed).integers(0, 4, rows)
    labels[faulty] = 4
    return batch("counted", faulty, 1, 2, labels=labels)


def batch(kind: str, faulty: list[int], needed: int, rows_needed: int, **tensors: NDArray[Any]) -> dict[str, Any]:
    """Give the rows numbers of their own, which are not their places; float32 holds every value."""
    rows = len(next(iter(tensors.values())))
    values = {name: np.float32(array) if array.dtype.kind == "f" else array for name, array in tensors.items()}
    number = 1000 + 7 * np.arange(rows)
    about = {"kind": kind, "faulty": faulty, "needed": needed, "rows_needed": rows_needed}
    return {**values, "number": number, **about}


def probe(script: Any, batch: dict[str, Any]) -> dict[str, Any]:
    """Record every tensor of the batch that is left, and whether the batch itself was changed."""
    import torch

    from rerail.probes import Unusable, described, tensor, tensors

    given = tensors(batch)
    if batch["kind"] == "half":
        given["values"] = given["values"].half()
    kept = {name: value.clone() for name, value in given.items()}
    other = {name: value.flip(0) for name, value in kept.items()}
    if batch["kind"] == "apart":
        other["left"] = torch.ones_like(other["left"])  # of this size, and fails in another way
    script.smallest(FORWARD[batch["kind"]], other)  # nothing of that answer may be kept for the next
    left = script.smallest(FORWARD[batch["kind"]], given)
    if not hasattr(left, "keys"):
        raise Unusable(
            f"what `smallest` returns must be a batch, a mapping from names to tensors, got {described(left)}"
        )
    missing = [name for name in kept if name not in left]
    if missing:
        raise Unusable(f"what `smallest` returns must hold {missing[0]!r} as the batch does; it holds {list(left)[:6]}")
    found = {name: tensor(left[name], f"{name!r} of what `smallest` returns") for name in kept}
    same = [name in given and torch.equal(given[name], value) for name, value in kept.items()]
    return {
        "changed": not (all(same) and len(given) == len(kept)),
        "left": {f"_{name}": value for name, value in found.items()},
        "dtypes": " ".join(f"{name} {value.dtype}" for name, value in found.items()),
    }


def forward_padded(batch: Any) -> dict[str, Any]:
    """Average the words of a sentence by their mask, and scale over the batch."""
    import torch

    words = batch["mask"][..., None].float()
    pooled = (batch["values"] * words).sum(dim=1) / words.sum(dim=1)
    centred = pooled - pooled.mean(dim=0)
    spread = (centred.pow(2).sum(dim=0) / (len(pooled) - 1)).sqrt()
    scaled = centred / spread
    loss = torch.nn.functional.cross_entropy(scaled, batch["labels"])
    return {"pooled": pooled, "centred": centred, "spread": spread, "scaled": scaled, "loss": loss}


def forward_together(batch: Any) -> dict[str, Any]:
    """Take the softmax over the rows of a batch as its formula stands."""
    mass = batch["scores"].exp().sum()
    share = batch["scores"].exp() / mass
    votes = batch["votes"] - batch["votes"].mean()
    scaled = votes / (votes.pow(2).sum() / (len(votes) - 1)).sqrt()
    return {"mass": mass, "share": share, "votes": scaled, "loss": (scaled - share.log()).mean()}


def forward_labelled(batch: Any) -> dict[str, Any]:
    """Normalize over the batch, then look up the row of each label."""
    import torch

    inputs = torch.nn.functional.batch_norm(batch["inputs"], None, None, training=True)
    table = torch.eye(4, 5)
    chosen = torch.nn.functional.embedding(batch["labels"], table)
    return {"inputs": inputs, "chosen": chosen, "loss": (inputs - chosen).pow(2).mean()}


def forward_half(batch: Any) -> dict[str, Any]:
    """Add up the squares of the words, in the precision in which they come."""
    words = batch["mask"].to(batch["values"].dtype)
    energy = (batch["values"] * words).pow(2).sum(dim=1)
    wide = energy.float()
    spread = ((wide - wide.mean()).pow(2).sum() / (len(wide) - 1)).sqrt()
    return {"energy": energy, "spread": spread, "loss": (wide / spread).mean()}


def forward_apart(batch: Any) -> dict[str, Any]:
    """Take squares of one side and logarithms of the other; a row alone has no deviation, which is a stage less."""
    squares, logs = batch["left"].pow(2), batch["right"].log()
    first = {"deviation": batch["right"].std()} if len(logs) > 1 else {}
    return {**first, "spread": squares, "spread2": logs, "loss": (squares + logs).mean()}


def forward_counted(batch: Any) -> dict[str, Any]:
    """Refuse labels beyond 3, and what has no distribution."""
    strange = batch["labels"] > 3
    if len(strange) < 2:
        raise NotImplementedError("one label has no distribution")
    if strange.any():
        raise RuntimeError(f"{int(strange.sum())} of {len(strange)} labels are unknown")
    return {"loss": batch["labels"].float().mean()}


FORWARD = {
    "padded": forward_padded,
    "together": forward_together,
    "labelled": forward_labelled,
    "half": forward_half,
    "apart": forward_apart,
    "counted": forward_counted,
}


def _places(run: Evidence, batch: dict[str, Any]) -> list[int]:
    """Return the places that the rows which are left have in the batch; -1 for a number that is not in it."""
    place = {int(number): row for row, number in enumerate(batch["number"])}
    return [place.get(int(number), -1) for number in np.ravel(run.left["_number"])]


def _faulty(run: Evidence, batch: dict[str, Any]) -> int:
    """Count the rows left that the failure comes from."""
    return len(set(_places(run, batch)) & set(batch["faulty"]))


def check_batch_is_left_as_it_is(run: Evidence) -> None:
    """the batch that is given is left as it is"""
    if run.changed:
        raise Failed("the batch that was given is another after the search: the failure cannot be searched again")


def check_whole_rows_are_left(run: Evidence, batch: dict[str, Any], reference: Evidence) -> None:
    """what is left are rows of the batch, with all that is in them: width, padding, masks, labels, dtypes"""
    if run.dtypes != reference.dtypes:
        raise Failed("dtypes have changed", show={"of what is left": run.dtypes, "of the batch": reference.dtypes})
    places = _places(run, batch)
    if len(set(places)) != len(places) or -1 in places:
        raise Failed("the numbers of the rows left are not those of different rows of the batch")
    for name, values in run.left.items():
        values, rows = np.asarray(values), np.asarray(batch[name.removeprefix("_")])[places]
        if values.shape != rows.shape:
            raise Failed(
                f"{name[1:]!r} has lost its shape", show={"of what is left": values.shape, "of rows": rows.shape}
            )
        if not np.array_equal(values, rows):
            raise Failed(f"{name[1:]!r} holds {np.sum(values != rows)} values that these rows do not have in the batch")


def check_what_is_left_fails_as_the_batch_does(run: Evidence, batch: dict[str, Any]) -> None:
    """the rows that are left fail as the whole batch does"""
    places, found = _places(run, batch), _faulty(run, batch)
    if found < batch["needed"] or len(places) < batch["rows_needed"]:
        raise Failed(
            f"what is left, {len(places)} of {len(batch['number'])} rows, does not fail as the whole batch does",
            show={
                "of the batch, first": HOW[batch["kind"]],
                "of these rows, first": OTHER.get((batch["kind"], len(places)), "none, or another"),
            },
        )


def check_no_row_can_go(run: Evidence, batch: dict[str, Any]) -> None:
    """none of the rows left can be taken away without losing the failure"""
    places = _places(run, batch)
    if len(places) != batch["rows_needed"]:
        raise Failed(
            f"{len(places)} of {len(batch['number'])} rows are left; the failure needs {batch['rows_needed']}",
            show={"what fails first": HOW[batch["kind"]]},
        )


HOW = {
    "padded": "the stage 'pooled'",
    "together": "the stage 'mass'",
    "labelled": "an IndexError",
    "half": "the stage 'energy'",
    "apart": "the stage 'spread'",
    "counted": "a RuntimeError",
}
OTHER = {
    ("padded", 1): "the stage 'spread'",
    ("padded", 2): "none, or the stage 'scaled'",
    ("together", 1): "the stage 'votes'",
    ("labelled", 1): "a ValueError",
    ("half", 1): "the stage 'spread'",
    ("apart", 1): "none, or the stage 'spread2'",
    ("counted", 1): "a NotImplementedError",
}


JUDGE = """    return not all(bool(stage.isfinite().all()) for stage in stages.values())
"""
RAISED = """    except Exception:
        return True
"""
WHOLE = "    block = len(rows)\n    while"
ASK = "if rest and fails(forward, take(batch, rest)):"
FIRST = """    return next((name for name, stage in stages.items() if not stage.isfinite().all()), None)
"""
TYPE = """    except Exception as error:
        return type(error)
"""
COMPARED: list[Edit] = [
    (WHOLE, "    whole = fails(forward, batch)\n" + WHOLE),
    (ASK, "if rest and fails(forward, take(batch, rest)) == whole:"),
]
REPAIR: list[Edit] = [*COMPARED, (JUDGE, FIRST), (RAISED, TYPE)]


def _compared(judge: str, raised: str = TYPE) -> list[Edit]:
    """Compare with how the whole batch fails, told in another way."""
    return [*COMPARED, (JUDGE, judge), (RAISED, raised)]


def _repaired_then(source: str) -> list[Edit]:
    """Repair, and rewrite how rows are taken."""
    return [*REPAIR, function("take", source)]


ACCEPTED: dict[str, list[Edit]] = {
    "the failure is an argument": [
        (
            'def fails(forward, batch):\n    """Whether a batch raises an exception or has a stage that is not finite."""\n',
            "def fails(forward, batch, like=None):\n    place = None\n",
        ),
        (RAISED, "    except Exception as error:\n        place = type(error)\n        stages = {}\n"),
        (
            JUDGE,
            """    for name, stage in stages.items():
        if not torch.isfinite(stage).all():
            place = name
            break
    return place if like is None else place == like
""",
        ),
        (WHOLE, "    like = fails(forward, batch)\n" + WHOLE),
        (ASK, "if rest and fails(forward, take(batch, rest), like):"),
    ],
    "one by one, from the end": [
        (JUDGE, FIRST),
        (RAISED, TYPE),
        function(
            "smallest",
            """
def smallest(forward, batch):
    wanted, number = fails(forward, batch), 0
    rows = torch.arange(len(next(iter(batch.values()))))
    for row in rows.flip(0):
        rest = rows[rows != row]
        if len(rest) and fails(forward, take(batch, rest)) == wanted:
            rows = rest
    return take(batch, rows)
""",
        ),
    ],
    "the shortest beginning that fails, again and again": [
        (JUDGE, FIRST),
        (RAISED, TYPE),
        function(
            "smallest",
            """
def smallest(forward, batch):
    wanted, found = fails(forward, batch), []
    others = list(range(len(batch[list(batch)[0]])))
    while not found or fails(forward, take(batch, found)) != wanted:
        low, high = 1, len(others)
        while low < high:
            middle = (low + high) // 2
            if fails(forward, take(batch, others[:middle] + found)) == wanted:
                high = middle
            else:
                low = middle + 1
        found = [others[low - 1], *found]
        others = others[: low - 1]
    return take(batch, sorted(found))
""",
        ),
    ],
    "stages kept by the search, exceptions raised again": [
        function(
            "smallest",
            """
def smallest(forward, batch):
    def signature(part):
        try:
            for name, stage in forward(part).items():
                if stage.isnan().any() or stage.isinf().any():
                    return name
        except Exception as error:
            return type(error)

    def search(rows, fixed):
        if len(rows) == 1 or (fixed and signature(take(batch, fixed)) == whole):
            return rows if not fixed or signature(take(batch, fixed)) != whole else []
        left, right = rows[: len(rows) // 2], rows[len(rows) // 2 :]
        right = search(right, fixed + left)
        return search(left, fixed + right) + right

    whole = signature(batch)
    return take(batch, search(list(range(len(next(iter(batch.values()))))), []))
""",
        )
    ],
}

TRAPS: dict[str, Trap] = {
    "never fewer than two rows": Trap(
        [(ASK, "if len(rest) >= 2 and fails(forward, take(batch, rest)):")],
        "check_what_is_left_fails_as_the_batch_does",
        "a failure of one row is told with two, and two rows that are alike have a spread of 0: that fails as well",
    ),
    "an exception is no failure": Trap(
        _compared(FIRST, "    except Exception:\n        return None\n"),
        "check_what_is_left_fails_as_the_batch_does",
        "where the batch raises an exception it counts as healthy now, and so does any part of it that raises another",
    ),
    "any exception will do": Trap(
        _compared(FIRST, '    except Exception:\n        return "exception"\n'),
        "check_what_is_left_fails_as_the_batch_does",
        "one row raises a ValueError where the batch raises an IndexError: it is another line that complains",
    ),
    "the loss alone": Trap(
        _compared("    return str(stages['loss'].isnan().item()) + str(stages['loss'].isinf().item())\n"),
        "check_what_is_left_fails_as_the_batch_does",
        "the loss is the last to know: every failure ends in the same nan",
    ),
    "the stage of this batch": Trap(
        [(JUDGE, "    return not stages['pooled'].isfinite().all()\n"), (RAISED, TYPE)],
        "crash: KeyError",
        "the next batch fails in another stage, or in a forward that has no stage of that name",
    ),
    "a stage in common": Trap(
        [
            (JUDGE, "    return {name for name, stage in stages.items() if not stage.isfinite().all()}\n"),
            (RAISED, "    except Exception as error:\n        return {type(error)}\n"),
            (WHOLE, "    whole = fails(forward, batch)\n" + WHOLE),
            (ASK, "if rest and fails(forward, take(batch, rest)) & whole:"),
        ],
        "check_what_is_left_fails_as_the_batch_does",
        "the loss is in all of these sets, wherever the first nan came about",
    ),
    "as many stages": Trap(
        _compared("    return sum(not bool(stage.isfinite().all()) for stage in stages.values())\n"),
        "check_what_is_left_fails_as_the_batch_does",
        "two stages that are not finite are not the same two",
    ),
    "the last stage in place of the first": Trap(
        _compared("    return [name for name, stage in stages.items() if not stage.isfinite().all()][-1:]\n"),
        "check_what_is_left_fails_as_the_batch_does",
        "the last stage is the loss, and every failure ends there",
    ),
    "the first row that fails alone": Trap(
        [
            *REPAIR[2:],
            function(
                "smallest",
                """
def smallest(forward, batch):
    whole = fails(forward, batch)
    for row in range(len(batch["number"])):
        if fails(forward, take(batch, [row])) == whole:
            return take(batch, [row])
    return batch
""",
            ),
        ],
        "check_no_row_can_go",
        "where two rows fail together no row fails alone, and the whole batch comes back",
    ),
    "halves only": Trap(
        [
            *REPAIR[2:],
            function(
                "smallest",
                """
def smallest(forward, batch):
    whole = fails(forward, batch)
    rows = list(range(len(next(iter(batch.values())))))
    while len(rows) > 1:
        middle = len(rows) // 2
        halves = [half for half in (rows[:middle], rows[middle:])
                  if fails(forward, take(batch, half)) == whole]
        if not halves:
            break
        rows = halves[0]
    return take(batch, rows)
""",
            ),
        ],
        "check_no_row_can_go",
        "two rows that fail together stand in two halves: the search stops as soon as it parts them",
    ),
    "every row that is not finite": Trap(
        [
            *REPAIR[2:],
            function(
                "smallest",
                """
def smallest(forward, batch):
    try:
        stages = forward(batch)
    except Exception:
        return batch
    for stage in stages.values():
        bad = ~stage.isfinite()
        if bad.any():
            rows = bad.flatten(1).any(dim=1) if bad.dim() > 1 else bad
            return take(batch, rows.expand(len(batch["number"])))
""",
            ),
        ],
        "check_no_row_can_go",
        "of three rows that each break the batch one is enough, and a sum over rows does not say which of them did it",
    ),
    "cut the padding": Trap(
        _repaired_then(
            """
def take(batch, rows):
    part = {name: tensor[rows] for name, tensor in batch.items()}
    if "mask" in part:
        used = part["mask"].any(dim=0)
        part["mask"], part["values"] = part["mask"][:, used], part["values"][:, used]
    return part
"""
        ),
        "check_whole_rows_are_left",
        "the padding is where this batch fails: without it most parts do not, and none fails as the batch does",
    ),
    "clean what is masked": Trap(
        _repaired_then(
            """
def take(batch, rows):
    part = {name: tensor[rows] for name, tensor in batch.items()}
    if "mask" in part:
        mask = part["mask"].reshape(part["mask"].shape + (1,) * (part["values"].dim() - 2))
        part["values"] = part["values"] * 1.0
        part["values"] = torch.where(mask, part["values"], 0 * part["values"].nan_to_num(posinf=0))
    return part
"""
        ),
        "check_whole_rows_are_left",
        "the search may not mend what it searches: with clean padding nothing fails",
    ),
    "double precision, to be sure": Trap(
        _repaired_then(
            """
def take(batch, rows):
    part = {name: tensor[rows] for name, tensor in batch.items()}
    return {name: value.double() if value.is_floating_point() else value for name, value in part.items()}
"""
        ),
        "check_whole_rows_are_left",
        "in another dtype the exponential of 88 and twelve squares of 80 overflow no more: these rows do not fail",
    ),
    "rows counted anew": Trap(
        _repaired_then(
            """
def take(batch, rows):
    part = {name: tensor[rows] for name, tensor in batch.items()}
    return {**part, "number": torch.arange(len(part["number"]))}
"""
        ),
        "check_whole_rows_are_left",
        "without its number a row cannot be found again in the data that it came from",
    ),
    "the batch itself is cut": Trap(
        [*REPAIR, ("    return take(batch, rows)\n", "    batch.update(take(batch, rows))\n    return batch\n")],
        "check_batch_is_left_as_it_is",
        "the whole batch is gone: whether the repair of these rows mends it cannot be tried any more",
    ),
    "all stages that are not finite": Trap(
        _compared("    return [name for name, stage in stages.items() if not stage.isfinite().all()]\n"),
        "check_no_row_can_go",
        "what else is broken in the whole batch comes from other rows, and they are kept with it",
    ),
    "the first stage by its place": Trap(
        _compared("    return [*(bool(stage.isfinite().all()) for stage in stages.values()), False].index(False)\n"),
        "check_no_row_can_go",
        "the third stage of many rows is the second of one row: a stage is told by its name",
    ),
    "what the last stage is": Trap(
        _compared("    return bool(list(stages.values())[-1].isfinite().all())\n"),
        "check_what_is_left_fails_as_the_batch_does",
        "every failure ends in a loss that is not finite; which stage was first tells them apart",
    ),
    "an exception of a kind below": Trap(
        [
            (RAISED, "    except Exception as error:\n        return error\n"),
            (JUDGE, FIRST),
            (WHOLE, "    whole = fails(forward, batch)\n" + WHOLE),
            (ASK, "if rest and alike(fails(forward, take(batch, rest)), whole):"),
            (
                "def smallest(",
                "def alike(part, whole):\n"
                "    return isinstance(part, type(whole)) if isinstance(whole, Exception) else part == whole\n\n\n"
                "def smallest(",
            ),
        ],
        "check_what_is_left_fails_as_the_batch_does",
        "a NotImplementedError is a RuntimeError too, and it is raised by another line for another reason",
    ),
    "a stage that is not looked at": Trap(
        _compared(FIRST.replace("if not stage", "if name != 'spread' and not stage")),
        "check_what_is_left_fails_as_the_batch_does",
        "a single row has no spread in this batch; in another batch a stage of that name is the one that fails",
    ),
    "answers kept from batch to batch": Trap(
        [
            *REPAIR,
            (
                "    return take(batch, rows)\n",
                "    return take(batch, KEPT.setdefault((forward.__name__, len(batch['number'])), rows))\n\n\nKEPT = {}\n",
            ),
        ],
        "check_what_is_left_fails_as_the_batch_does",
        "the next batch has as many rows and fails in others",
    ),
    "the words of the exception": Trap(
        _compared(FIRST, TYPE.replace("type(error)", "str(error)")),
        "check_no_row_can_go",
        "a sentence that counts the rows is another one as soon as a row is gone",
    ),
}
