"""`%%exercise` and `check` in a real kernel."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from conftest import SHEET, SHIPPED

from rerail import notebook
from rerail.course import Exercise
from rerail.grading import Grader, Submission

jupyter_client = pytest.importorskip("jupyter_client", reason="the front end of notebooks needs rerail[classroom]")

RIGHT = SHIPPED.replace("(len(values) - 1)", "len(values)")
WARNS = RIGHT.replace(
    "import torch\n", "import sys, torch, warnings\nwarnings.warn('careful')\nprint(1, file=sys.stderr)\n"
)
WARM_SECONDS = 0.3  # a warm check that feels immediate; measured 0.06 to 0.09 on a busy machine


@dataclass
class Said:
    """What one cell gave."""

    stdout: str = ""
    stderr: str = ""
    value: str | None = None
    error: str | None = None  # the name of the exception
    streams: set[str] = field(default_factory=set)


class Kernel:
    """An IPython kernel as JupyterLab and nbgrader start it, in a folder."""

    def __init__(self, folder: Path, root: Path, log: Path, **environment: str) -> None:
        kept = {
            key: value for key, value in os.environ.items() if not key.startswith("PYTEST")
        }  # ipykernel looks at it
        with open(log, "wb") as stderr:
            self.manager = jupyter_client.KernelManager(kernel_name="python3")
            self.manager.start_kernel(cwd=str(folder), env=kept | environment, stderr=stderr, stdout=stderr)
        self.client: Any = self.manager.blocking_client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=60)
        self.run("%load_ext rerail.notebook")
        self.run(f"import rerail.notebook, pathlib; rerail.notebook.scripts.root = pathlib.Path({str(root)!r})")

    def run(self, code: str) -> Said:
        said = Said()

        def hear(message: dict[str, Any]) -> None:
            kind, content = message["msg_type"], message["content"]
            if kind == "stream":
                said.stdout += content["text"] if content["name"] == "stdout" else ""
                said.stderr += content["text"] if content["name"] == "stderr" else ""
            elif kind == "execute_result":
                said.value = content["data"]["text/plain"]
            elif kind == "error":
                said.error = content["ename"]

        self.client.execute_interactive(code, output_hook=hear, timeout=60)
        return said

    def end(self) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)
        self.manager.cleanup_resources()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("notebook")


@pytest.fixture(scope="module")
def kernel(folder: Path, course_root: Path) -> Iterator[Kernel]:
    started = Kernel(folder, course_root, folder / "kernel.log")
    yield started
    started.end()


def exercise(text: str, name: str = "too_large") -> str:
    return f"%%exercise {name}\n{text}"


def test_captured_cell_becomes_a_file_and_does_not_run_in_the_kernel(kernel: Kernel, folder: Path) -> None:
    said = kernel.run(exercise(RIGHT))

    assert (said.stdout, said.stderr) == ("1.1 too_large: 14 lines, also written to too_large.py\n", "")
    assert (folder / "too_large.py").read_text() == RIGHT
    assert kernel.run("'mean' in globals()").value == "False"


def test_right_gets_its_points_as_a_built_in_float(kernel: Kernel) -> None:
    kernel.run(exercise(RIGHT))

    said = kernel.run('points = check("too_large")\n(type(points) is float, points)')

    assert said.value == "(True, 2.0)", "nbgrader reads what is printed: 2.0"
    assert said.stdout.startswith("PASS     1.1 too_large") and said.stderr == ""


def test_wrong_prints_the_report_of_the_grader(kernel: Kernel, grader: Grader, too_large: Exercise) -> None:
    kernel.run(exercise(SHIPPED))

    said = kernel.run('check("too_large")')

    report = grader.grade(too_large, Submission(SHIPPED.encode(), "too_large.py"))
    assert said.value == "0.0"
    assert said.stdout.rpartition(",")[0] == report.text().rpartition(",")[0], "the report but for its seconds"


def test_warnings_leave_stderr_silent(kernel: Kernel) -> None:
    kernel.run(exercise(WARNS))
    kernel.run("import warnings; warnings.simplefilter('always')")

    said = kernel.run('import gc\npoints = check("too_large")\ngc.collect()\npoints')

    assert (said.value, said.stderr) == ("2.0", "")


def test_what_the_judge_lets_slip_goes_to_stdout(
    course_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A library that warns, or a grader that prints, must not cost a learner the points."""
    shutil.copytree(course_root, tmp_path / "course")
    sheet = tmp_path / "course/graders/01_sample/which_one.py"
    noise = "import sys, warnings\nprint('note', file=sys.stderr)\nwarnings.warn('careful', stacklevel=1)\n"
    sheet.write_text(sheet.read_text().replace("from typing import Any\n", noise + "from typing import Any\n"))
    monkeypatch.setattr(notebook, "scripts", notebook.Scripts(tmp_path / "course"))
    monkeypatch.chdir(tmp_path)
    notebook.scripts.capture("which_one", SHEET.replace('""}', '"scale"}'))

    points = notebook.check("which_one")

    said = capsys.readouterr()
    assert (points, said.err) == (1.0, "")
    assert said.out.startswith("note\nPASS")


