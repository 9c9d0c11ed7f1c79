"""What must hold for every exercise: its files, its words, and the verdict on everything its author wrote down."""

from __future__ import annotations

import ast
import difflib
import fnmatch
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rerail import authoring, course, judging
from rerail.cli.recorded import label
from rerail.course import Exercise
from rerail.engine import open_engine
from rerail.grading import Grader, Submission

EXERCISES = course.exercises()
SCRIPTS = [exercise for exercise in EXERCISES if not exercise.is_sheet]
assert EXERCISES, "found none: every test below would pass in vain"
ROWS = [pytest.param(e, row, id=f"{e.name}-{row.label}") for e in EXERCISES for row in authoring.rows(e)]
KNOWING = re.compile(r"\b(bug|wrong|fix|cause|leak\w*|trap)\b", re.I)  # words that a broken script must not say

every = pytest.mark.parametrize("exercise", EXERCISES, ids=lambda e: e.name)
every_script = pytest.mark.parametrize("exercise", SCRIPTS, ids=lambda e: e.name)


def changed(exercise: Exercise) -> tuple[list[str], list[str]]:
    """Return the lines that the solution takes away and those that it adds."""
    lines = list(difflib.ndiff(exercise.shipped.decode().splitlines(), exercise.solution.decode().splitlines()))
    return [line[2:] for line in lines if line[:2] == "- "], [line[2:] for line in lines if line[:2] == "+ "]


def test_the_three_trees_hold_the_same_names() -> None:
    names = {
        tree: {str(p.relative_to(course.root() / tree)) for p in (course.root() / tree).glob("[0-9]*/*.py")}
        for tree in course.TREES
    }

    assert names["exercises"] == names["solutions"] == names["graders"]


def test_names_and_places_are_unique() -> None:
    assert len({e.name for e in EXERCISES}) == len({e.number for e in EXERCISES}) == len(EXERCISES)


@every
def test_header_tells_title_task_and_command(exercise: Exercise) -> None:
    title, _, rest = exercise.brief.partition("\n")

    assert title.endswith(".")
    assert len(title) <= 88
    assert "Task:" in rest
    assert f"exercises/{exercise.lesson}/{exercise.name}.py" in rest
    assert all(f"`{name}`" in rest for name in exercise.meta["GRADED"])
    for tree in ("solutions", "graders"):
        other = ast.get_docstring(ast.parse(exercise.path(tree).read_bytes())) or ""
        assert other.partition("\n")[0] == title


@every
def test_header_and_comments_do_not_tell_the_cause(exercise: Exercise) -> None:
    comments = re.findall(r"#.*", exercise.shipped.decode())

    assert not [text for text in (exercise.brief, *comments) if KNOWING.search(text)]


@every
def test_script_is_no_longer_than_a_page_and_knows_nothing_of_us(exercise: Exercise) -> None:
    source = exercise.shipped.decode()

    assert "rerail" not in re.sub(r"`?rerail check.*", "", source)
    assert 15 <= len(source.splitlines()) <= 130
    assert max(map(len, source.splitlines())) <= 100


@every
def test_solution_is_a_small_repair_with_its_reason(exercise: Exercise) -> None:
    taken, added = changed(exercise)

    assert len([line for line in added if line.strip()]) <= (14 if exercise.is_sheet else 12)
    assert taken or added
    if not exercise.is_sheet:
        assert sum("#" in line for line in added) >= 1


@every
def test_grader_is_complete(exercise: Exercise) -> None:
    grader, meta = exercise.loaded_grader(), exercise.meta
    checks = judging.checks_of(grader)

    assert meta["LAYER"] in course.LAYERS
    assert 3 <= meta["MINUTES"] <= 40
    assert meta["POINTS"] >= 1
    assert meta["BASELINE"] in (*checks, "unusable", "crash", "timeout")
    assert len(grader.ACCEPTED) >= 3
    assert len(grader.TRAPS) >= 4
    for check in checks.values():
        says = judging.sentence(check)
        assert not says[0].isupper()
        assert not says.endswith(".")


@every
def test_every_check_catches_a_tempting_fix(exercise: Exercise) -> None:
    grader = exercise.loaded_grader()
    needed = {trap.caught_by for trap in grader.TRAPS.values()} | {exercise.meta["BASELINE"]}

    assert set(judging.checks_of(grader)) <= needed, "a check that catches nothing can go"


@every
def test_four_hints_and_none_gives_the_solution_away(exercise: Exercise) -> None:
    hints = exercise.meta["HINTS"]
    _, added = changed(exercise)
    code = [line.partition("#")[0].strip() for line in added]

    assert len(hints) == 4
    assert not [line for line in code if len(line) > 8 and any(line in hint for hint in hints)]


@pytest.mark.parametrize(("exercise", "row"), ROWS)
def test_verdict(grader: Grader, exercise: Exercise, row: authoring.Row) -> None:
    """Shipped, solution, accepted fixes and traps: each gets the verdict that its author wrote down."""
    report = grader.grade(exercise, Submission(row.source, f"{exercise.name}.py"))

    assert report.first == row.expected, report.text()
    assert report.outcome == ("not yet" if row.expected else "pass")


