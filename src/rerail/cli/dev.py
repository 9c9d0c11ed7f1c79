"""`rerail dev`: for those who write exercises."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import click

from rerail.cli.check import opened
from rerail.cli.settings import Problem, Settings
from rerail.cli.waiting import Background
from rerail.course import TREES, Exercise, root

EXERCISE = '''"""
{title}

What one sees, in two or three sentences.

Task: what must hold afterwards, and what must stay as it is.
Graded: `answer`. Run it: python exercises/{lesson}/{name}.py
"""


def answer(values):
    """Say what it returns."""
    return sum(values)


if __name__ == "__main__":
    print(answer([1.0, 2.0, 3.0]))
'''
GRADER = '''"""{title}"""

from __future__ import annotations

from typing import Any

import numpy as np

from rerail.checks import Edit, Failed, Trap
from rerail.evidence import Evidence

LAYER, MINUTES, ORDER, POINTS = "values", 10, {order}, 1
GRADED = ("answer",)
RECORDED = {{"answer": "what `answer` returns"}}
BASELINE = "check_answer"
HINTS = ("observe", "locate", "explain", "shape of the fix")


def cases(seed: int) -> list[dict[str, Any]]:
    return [{{"values": np.random.default_rng(s).normal(size=n)}} for s, n in ((0, 5), (seed, 7))]


def probe(script: Any, batch: dict[str, Any]) -> dict[str, Any]:
    from rerail.probes import number

    return {{"answer": number(script.answer(batch["values"]), "what `answer` returns")}}


def check_answer(run: Evidence, batch: dict[str, Any]) -> None:
    """say what must hold"""
    raise Failed("this check was not written yet")


ACCEPTED: dict[str, list[Edit]] = {{}}
TRAPS: dict[str, Trap] = {{}}
'''


@click.group(name="dev")
def command() -> None:
    """Check and create exercises."""


@command.command(name="check")
@click.argument("names", nargs=-1, metavar="[ID ...]")
@click.option("--jobs", default=2, show_default=True, help="Exercises at once.")
@click.option("--seeds", default=1, show_default=True, help="Seeds of the unseen cases.")
@click.pass_obj
def check_command(settings: Settings, names: tuple[str, ...], jobs: int, seeds: int) -> None:
    """Prove what authors wrote down: shipped and traps fail where they must, solution and accepted fixes pass."""
    chosen = [settings.exercise(name) for name in names] or settings.exercises()
    with opened(settings, any(not exercise.is_sheet for exercise in chosen)) as grader:
        from rerail import authoring

        def look(exercise: Exercise) -> tuple[int, list[str]]:
            try:
                found = [
                    p for n in range(seeds) for p in authoring.problems(exercise, grader, seed=n + 1 if n else None)
                ]
                return len(authoring.rows(exercise)), [*authoring.gaps(exercise), *found]
            except Exception as error:  # an edit that does not fit, a grader that does not load
                return 0, [f"{type(error).__name__}: {error}"]

        results: dict[str, list[str]] = {}
        pool = ThreadPoolExecutor(max(jobs, 1))
        try:
            for exercise, future in [(e, pool.submit(look, e)) for e in chosen]:
                count, problems = Background(future.result).result()
                results[exercise.name] = problems
                status = "FAIL" if problems else "ok"
                if not settings.as_json:
                    settings.say(f"{status:<5} {exercise.number:>5} {exercise.name:<24} {count} verdicts")
                    for problem in problems:
                        settings.say(f"      {problem}")
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
    settings.exit_code = 1 if any(results.values()) else 0
    if settings.as_json:
        settings.say("", exercises=results, exit_code=settings.exit_code)


@command.command(name="new")
@click.argument("place", metavar="LESSON/NAME")
@click.pass_obj
def new_command(settings: Settings, place: str) -> None:
    """Write the three files of a new exercise; `rerail dev check` fails until they are filled in."""
    match = re.fullmatch(r"(\d\d_[a-z0-9_]+)/([a-z][a-z0-9_]*)", place)
    if match is None:
        raise Problem(f"a new exercise is named as in 04_leakage/too_good, got {place!r}")
    lesson, name = match.groups()
    where = settings.root or root()
    if (where / "exercises").parent.name == "_course":
        raise Problem("exercises are written in a clone of the course, not in an installed package")
    if any(exercise.name == name for exercise in settings.exercises()):
        raise Problem(f"{name!r} is taken; a name is unique in the whole course")
    for tree in TREES:
        if Path(where, tree, lesson, f"{name}.py").exists():
            raise Problem(f"{tree}/{lesson}/{name}.py is there already, and is not overwritten; take another name")
    order = 1 + sum(exercise.lesson == lesson for exercise in settings.exercises())
    title = "Name the symptom here."
    texts = {"exercises": EXERCISE, "solutions": EXERCISE, "graders": GRADER}
    for tree in TREES:
        path = Path(where, tree, lesson, f"{name}.py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(texts[tree].format(title=title, lesson=lesson, name=name, order=order), "utf-8")
    settings.say(f"wrote {lesson}/{name}.py in {', '.join(TREES)}; `rerail dev check {name}` says what is missing",
                 exercise=name)  # fmt: skip