def test_second_check_is_warm(kernel: Kernel) -> None:
    kernel.run(exercise(RIGHT) + "# another text than before\n")
    kernel.run('check("too_large")')
    clock = 'import time\nbegin = time.monotonic(); check("too_large"); time.monotonic() - begin'

    seconds = min(float(kernel.run(clock).value or "nan") for _ in range(3))

    assert seconds <= WARM_SECONDS


def test_sheet_needs_no_engine(kernel: Kernel) -> None:
    kernel.run(exercise(SHEET.replace('""}', '"scale"}'), "which_one"))

    assert kernel.run('check("which_one")').value == "1.0"


def test_cell_that_was_not_run_is_told(kernel: Kernel) -> None:
    kernel.run("rerail.notebook.scripts.texts.clear(); get_ipython().history_manager.reset(new_session=True)")

    said = kernel.run('check("too_large")')

    assert said.value == "0.0" and said.error is None
    assert "no cell that begins with `%%exercise too_large` has been run" in " ".join(said.stdout.split())


def test_cell_that_came_before_the_magic_is_found(kernel: Kernel) -> None:
    kernel.run("rerail.notebook.scripts.texts.clear()")
    kernel.run("cells = get_ipython().magics_manager.magics['cell']; magic = cells.pop('exercise')")
    kernel.run(exercise(RIGHT))
    kernel.run("cells['exercise'] = magic")

    assert kernel.run('check("too_large")').value == "2.0"


def test_unknown_name_is_one_line(kernel: Kernel) -> None:
    for code in ('check("too_lrge")', exercise("pass", "too_lrge")):
        said = kernel.run(code)

        assert "did you mean 'too_large'?" in said.stdout + said.stderr
        assert "Traceback" not in said.stdout + said.stderr


def test_run_shows_what_the_script_prints(kernel: Kernel) -> None:
    kernel.run(exercise(WARNS + "    sys.exit(3)\n"))

    said = kernel.run('run("too_large")')

    assert said.stdout.startswith("$ python too_large.py\n")
    assert "UserWarning: careful" in said.stdout and "mean 1.00" in said.stdout
    assert said.stdout.endswith("[exit code 3]\n")
    assert said.stderr == ""


def test_file_that_cannot_be_written_costs_nothing(kernel: Kernel, folder: Path) -> None:
    (folder / "too_large.py").unlink(missing_ok=True)
    (folder / "too_large.py").mkdir()

    said = kernel.run(exercise(RIGHT))

    assert "too_large.py was not written: Is a directory" in said.stdout and said.stderr == ""
    assert kernel.run('check("too_large")').value == "2.0"


def test_engine_ends_with_a_killed_kernel(folder: Path, course_root: Path) -> None:
    psutil = pytest.importorskip("psutil")
    kernel = Kernel(folder, course_root, folder / "killed.log")
    kernel.run(exercise(RIGHT))
    engine = psutil.Process(int(kernel.run("rerail.notebook.scripts._grader.engine.process_number").value or 0))

    kernel.end()

    assert not is_running_after(engine, seconds=20), "nobody would end it"


def is_running_after(process: Any, *, seconds: float) -> bool:
    """Wait for a process that is nobody's child here; one that has ended and was not yet collected has ended."""
    import psutil

    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            if process.status() == psutil.STATUS_ZOMBIE:
                return False
        except psutil.NoSuchProcess:
            return False
        time.sleep(0.05)
    return True


@pytest.mark.parametrize(
    ("old", "new", "alone", "says"),
    [
        pytest.param('if answer.get("cause") != "scale":', "if answer.cause:", "DEFECT",
                     "which_one was not marked, defect: our check `check_cause` raised AttributeError", id="a check"),
        pytest.param("POINTS = ", "POINT = ", "",
                     "which_one was not marked, defect: CourseError: the grader of 'which_one' lacks POINTS", id="the course"),
    ],
)  # fmt: skip
def test_bug_of_a_grader_is_no_mark(
    course_root: Path, tmp_path: Path, old: str, new: str, alone: str, says: str
) -> None:
    """While nbgrader marks, a defect ends the kernel: that leaves the mark open, where anything else would be a 0."""
    root, log = tmp_path / "course", tmp_path / "kernel.log"
    shutil.copytree(course_root, root)
    sheet = root / "graders/01_sample/which_one.py"
    sheet.write_text(sheet.read_text().replace(old, new))
    kernel = Kernel(tmp_path, root, log)
    kernel.run(exercise(SHEET, "which_one"))
    live = kernel.run('check("which_one")')
    kernel.run("import os; os.environ['NBGRADER_EXECUTION'] = 'autograde'")

    kernel.client.execute('check("which_one")')
    deadline = time.monotonic() + 30
    while kernel.manager.is_alive() and time.monotonic() < deadline:
        time.sleep(0.05)

    assert live.stdout.startswith(alone) and live.value in ("0.0", None)
    assert not kernel.manager.is_alive()
    assert says in log.read_text()
    kernel.end()


def test_nothing_is_written_or_run_while_marking(course_root: Path, tmp_path: Path) -> None:
    kernel = Kernel(tmp_path, course_root, tmp_path / "kernel.log", NBGRADER_EXECUTION="autograde")

    said = kernel.run(exercise(SHEET, "which_one")).stdout + kernel.run('run("too_large")').stdout

    kernel.end()
    assert said == "1.2 which_one: 6 lines\n"
    assert not (tmp_path / "which_one.py").exists()
