"""`solution-of`: what the repair changes, why, which other repairs count, and which ones only look right."""

from __future__ import annotations

import difflib
import io
import re
import tokenize
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from docutils import nodes
from sphinx.util.docutils import SphinxDirective

from coursesite.cards import LessonLink, anchored, exercise_of
from coursesite.markdown import code, fold, parsed, table
from rerail import course
from rerail.briefs import plain
from rerail.checks import Edit, Trap, edited

if TYPE_CHECKING:
    from sphinx.application import Sphinx

CONTEXT = 1  # lines around a change: enough to find the place in the file
OUTCOMES = {
    "unusable": "what a function returns cannot be graded",
    "timeout": "the run does not end in time",
    "crash": "the code runs",
}


def setup(app: Sphinx) -> None:
    """Register the directive."""
    app.add_directive("solution-of", SolutionOf)


class SolutionOf(SphinxDirective):
    """The solution of an exercise, read from the exercise, its solution and its grader."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Build the parts that the exercise has."""
        exercise = exercise_of(self)
        grader = exercise.loaded_grader()
        box = anchored(self, "solution", exercise, f"Solution of {exercise.title}")
        title = nodes.paragraph(classes=["exercise-title"])
        title += nodes.Text(f"{exercise.number} · ")
        title += LessonLink(kind="exercise", exercise=exercise.name, shown=exercise.title)
        box += title
        shipped, solution = exercise.shipped.decode(), exercise.solution.decode()
        box += parsed(self, [*code(difference(shipped, solution), "diff"), *_why(solution, shipped)])
        accepted, traps = getattr(grader, "ACCEPTED", {}), getattr(grader, "TRAPS", {})
        if accepted:
            box += parsed(self, fold(f"{len(accepted)} other repairs that pass", alternatives(shipped, accepted)))
        if traps:
            box += parsed(self, traps_table(exercise, grader, traps))
        return [box]


def difference(old: str, new: str, context: int = CONTEXT) -> str:
    """Return the changed lines as a unified diff without file names."""
    lines = difflib.unified_diff(old.splitlines(), new.splitlines(), n=context, lineterm="")
    return "\n".join(line for line in lines if not line.startswith(("---", "+++")))


def comments(source: str) -> list[str]:
    """Return the comments of a script; those on consecutive lines of their own are one."""
    found: list[tuple[int, str]] = []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            text = token.string.lstrip("#").strip()
            alone = not token.line[: token.start[1]].strip()
            if alone and found and found[-1][0] == token.start[0] - 1:
                found[-1] = (token.start[0], f"{found[-1][1]} {text}")
            else:
                found.append((token.start[0], text))
    return [text for _, text in found]


def _why(solution: str, shipped: str) -> list[str]:
    known = comments(shipped)
    new = [text for text in comments(solution) if text not in known]
    return ["{.solution-why}", f"**Why it works:** {plain('; '.join(new))}", ""] if new else []


def alternatives(shipped: str, accepted: Mapping[str, Sequence[Edit]]) -> list[str]:
    """Return each accepted repair by its name with its own diff."""
    lines: list[str] = []
    for name, edits in accepted.items():
        lines += [plain(name[:1].upper() + name[1:]), "", *code(difference(shipped, edited(shipped, edits), 0), "diff")]
    return lines


def traps_table(exercise: course.Exercise, grader: Any, traps: Mapping[str, Trap]) -> list[str]:
    """Return the tempting wrong repairs, with the sentence that each breaks and what gives it away."""
    rows = [
        [plain(name), plain(claim(grader, trap.caught_by)), plain(trap.says) or "-"] for name, trap in traps.items()
    ]
    lead = f"These {len(traps)} repairs look right and do not pass:" if len(traps) > 1 else "This repair does not pass:"
    return [lead, "", *table(("Repair", "What does not hold", "What gives it away"), rows, "25 35 40")]


def claim(grader: Any, caught_by: str) -> str:
    """Return the sentence that a failed check stands for; for the outcomes without a check, a sentence of ours."""
    check = getattr(grader, caught_by, None)
    if check is not None and check.__doc__:
        return " ".join(check.__doc__.split())
    kind, _, exception = caught_by.partition(": ")
    sentence = OUTCOMES.get(kind, re.sub(r"^check_", "", kind).replace("_", " "))
    return f"{sentence} (it stops with `{exception}`)" if exception else sentence
