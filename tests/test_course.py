"""Exercises are found by name and number, and a child gets only the half of a grader that its probe reaches."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from rerail import course
from rerail.course import CourseError, Exercise, half


def test_exercises_stand_in_the_order_of_the_course(course_root: Path) -> None:
    assert [(e.number, e.name, e.is_sheet) for e in course.exercises(course_root)] == [
        ("1.1", "too_large", False),
        ("1.2", "which_one", True),
    ]


@pytest.mark.parametrize("text", ["too_large", "too-large", "too_large.py", "1.1", "too", " too_l"])
def test_find(text: str, course_root: Path) -> None:
    assert course.find(text, course_root).name == "too_large"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        pytest.param("to_large", "did you mean 'too_large'", id="near"),
        pytest.param("9.9", "`rerail list` shows them all", id="no such number"),
        pytest.param("", "no exercise is called ''", id="empty"),
    ],
)
def test_find_says_what_is_near(text: str, says: str, course_root: Path) -> None:
    with pytest.raises(LookupError, match=says):
        course.find(text, course_root)


def test_ambiguous_beginning_names_both(tmp_path: Path, course_root: Path) -> None:
    import shutil

    shutil.copytree(course_root, tmp_path / "c")
    for tree in course.TREES:
        folder = tmp_path / "c" / tree / "01_sample"
        shutil.copy(folder / "too_large.py", folder / "too_small.py")

    with pytest.raises(LookupError, match="may be too_large or too_small"):
        course.find("too", tmp_path / "c")


def test_brief_and_title_come_from_the_script(too_large: Exercise) -> None:
    assert too_large.title == "The mean is too large"
    assert "Graded: `mean`" in too_large.brief


def test_meta_is_read_without_executing(too_large: Exercise) -> None:
    assert (too_large.meta["LAYER"], too_large.meta["POINTS"], too_large.meta["GRADED"]) == ("values", 2, ("mean",))


def test_grader_without_a_constant_is_told(tmp_path: Path) -> None:
    for tree in course.TREES:
        (tmp_path / tree / "01_x").mkdir(parents=True)
    (tmp_path / "graders/01_x/bare.py").write_text("POINTS = 1\n")

    with pytest.raises(CourseError, match="lacks LAYER, MINUTES, ORDER"):
        _ = Exercise("bare", "01_x", tmp_path).meta


def test_no_course_is_told(tmp_path: Path) -> None:
    with pytest.raises(CourseError, match="install rerail again"):
        course.root(tmp_path / "a" / "b")


def test_half_keeps_what_is_reached_and_the_line_numbers() -> None:
    source = (
        "import numpy as np\nA = 1\nB = 2\n\n\ndef helper():\n    return A\n\n\ndef probe(s, b):\n    return helper()\n"
    )
    kept = half(source, lambda name: name == "probe")

    assert kept.splitlines() == [
        "",
        "A = 1",
        "",
        "",
        "",
        "def helper():",
        "    return A",
        "",
        "",
        *source.splitlines()[9:],
    ]


def test_judge_and_list_never_import_torch() -> None:
    program = (
        "import sys\nfrom rerail import course, grading\n"
        "for e in course.exercises():\n    e.loaded_grader().__name__\n"
        "    [None for c in (e.loaded_grader().cases(3) if not e.is_sheet else [])]\n"
        "print('torch' in sys.modules, len(course.exercises()) > 0)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert done.stdout.split() == ["False", "True"]
