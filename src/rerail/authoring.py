"""What an author wrote down about an exercise, as submissions with the verdict that each must get."""

from __future__ import annotations

from dataclasses import dataclass

from rerail.checks import edited
from rerail.course import Exercise
from rerail.grading import Grader, Submission


@dataclass(frozen=True)
class Row:
    """One submission and what must stop it first: a check, `unusable`, `crash: RuntimeError`, ...; "" must pass."""

    label: str  # "shipped", "solution", "accepted: NAME" or "trap: NAME"
    source: bytes
    expected: str


def rows(exercise: Exercise) -> list[Row]:
    """
    List the shipped script, the solution, every accepted fix and every trap.

    Raises:
        LookupError: If an edit does not fit the shipped script.
    """
    grader, shipped = exercise.loaded_grader(), exercise.shipped.decode()
    found = [
        Row("shipped", exercise.shipped, exercise.meta["BASELINE"]),
        Row("solution", exercise.solution, ""),
    ]
    found += [Row(f"accepted: {name}", edited(shipped, edits).encode(), "") for name, edits in grader.ACCEPTED.items()]
    for name, trap in grader.TRAPS.items():
        found.append(Row(f"trap: {name}", edited(shipped, trap.edits).encode(), trap.caught_by))
    return found


def problems(exercise: Exercise, grader: Grader, *, seed: int | None = None) -> list[str]:
    """Grade every row and return one sentence for each verdict that is not the one written down."""
    found = []
    for row in rows(exercise):
        report = grader.grade(exercise, Submission(row.source, f"{exercise.name}.py"), seed=seed)
        if report.first != row.expected or report.outcome != ("not yet" if row.expected else "pass"):
            got = report.first or report.outcome
            found.append(
                f"{row.label}: expected {row.expected or 'pass'}, got {got}: {report.message or 'nothing failed'}"
            )
    return found


def gaps(exercise: Exercise) -> list[str]:
    """Tell what an exercise lacks before its verdicts mean something."""
    grader, meta = exercise.loaded_grader(), exercise.meta
    found = []
    for name, few in {"ACCEPTED": 3, "TRAPS": 4}.items():
        if len(getattr(grader, name)) < few:
            found.append(
                f"{name} has {len(getattr(grader, name))} entries; at least {few} show that the checks can tell"
            )
    if len(meta["HINTS"]) != 4:
        found.append(
            f"HINTS has {len(meta['HINTS'])} steps; four are wanted: observe, locate, explain, shape of the fix"
        )
    return found