@every
def test_a_trap_that_speaks_is_recognised(grader: Grader, exercise: Exercise) -> None:
    for name, trap in exercise.loaded_grader().TRAPS.items():
        row = next(row for row in authoring.rows(exercise) if row.label == f"trap: {name}")
        if trap.says and trap.caught_by.startswith("check_"):
            report = grader.grade(exercise, Submission(row.source, "it.py"))
            assert report.says, name


CONSTANTS = {
    "nothing": "None",
    "zero": "0.0",
    "nan": "__import__('torch').full((4, 2), float('nan'))",
    "text": "'PASS'",
    "pair": "(None, None)",
    "rows": "[[1.0, 2.0], [3.0, 4.0]]",
    "mapping": "{}",
}


@pytest.mark.parametrize("constant", CONSTANTS.values(), ids=CONSTANTS)
@every_script
def test_constants_are_not_yet(grader: Grader, exercise: Exercise, constant: str) -> None:
    """A function that returns a constant is neither right nor a defect of the course."""
    for name in exercise.meta["GRADED"]:
        source = exercise.solution.decode() + f"\n\ndef {name}(*args, **kwargs):\n    return {constant}\n"
        report = grader.grade(exercise, Submission(source.encode(), "it.py"))

        assert report.outcome == "not yet", f"{name}: {report.text()}"


@every_script
def test_every_recorded_name_is_explained(grader: Grader, exercise: Exercise) -> None:
    """What `rerail run` shows, it also explains, and it explains nothing else."""
    recorded = grader.evidence(exercise, Submission(exercise.solution, "it.py")).evidence[0]
    names, explained = {label(name) for name in recorded.names()}, exercise.meta["RECORDED"]

    assert not [name for name in names if not any(fnmatch.fnmatchcase(name, key) for key in explained)]
    assert not [key for key in explained if not fnmatch.filter(names, key)]


@every_script
def test_missing_function_is_told(grader: Grader, exercise: Exercise) -> None:
    for name in exercise.meta["GRADED"]:
        source = exercise.solution.decode() + f"\n\ndel {name}\n"
        report = grader.grade(exercise, Submission(source.encode(), "it.py"))

        assert (report.reason, repr(name) in report.message) == ("contract", True)


@every_script
def test_verdicts_hold_for_five_seeds(grader: Grader, exercise: Exercise) -> None:
    for seed in (11, 12, 13, 14, 15):
        for row in authoring.rows(exercise):
            if not row.label.startswith("trap"):
                report = grader.grade(exercise, Submission(row.source, "it.py"), seed=seed)
                assert report.first == row.expected, f"{row.label}, seed {seed}: {report.text()}"


def test_verdicts_hold_cold_and_on_four_threads() -> None:
    engine = open_engine()
    try:
        other = Grader(engine, threads=4)
        for exercise in SCRIPTS:
            for row in authoring.rows(exercise)[:2]:
                report = other.grade(exercise, Submission(row.source, "it.py"))
                assert report.first == row.expected, f"{exercise.name}, {row.label}: {report.text()}"
    finally:
        engine.close()


@every_script
def test_symptom_shows_in_seconds(exercise: Exercise, tmp_path: Path) -> None:
    """The script runs by itself, prints something, and prints something else once it is repaired."""
    running = []
    for tree in ("exercises", "solutions"):
        folder = tmp_path / tree
        shutil.copytree(exercise.path("exercises").parent, folder)
        script = folder / f"{exercise.name}.py"
        script.write_bytes(exercise.path(tree).read_bytes())
        command = [sys.executable, str(script)]
        running.append(
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=tmp_path)
        )
    said = [process.communicate(timeout=60)[0] for process in running]

    assert [process.returncode for process in running] == [0, 0], said
    assert said[0].strip()
    assert said[0] != said[1]


def sabotaged(exercise: Exercise, where: Path, check: str, body: str) -> Exercise:
    """Copy an exercise with one check replaced."""
    for tree in course.TREES:
        (where / tree / exercise.lesson).mkdir(parents=True)
        shutil.copy(exercise.path(tree), where / tree / exercise.lesson)
    path = where / "graders" / exercise.lesson / f"{exercise.name}.py"
    tree = ast.parse(path.read_text())
    node = next(node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == check)
    node.body = [*node.body[:1], *ast.parse(body).body]
    path.write_text(ast.unparse(tree))
    return Exercise(exercise.name, exercise.lesson, where)


@pytest.mark.parametrize("kind", ["script", "sheet"])
@pytest.mark.parametrize(
    "body", ["return", "raise Failed('no')", "raise KeyError('ours')"], ids=["always true", "always false", "crashing"]
)
def test_a_sabotaged_check_turns_the_suite_red(grader: Grader, tmp_path: Path, kind: str, body: str) -> None:
    exercise = SCRIPTS[0] if kind == "script" else next(e for e in EXERCISES if e.is_sheet)
    check = exercise.meta["BASELINE"]
    if not check.startswith("check_"):
        check = next(iter(judging.checks_of(exercise.loaded_grader())))

    assert authoring.problems(exercise, grader) == []
    assert authoring.problems(sabotaged(exercise, tmp_path, check, body), grader) != []
