"""The stock cycle of the real nbgrader, from `rerail classroom init` to the exported marks."""

from __future__ import annotations

import csv
import html
import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest
from conftest import SHEET, SHIPPED

import rerail
from rerail.course import Exercise
from rerail.grading import Grader, Submission

nbgrader = pytest.importorskip("nbgrader", reason="marking notebooks needs rerail[classroom]")

PROJECT = Path(__file__).parents[2]
ASSIGNMENT = "01_sample"
RIGHT = SHIPPED.replace("(len(values) - 1)", "len(values)")
SUBMISSIONS = {  # student: script, sheet; None: not handed in
    "right": (RIGHT, SHEET.replace('""}', '"scale"}')),
    "warns": (RIGHT.replace("import torch\n", "import sys, torch, warnings\nwarnings.warn('careful')\nprint(1, file=sys.stderr)\n"), None),
    "wrong": (SHIPPED.replace("values.sum() / (len(values) - 1)", "0.0"), None),
    "untouched": (SHIPPED, None),
    "crashes": (RIGHT + "raise KeyError('no')\n", None),
    "deleted": (None, SHEET.replace('""}', '"scale"}')),
    "forges": (None, SHEET),
}  # fmt: skip
WARNS = (
    "import sys, warnings\nwarnings.simplefilter('always')\nwarnings.warn('careful')\nprint('note', file=sys.stderr)"
)
FORGES = "import rerail.notebook\nrerail.notebook.check = lambda name: 1.0"
OWN_CELLS = {"warns": WARNS, "forges": FORGES}


@dataclass
class Marked:
    """A course after the whole cycle."""

    folder: Path
    outbound: Path  # what learners fetch
    log: str

    def rows(self) -> dict[str, dict[str, str]]:
        """Return the exported marks by student."""
        with open(self.folder / "grades.csv", newline="") as file:
            return {row["student_id"]: row for row in csv.DictReader(file)}

    def said(self, student: str, name: str) -> str:
        """Return what the cell that judges printed, without its line breaks."""
        read = json.loads((self.folder / f"autograded/{student}/{ASSIGNMENT}/{name}.ipynb").read_text())
        cell = next(cell for cell in read["cells"] if "nbgrader" in cell["metadata"])
        return " ".join("".join("".join(output.get("text", "")) for output in cell["outputs"]).split())

    def feedback(self, student: str, name: str) -> str:
        """Return the text of the page that a learner gets back, without its line breaks."""
        page = (self.folder / f"feedback/{student}/{ASSIGNMENT}/{name}.html").read_text()
        return " ".join(html.unescape(re.sub("<[^>]+>", "", page)).split())


@pytest.fixture(scope="module")
def marked(course_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Marked:
    """Make a course, hand in, mark, and export: programs only, in the order of the page for instructors."""
    base = tmp_path_factory.mktemp("classroom")
    folder, exchange = base / "course", base / "exchange"
    exchange.mkdir(mode=0o777)
    exchange.chmod(0o777)
    environment = installed_with(course_root, base)

    def start(*command: str) -> subprocess.Popen[str]:
        return subprocess.Popen(command, cwd=folder if folder.exists() else base, env=environment, text=True,
                                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)  # fmt: skip

    def finish(*processes: subprocess.Popen[str]) -> str:
        said = [process.communicate(timeout=300)[0] for process in processes]
        assert [process.returncode for process in processes] == [0] * len(processes), "\n".join(said)
        return "".join(said)

    program = str(Path(sys.executable).parent / "nbgrader")
    finish(start(sys.executable, "-m", "rerail", "classroom", "init", "course"))
    finish(start(program, "generate_assignment", ASSIGNMENT))
    release = start(program, "release_assignment", ASSIGNMENT, f"--Exchange.root={exchange}")
    hand_in(folder)
    log = finish(release, start(program, "zip_collect", ASSIGNMENT))
    log += finish(start(program, "autograde", ASSIGNMENT))
    log += finish(start(program, "generate_feedback", ASSIGNMENT), start(program, "export"))
    return Marked(folder, exchange / "course/outbound" / ASSIGNMENT, log)


def installed_with(course_root: Path, base: Path) -> dict[str, str]:
    """Install the package with the small course in it, as a wheel carries one, and return the environment for it."""
    site = base / "site"
    shutil.copytree(Path(rerail.__file__).parent, site / "rerail", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(course_root, site / "rerail/_course", ignore=shutil.ignore_patterns("__pycache__"))
    programs = Path(sys.executable).parent  # nbgrader starts alembic by its name
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("JUPYTER", "IPYTHON", "NBGRADER"))}
    return kept | {
        "PYTHONPATH": str(site),
        "PATH": f"{programs}{os.pathsep}{os.environ.get('PATH', '')}",
        "HOME": str(base),  # settings and kernels of the person who runs the tests have no say
    }


