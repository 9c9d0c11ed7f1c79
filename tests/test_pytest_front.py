"""`pytest graders --tree PATH`, run as a program on a clone of the small course."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from conftest import SHEET, SHIPPED

from rerail.course import Exercise
from rerail.grading import Grader, Submission

PROJECT = Path(__file__).parents[1]
RIGHT = SHIPPED.replace("(len(values) - 1)", "len(values)")
SCRIPT, FILLED = "graders/01_sample/too_large.py", "graders/01_sample/which_one.py"
SHEET_RIGHT = SHEET.replace('""}', '"scale"}')


@dataclass
class Clone:
    """A clone of the small course, with the conftest and the settings of this project."""

    folder: Path

    def pytest(self, *arguments: str, cwd: Path | None = None, isolated: bool = True) -> tuple[int, str]:
        """Run pytest in the clone, or elsewhere; return its exit code and what it printed."""
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST", "COLUMNS"))}
        command = [sys.executable, *(["-P"] if isolated else []), "-m", "pytest", *arguments]
        done = subprocess.run(command, cwd=cwd or self.folder, env=environment, capture_output=True, text=True,
                              stdin=subprocess.DEVNULL, timeout=120, check=False)  # fmt: skip
        return done.returncode, done.stdout + done.stderr


@pytest.fixture
def clone(course_root: Path, tmp_path: Path) -> Clone:
    folder = tmp_path / "clone"
    shutil.copytree(course_root, folder)
    shutil.copy(PROJECT / "graders/conftest.py", folder / "graders")
    shutil.copy(PROJECT / "pyproject.toml", folder)
    (folder / "tests").mkdir()
    (folder / "tests/test_own.py").write_text("def test_of_the_project():\n    pass\n")
    return Clone(folder)


@pytest.fixture
def tree(tmp_path: Path) -> Iterator[Path]:
    """What one learner handed in, somewhere else than the clone: the shipped script, and the right sheet."""
    folder = tmp_path / "ada"
    write(folder, SHIPPED, SHEET_RIGHT)
    return folder


def write(tree: Path, script: str, sheet: str) -> None:
    lesson = tree / "exercises/01_sample"
    lesson.mkdir(parents=True, exist_ok=True)
    (lesson / "too_large.py").write_text(script)
    (lesson / "which_one.py").write_text(sheet)


def test_shows_the_report_of_what_does_not_pass(clone: Clone, tree: Path, grader: Grader, too_large: Exercise) -> None:
    code, said = clone.pytest("graders", "--tree", str(tree), "-rA")

    report = grader.grade(too_large, Submission(SHIPPED.encode(), "exercises/01_sample/too_large.py"))
    assert code == 1
    assert report.text().rpartition(",")[0] in said, "the whole report but for its seconds"
    assert "Traceback" not in said and "conftest.py" not in said and "excinfo" not in said
    assert outcomes(said) == {
        f"{SCRIPT}::the code runs": "PASSED",
        f"{SCRIPT}::the mean is the sum divided by the count": "FAILED",
        f"{FILLED}::the sheet can be read": "PASSED",
        f"{FILLED}::the cause is named": "PASSED",
    }


def outcomes(said: str) -> dict[str, str]:
    """Read the summary that -rA prints."""
    return {
        name: word for word, name in re.findall(r"^(PASSED|FAILED|ERROR|SKIPPED) (graders.+?)(?: - .*)?$", said, re.M)
    }


def test_grades_the_workspace_around_the_current_folder(clone: Clone, tree: Path) -> None:
    write(tree, RIGHT, SHEET_RIGHT)
    (tree / ".rerail").mkdir()

    code, said = clone.pytest(str(clone.folder / "graders"), cwd=tree / "exercises/01_sample")

    assert (code, said.split()[-4:-2]) == (0, ["4", "passed"]), said


CONFTEST = """
import os, pytest
from _pytest.runner import CallInfo
open({proof!r}, "a").write("ran")
@pytest.hookimpl(tryfirst=True)
def pytest_runtest_makereport(item, call):
    call.excinfo = None
def pytest_sessionfinish(session):
    session.exitstatus = 0
    os._exit(0)
"""
HOSTILE = """
import atexit, os, sys
atexit.register(os._exit, 0)
def mean(values):
    raise RuntimeError(f"pytest here: {'_pytest.main' in sys.modules}, judge here: {'rerail.judging' in sys.modules}")
