"""`rerail classroom init DIR`: what is in the folder, and what never is."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from rerail import course
from rerail.classroom.folder import SETTINGS, Occupied, make
from rerail.classroom.notebooks import notebook, written
from rerail.course import Exercise

EXERCISES = course.exercises()
OF_THE_COURSE = pytest.mark.parametrize("exercise", [pytest.param(e, id=e.name) for e in EXERCISES])


def test_exercises_were_found() -> None:
    assert EXERCISES, "found none: tests below would pass in vain"


def files(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def texts(exercise: Exercise) -> list[str]:
    return ["".join(cell["source"]) for cell in notebook(exercise)["cells"]]


def test_a_notebook_an_exercise_in_an_assignment_a_lesson(course_root: Path, tmp_path: Path) -> None:
    made = make(tmp_path / "c", course.exercises(course_root))

    assert made.written == ("01_sample/too_large", "01_sample/which_one") and made.kept == ()
    assert set(files(tmp_path / "c")) == {
        "nbgrader_config.py",
        "source/01_sample/too_large.ipynb",
        "source/01_sample/which_one.ipynb",
    }


def test_again_changes_nothing_and_adds_what_is_missing(course_root: Path, tmp_path: Path) -> None:
    folder, exercises = tmp_path / "c", course.exercises(course_root)
    make(folder, exercises)
    own = folder / "source/01_sample/too_large.ipynb"
    own.write_text(own.read_text().replace("# The mean", "# Week 1: the mean"))
    (folder / "nbgrader_config.py").write_text(SETTINGS + "c.Exchange.root = '/srv/exchange'\n")
    (folder / "source/01_sample/which_one.ipynb").unlink()
    before = files(folder)

    made = make(folder, exercises)

    assert (made.written, made.kept) == (("01_sample/which_one",), ("01_sample/too_large",))
    assert {name: content for name, content in files(folder).items() if name in before} == before


@pytest.mark.parametrize("named", ["notes.txt", "nbgrader_config.py"])
def test_folder_of_somebody_else_is_left_alone(course_root: Path, tmp_path: Path, named: str) -> None:
    (tmp_path / named).write_text("c = get_config()\n")
    before = files(tmp_path)

    with pytest.raises(Occupied, match="holds other files and no course of rerail; name a new folder"):
        make(tmp_path, course.exercises(course_root))
    assert files(tmp_path) == before


def test_file_is_no_folder(course_root: Path, tmp_path: Path) -> None:
    (tmp_path / "c").write_text("")

    with pytest.raises(Occupied, match="c is a file; name a new folder"):
        make(tmp_path / "c", course.exercises(course_root))


def test_data_of_a_lesson_lie_beside_its_notebooks(course_root: Path, tmp_path: Path) -> None:
    exercise = Exercise("too_large", "01_sample", tmp_path / "root")
    for tree in course.TREES:
        path = exercise.path(tree)
        path.parent.mkdir(parents=True)
        path.write_bytes(Exercise("too_large", "01_sample", course_root).path(tree).read_bytes())
    (exercise.path("exercises").parent / "data").mkdir()
    (exercise.path("exercises").parent / "data/rows.csv").write_text("1,2\n")

    make(tmp_path / "c", [exercise])

    assert (tmp_path / "c/source/01_sample/data/rows.csv").read_text() == "1,2\n"


@OF_THE_COURSE
def test_script_cell_holds_the_shipped_script_and_is_none_of_nbgraders(exercise: Exercise) -> None:
    cells = {cell["id"]: cell for cell in notebook(exercise)["cells"]}

    magic, _, script = "".join(cells["script"]["source"]).partition("\n")
    assert magic == f"%%exercise {exercise.name}"
    assert script == exercise.shipped.decode().rstrip()
    assert [name for name, cell in cells.items() if cell["metadata"]] == ["check"]


@OF_THE_COURSE
def test_no_line_of_the_solution_or_the_grader_is_in_it(exercise: Exercise) -> None:
    shipped = lines(exercise.shipped.decode())
    repaired = lines(exercise.solution.decode()) - shipped
    judged = {line for line in lines(exercise.grader) - shipped if len(line) > 20}  # shorter ones are everybody's

    assert repaired and judged
    assert not lines("\n".join(texts(exercise))) & (repaired | judged)


def lines(text: str) -> set[str]:
    return {line.strip() for line in text.splitlines() if line.strip()}


@OF_THE_COURSE
def test_notebook_is_valid_for_jupyter_and_nbgrader(exercise: Exercise) -> None:
    nbformat = pytest.importorskip("nbformat")
    graderformat = pytest.importorskip("nbgrader.nbgraderformat")
    read = nbformat.reads(written(exercise), as_version=4)

    nbformat.validate(read)
    for cell in read.cells:
        graderformat.MetadataValidator().validate_cell(cell)

    marks = [cell.metadata.nbgrader.points for cell in read.cells if "nbgrader" in cell.metadata]
    assert marks == [exercise.meta["POINTS"]]


def test_brief_tells_no_command_line_of_the_workspace(too_large: Exercise) -> None:
    brief = texts(too_large)[0]

    assert brief.startswith(
        "# The mean is too large\n\n**Task:** return the mean of the values. Graded: `mean`.\n\nRepair"
    )
    assert "python exercises/" not in brief


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        pytest.param("/c/extracted/all/ada_same_score.ipynb", ("ada", "same_score.ipynb"), id="in the file's name"),
        pytest.param("/c/extracted/all/ada/same_score.ipynb", ("ada", "same_score.ipynb"), id="a folder each"),
        pytest.param("/c/extracted/ada_l/same_score.ipynb", ("ada_l", "same_score.ipynb"), id="underscore in a name"),
        pytest.param("/c/extracted/ada_score.ipynb", ("ada", "score.ipynb"), id="a name that ends another"),
        pytest.param("C:\\c\\all\\ada\\score.ipynb", ("ada", "score.ipynb"), id="windows"),
        pytest.param("/c/extracted/ada/diary.ipynb", None, id="another notebook"),
        pytest.param("/c/extracted/ada_same_score.ipynb.bak", None, id="another ending"),
    ],
)
def test_names_of_submissions(tmp_path: Path, path: str, expected: tuple[str, str] | None) -> None:
    found = re.match(settings(tmp_path, "same_score", "score").FileNameCollectorPlugin.named_regexp, path)

    assert (found and (found["student_id"], found["file_id"])) == expected


def settings(folder: Path, *names: str):  # type: ignore[no-untyped-def]  # traitlets' Config
    """Execute the settings of a course with these notebooks as nbgrader does."""
    loader = pytest.importorskip("traitlets.config.loader")
    (folder / "source/01_x").mkdir(parents=True)
    for name in names:
        (folder / f"source/01_x/{name}.ipynb").write_text("{}")
    (folder / "nbgrader_config.py").write_text(SETTINGS)
    return loader.PyFileConfigLoader("nbgrader_config.py", str(folder)).load_config()


def test_command_says_what_comes_next(
    course_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from rerail.cli import execute
    from rerail.cli.settings import Settings

    monkeypatch.chdir(tmp_path)
    assert execute(["classroom", "init", "c"], Settings(root=course_root)) == 0
    assert "c is an nbgrader course: 2 notebooks written.\n" in capsys.readouterr().out

    assert execute(["--json", "classroom", "init", "c"], Settings(root=course_root)) == 0
    assert json.loads(capsys.readouterr().out)["kept"] == ["01_sample/too_large", "01_sample/which_one"]

    (tmp_path / "other").mkdir()
    (tmp_path / "other/notes").write_text("")
    assert execute(["classroom", "init", "other"], Settings(root=course_root)) == 2
    assert "other holds other files and no course of rerail" in capsys.readouterr().err