def hand_in(folder: Path) -> None:
    """Fill in the released notebooks, and lay them as one archive into the folder that nbgrader collects from."""
    archive = folder / "downloaded" / ASSIGNMENT / "archive"
    archive.mkdir(parents=True)
    with zipfile.ZipFile(archive / "from_the_platform.zip", "w") as handed:
        for student, works in SUBMISSIONS.items():
            for name, text in zip(("too_large", "which_one"), works, strict=True):
                if text is not None:
                    place = f"{student}/{name}" if student == "warns" else f"{student}_{name}"
                    handed.writestr(f"{place}.ipynb", json.dumps(filled_in(folder, name, text, student)))


def filled_in(folder: Path, name: str, text: str, student: str) -> dict:
    read = json.loads((folder / f"release/{ASSIGNMENT}/{name}.ipynb").read_text())
    script = next(cell for cell in read["cells"] if cell["id"] == "script")
    script["source"] = f"%%exercise {name}\n{text.rstrip()}"
    if student in OWN_CELLS:
        read["cells"].insert(1, script | {"id": "own", "source": OWN_CELLS[student]})
    if student == "deleted":
        read["cells"].pop()
    return read


def test_marks_are_those_of_rerail_check(
    marked: Marked, grader: Grader, too_large: Exercise, which_one: Exercise
) -> None:
    def points(exercise: Exercise, text: str | None) -> float:
        return 0 if text is None else grader.grade(exercise, Submission(text.encode(), "it.py")).points

    honest = {student: works for student, works in SUBMISSIONS.items() if student not in ("deleted", "forges")}
    expected = {name: points(too_large, script) + points(which_one, sheet) for name, (script, sheet) in honest.items()}
    assert expected == {"right": 3, "warns": 2, "wrong": 0, "untouched": 0, "crashes": 0}
    assert {student: float(marked.rows()[student]["score"]) for student in honest} == expected
    assert {row["max_score"] for row in marked.rows().values()} == {"3.0"}


def test_nothing_is_left_unmarked(marked: Marked) -> None:
    with sqlite3.connect(marked.folder / "gradebook.db") as gradebook:
        rows = gradebook.execute("select auto_score, needs_manual_grade from grade").fetchall()
    gradebook.close()

    assert len(rows) == 2 * len(SUBMISSIONS)
    assert all(score is not None and not manual for score, manual in rows)


def test_deleted_check_is_put_back_and_earns_nothing(marked: Marked) -> None:
    assert float(marked.rows()["deleted"]["score"]) == 0


def test_stock_nbgrader_can_be_forged_as_the_page_for_instructors_says(marked: Marked) -> None:
    """A limit that is told, not a promise: a cell of a learner runs in the kernel that marks."""
    page = (PROJECT / "book/classroom.md").read_text()

    assert float(marked.rows()["forges"]["score"]) == 1
    assert "can be forged" in page


@pytest.mark.parametrize(
    ("student", "name", "says"),
    [
        ("right", "too_large", "PASS 1.1 too_large"),
        ("right", "which_one", "PASS 1.2 which_one"),
        ("warns", "too_large", "PASS 1.1 too_large"),
        ("wrong", "too_large", "zero is the mean of no batch here"),
        ("untouched", "too_large", "the mean is another number"),
        ("crashes", "too_large", "KeyError: 'no'"),
        ("deleted", "which_one", "no cell that begins with `%%exercise which_one` has been run"),
    ],
)
def test_reason_of_a_mark_is_in_the_feedback(marked: Marked, student: str, name: str, says: str) -> None:
    assert says in marked.said(student, name)
    assert says in marked.feedback(student, name)


def test_solution_reaches_no_learner(marked: Marked, too_large: Exercise) -> None:
    shipped = too_large.shipped.decode().splitlines()
    repaired = [line.strip() for line in too_large.solution.decode().splitlines() if line not in shipped]
    handed_out = [*marked.folder.glob("source/**/*.ipynb"), *marked.outbound.rglob("*.ipynb"),
                  *marked.folder.glob("feedback/untouched/**/*.html")]  # fmt: skip

    assert repaired and len(handed_out) == 5
    assert not [file for file in handed_out for line in repaired if line in file.read_text()]