"""


def test_hostile_tree_has_no_effect(clone: Clone, tree: Path, tmp_path: Path) -> None:
    """The tricks that forged a plain pytest grader: exit codes, a conftest, settings, shadowing modules."""
    proof = tmp_path / "proof"
    write(tree, HOSTILE, SHEET)
    for folder in (tree, tree.parent, tree / "tests", tree / "exercises", tree / "exercises/01_sample"):
        folder.mkdir(exist_ok=True)
        (folder / "conftest.py").write_text(CONFTEST.format(proof=str(proof)))
    for name in ("numpy.py", "rerail.py", "sitecustomize.py", "test_own.py"):
        (tree / name).write_text(f"open({str(proof)!r}, 'a').write({name!r})\n")
    (tree / "pytest.ini").write_text("[pytest]\naddopts = --collect-only\n")
    (tree / "tox.ini").write_text("[pytest]\naddopts = --collect-only\n")

    code, said = clone.pytest("graders", "--tree", str(tree), "-rA")

    assert code == 1
    assert "pytest here: False, judge here: False" in " ".join(said.split()), said
    assert [*outcomes(said).values()].count("FAILED") == 2
    assert not proof.exists(), f"ran in the judging process: {proof.read_text()}"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        pytest.param(["graders"], "there is no workspace around this folder to grade", id="nothing to grade"),
        pytest.param(["graders", "--tree", "nowhere"], "nowhere has no folder exercises/", id="no such tree"),
        pytest.param(
            ["--tree", "../ada", "graders"], "from the first folder that it is given", id="tree before graders"
        ),
        pytest.param(["graders", "--tree"], "expected one argument", id="no path"),
    ],
)
def test_usage_errors_are_one_sentence(clone: Clone, tree: Path, arguments: list[str], says: str) -> None:
    code, said = clone.pytest(*arguments)

    assert code == pytest.ExitCode.USAGE_ERROR
    assert says in said and "Traceback" not in said


def test_imports_from_the_tree_are_refused(clone: Clone, tree: Path) -> None:
    code, said = clone.pytest(str(clone.folder / "graders"), f"--tree={tree}", cwd=tree, isolated=False)

    assert code == pytest.ExitCode.USAGE_ERROR
    assert "`python -m pytest` imports from the current folder" in said


def test_missing_file_fails_once_and_says_which(clone: Clone, tree: Path) -> None:
    (tree / "exercises/01_sample/which_one.py").unlink()

    code, said = clone.pytest(FILLED, "--tree", str(tree))

    assert code == 1
    assert "exercises/01_sample/which_one.py is not there, so nothing was handed in" in said
    assert "1 failed, 1 skipped" in said


def test_link_to_the_solution_is_not_followed(clone: Clone, tree: Path) -> None:
    sheet = tree / "exercises/01_sample/which_one.py"
    sheet.unlink()
    sheet.symlink_to(clone.folder / "solutions/01_sample/which_one.py")

    code, said = clone.pytest(FILLED, "--tree", str(tree))

    assert code == 1
    assert "which_one.py is a link or no file at all" in said


def test_check_that_was_not_reached_is_no_success(clone: Clone, tree: Path) -> None:
    write(tree, SHIPPED, "ANSWER = [")

    code, said = clone.pytest(f"{FILLED}::the cause is named", "--tree", str(tree), "-rs")

    assert "not reached: unusable comes first" in said
    assert code == pytest.ExitCode.TESTS_FAILED


def test_bug_of_a_grader_is_an_error_and_no_failure(clone: Clone, tree: Path) -> None:
    broken = clone.folder / FILLED
    broken.write_text(broken.read_text().replace('if answer.get("cause") != "scale":', "if answer.cause:"))

    code, said = clone.pytest(FILLED, "--tree", str(tree), "-rA")

    assert code == 1
    assert set(outcomes(said).values()) == {"ERROR"}
    assert "DEFECT" in said and "our check `check_cause` raised AttributeError" in said


def test_graders_are_collected_only_where_they_are_asked_for(clone: Clone) -> None:
    for arguments in ([], ["."], ["tests"]):
        code, said = clone.pytest(*arguments, "--collect-only")

        assert (code, said.split()[0]) == (0, "tests/test_own.py::test_of_the_project"), said
        assert "graders" not in said
