"""The README shows what the command prints, and names commands that are there."""

from __future__ import annotations

import re
from pathlib import Path

from rerail import course
from rerail.checks import edited
from rerail.cli import COMMANDS
from rerail.grading import Grader, Submission

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text("utf-8")


def test_the_verdict_in_the_readme_is_what_is_printed(grader: Grader) -> None:
    exercise = course.find("third_batch")
    trap = exercise.loaded_grader().TRAPS["a small constant under the logarithm"]
    source = edited(exercise.shipped.decode(), trap.edits)
    report = grader.grade(exercise, Submission(source.encode(), f"exercises/{exercise.lesson}/{exercise.name}.py"))
    shown = re.search(r"\$ rerail check\n(.*?)```", README, re.S)
    timeless = re.compile(r"[\d.]+ s$", re.M)

    assert shown
    assert timeless.sub("", report.text()).strip() == timeless.sub("", shown[1]).strip()


def test_every_command_that_the_readme_names_exists() -> None:
    named = set(re.findall(r"(?:\$ |`)rerail ([a-z]+)", README))

    assert named <= set(COMMANDS), named - set(COMMANDS)
    makefile = (ROOT / "Makefile").read_text("utf-8")
    for target in re.findall(r"(?:\$ |`)make ([a-z]+)", README):
        assert re.search(rf"^{target}:", makefile, re.M), target
