"""The command line as a learner meets it: what is printed, what is remembered, and what is never lost."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from rerail.cli import COMMANDS, execute
from rerail.cli.settings import Settings

SCRIPT = "exercises/01_sample/too_large.py"
Rerail = Callable[..., tuple[int, str, str]]


@pytest.fixture
def rerail(
    course_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Rerail:
    """Return a function that runs a command line in an empty folder: exit code, standard output, standard error."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str) -> tuple[int, str, str]:
        code = execute(arguments, Settings(root=course_root))
        said = capsys.readouterr()
        return code, said.out, said.err

    return call


@pytest.fixture
def workspace(rerail: Rerail, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a new workspace, the current folder."""
    assert rerail("start", "learn")[0] == 0
    monkeypatch.chdir(tmp_path / "learn")
    return tmp_path / "learn"


def repair(workspace: Path) -> None:
    path = workspace / SCRIPT
    path.write_text(path.read_text().replace("(len(values) - 1)", "len(values)"))


def state(workspace: Path) -> dict:
    return json.loads((workspace / ".rerail/state.json").read_text())["exercises"]


def test_alone_outside_a_workspace_it_says_how_to_start(rerail: Rerail) -> None:
    code, out, _ = rerail()

    assert code == 0
    assert "rerail start learn" in out


def test_start_twice_keeps_what_is_there(rerail: Rerail, workspace: Path) -> None:
    (workspace / SCRIPT).write_text("mine")
    os.chdir(workspace.parent)

    code, out, _ = rerail("start", "learn")

    assert (code, (workspace / SCRIPT).read_text()) == (0, "mine")
    assert "is your workspace already" in out


def test_start_brings_back_a_script_that_is_missing(rerail: Rerail, workspace: Path) -> None:
    (workspace / SCRIPT).unlink()
    os.chdir(workspace.parent)

    rerail("start", "learn")

    assert (workspace / SCRIPT).is_file()


def test_a_way_through_the_course(rerail: Rerail, workspace: Path) -> None:
    code, out, _ = rerail("check")
    assert (code, "NOT YET" in out, "Hint 1 of 4" in out) == (1, True, True)
    repair(workspace)
    code, out, _ = rerail("check")
    assert (code, "PASS" in out) == (0, True)
    assert "2 attempts, 0 hints, 1 line changed" in out
    assert "(1 of 2 done)" in out
    code, out, _ = rerail("next")
    assert (code, "which_one" in out) == (0, True)
    code, out, _ = rerail()
    assert "1 of 2 done" in out
    sheet = workspace / "exercises/01_sample/which_one.py"
    sheet.write_text(sheet.read_text().replace('""}', '"scale"}'))
    assert rerail("check")[0] == 0
    code, out, _ = rerail("next")
    assert "All 2 exercises are done" in out


def test_a_later_failure_is_reported_and_not_undone(rerail: Rerail, workspace: Path) -> None:
    sheet = workspace / "exercises/01_sample/which_one.py"
    form = sheet.read_text()
    sheet.write_text(form.replace('""}', '"scale"}'))
    rerail("check", "which_one")
    sheet.write_text(form)
    (workspace / SCRIPT).write_text("")

    code, out, _ = rerail("check", "--all")

    assert code == 1
    assert "passed before and does not now: which_one" in out
    assert state(workspace)["which_one"]["status"] == "done"


def test_lost_progress_is_rebuilt_from_the_scripts(rerail: Rerail, workspace: Path) -> None:
    repair(workspace)
    (workspace / ".rerail/state.json").write_text("{broken")

    _, _, warned = rerail("list")
    code, _, _ = rerail("check", "--all")

    assert "`rerail check --all` rebuilds it" in warned
    assert code == 1
    assert state(workspace)["too_large"]["status"] == "done"
    assert [p.read_text() for p in (workspace / ".rerail").glob("state.broken-*.json")] == ["{broken"]


@pytest.mark.parametrize(
    "text", ["[]", '{"exercises": []}', "\xff", '{"exercises": {"too_large": 3}, "current": 4}', ""]
)
def test_odd_progress_stops_nobody(rerail: Rerail, workspace: Path, text: str) -> None:
    (workspace / ".rerail/state.json").write_bytes(text.encode("latin-1"))

    assert rerail()[0] == rerail("list")[0] == rerail("show")[0] == rerail("hint")[0] == 0


def test_progress_of_a_newer_release_is_read_and_not_changed(rerail: Rerail, workspace: Path) -> None:
    newer = '{"schema": 99, "exercises": {"too_large": {"status": "done", "new": 1}, "unknown": {"status": "done"}}}'
    (workspace / ".rerail/state.json").write_text(newer)

    _, out, warned = rerail("list")
    rerail("hint")

    assert "done" in out
    assert "newer rerail" in warned
    assert (workspace / ".rerail/state.json").read_text() == newer


def test_unknown_exercises_are_kept(rerail: Rerail, workspace: Path) -> None:
    (workspace / ".rerail/state.json").write_text('{"schema": 1, "exercises": {"gone": {"status": "done"}}}')

    rerail("hint")

    assert state(workspace)["gone"] == {"status": "done"}


def test_reset_keeps_a_backup_and_undo_brings_it_back(rerail: Rerail, workspace: Path) -> None:
    path = workspace / SCRIPT
    shipped = path.read_text()
    path.write_text("mine")

    rerail("reset")
    assert path.read_text() == shipped
    rerail("undo")
    assert path.read_text() == "mine"
    rerail("undo")
    assert path.read_text() == shipped


def test_undo_without_a_backup_says_so(rerail: Rerail, workspace: Path) -> None:
    assert rerail("undo")[::2] == (2, "rerail: there is no backup of too_large: no command has replaced it yet\n")


def test_hints_come_one_by_one(rerail: Rerail, workspace: Path) -> None:
    said = [rerail("hint")[1].splitlines()[0] for _ in range(5)]

    assert said == ["Hint 1 of 4", "Hint 2 of 4", "Hint 3 of 4", "Hint 4 of 4", "Hint 4 of 4"]
    assert rerail("hint", "--again")[1].count("Hint") == 4


def test_solution_stays_closed_until_a_pass_or_giving_up(
    rerail: Rerail, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, out, error = rerail("solution")
    assert (code, out) == (2, "")
    assert "--give-up" in error

    for typed, expected in (("something\n", 2), ("which_one\n", 0)):
        monkeypatch.setattr("sys.stdin", open_text(typed))
        assert rerail("solution", "which_one", "--give-up")[0] == expected
    assert state(workspace)["which_one"]["status"] == "revealed"


def open_text(text: str):
    import io

    return io.StringIO(text)


def test_run_shows_symptom_and_evidence_and_draws_nothing_here(rerail: Rerail, workspace: Path) -> None:
    code, out, _ = rerail("run")

    assert code == 0
    assert "mean 1.25" in out
    assert "On the grader's fixed batch the probe records" in out
    assert not (workspace / ".rerail/state.json").exists(), "no attempt is counted"
    code, _, error = rerail("run", "--plot", "curve.png")
    assert (code, "records nothing step by step" in error) == (2, True)


@pytest.mark.parametrize(
    "command", [c for c in COMMANDS if c not in ("watch", "dev", "classroom", "doctor", "run", "start")]
)
def test_json_is_one_object_also_when_it_goes_wrong(rerail: Rerail, workspace: Path, command: str) -> None:
    (workspace / SCRIPT).write_text("")
    for arguments in (
        [command, "--json"],
        ["--json", command, "--no-such-option"],
        ["--json", command, "no_such_exercise"],
    ):
        _, out, _ = rerail(*arguments)

        assert json.loads(out)["schema"].startswith("rerail."), out


WRONG = [
    pytest.param(("chk",), 2, "no command is called 'chk'", id="unknown command"),
    pytest.param(("check", "to_large"), 2, "did you mean 'too_large'", id="unknown exercise"),
    pytest.param(("check", "1"), 2, "'1' may be too_large or which_one", id="a lesson"),
    pytest.param(("check", ""), 2, "no exercise is called ''", id="no name"),
    pytest.param(("check", "--nope"), 2, "`rerail check --help`", id="unknown option"),
    pytest.param(("check", "--all", "too_large"), 2, "leave out either", id="all and one"),
    pytest.param(("--workspace", "/nowhere", "list"), 2, "/nowhere is no workspace", id="no such workspace"),
    pytest.param(("start", "."), 0, "is your workspace already", id="start in a workspace"),
    pytest.param(("start", "inner"), 2, "would lie inside the workspace", id="start inside a workspace"),
    pytest.param(("hint", "--again"), 2, "no hint of too_large was shown yet", id="no hint yet"),
    pytest.param(("watch", "--json"), 2, "`rerail check --json`", id="watch and JSON"),
    pytest.param(("dev", "new", "Odd/Name"), 2, "got 'Odd/Name'", id="odd new name"),
    pytest.param(("dev", "new", "01_sample/too_large"), 2, "'too_large' is taken", id="name taken"),
]


@pytest.mark.parametrize(("arguments", "code", "says"), WRONG)
def test_what_cannot_be_done_is_one_sentence(
    rerail: Rerail, workspace: Path, arguments: tuple[str, ...], code: int, says: str
) -> None:
    got, out, error = rerail(*arguments)

    assert got == code
    assert says in out + error
    assert len(error.strip().splitlines()) <= 1
    assert "Traceback" not in error


@pytest.mark.parametrize("command", ["check", "show", "run", "hint", "solution", "reset", "undo", "next"])
def test_without_a_workspace_they_say_how_to_start(rerail: Rerail, command: str) -> None:
    code, _, error = rerail(command)

    assert code == 2
    assert "`rerail start learn` makes one" in error


def test_a_script_that_cannot_be_read_is_told(rerail: Rerail, workspace: Path) -> None:
    path = workspace / SCRIPT
    path.unlink()
    code, _, error = rerail("check")
    assert (code, "`rerail reset too_large` writes it again" in error) == (3, True)
    path.mkdir()
    code, _, error = rerail("check")
    assert (code, "is a folder, a script was expected" in error) == (3, True)
    code, _, error = rerail("reset")
    assert (code, "move it away first" in error) == (3, True)


def test_start_refuses_a_folder_with_other_files_and_a_file(rerail: Rerail, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").write_text("precious")
    (tmp_path / "file").write_text("precious")

    for name in ("full", "file"):
        code, _, error = rerail("start", name)
        assert (code, "name a new folder" in error) == (2, True)
    assert [p.name for p in (tmp_path / "full").iterdir()] == ["thesis.tex"]


def no_room(*_: object, **__: object) -> None:
    raise OSError(28, os.strerror(28))


def test_no_room_on_the_disk_loses_nothing(rerail: Rerail, workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (workspace / SCRIPT).write_text("mine")
    sheet = workspace / "exercises/01_sample/which_one.py"
    sheet.write_text(sheet.read_text().replace('""}', '"scale"}'))
    monkeypatch.setattr("rerail.workspace.os.fsync", no_room)

    code, _, error = rerail("reset")
    assert (code, (workspace / SCRIPT).read_text()) == (3, "mine")
    assert "No space left on device" in error
    code, out, error = rerail("check", "which_one")
    assert (code, "PASS" in out) == (0, True), "the verdict is worth more than its record"
    assert "progress could not be saved" in error
    assert sorted(p.name for p in workspace.rglob("*") if p.name.startswith(".too_large")) == []


def test_dev_check_tells_what_is_missing(rerail: Rerail, workspace: Path) -> None:
    code, out, _ = rerail("dev", "check", "which_one")

    assert code == 1
    assert "ACCEPTED has 1 entries; at least 3" in out


def test_colour_is_decoration(rerail: Rerail, workspace: Path) -> None:
    plain, coloured = rerail("--plain", "list")[1], rerail("--color", "always", "list")[1]

    assert "\x1b" not in plain
    import click

    assert click.unstyle(coloured) == plain


def test_list_imports_neither_numpy_nor_torch() -> None:
    program = (
        "import sys\nfrom rerail.cli import execute\nfrom rerail.cli.settings import Settings\nexecute(['list'], Settings())\n"
        "print([m for m in ('numpy', 'torch', 'matplotlib') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert done.stdout.splitlines()[-1] == "[]"


def test_without_torch_it_is_blocked_and_the_rest_works(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('No module named torch')")
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-m", "rerail"]

    def call(*arguments: str, where: Path = tmp_path) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*command, *arguments], capture_output=True, text=True, env=environment, cwd=where)

    assert call("start", "learn").returncode == 0
    learn = tmp_path / "learn"
    checked = call("check", where=learn)
    assert (checked.returncode, "No module named torch" in checked.stdout) == (3, True)
    assert checked.stdout.startswith("BLOCKED")
    assert call("list", where=learn).returncode == call("hint", where=learn).returncode == 0


def test_a_reader_that_leaves_early_is_no_error() -> None:
    line = f"{sys.executable} -m rerail list | head -n 1"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True)

    assert done.stderr == ""


class Terminal:
    """`rerail watch` in a terminal of its own."""

    def __init__(self, root: Path, workspace: Path) -> None:
        program = (
            "import sys; from pathlib import Path; from rerail.cli import main; from rerail.cli.settings import Settings; "
            f"main(sys.argv[1:], Settings(root=Path({str(root)!r})))"
        )
        ours, theirs = pty.openpty()
        self.process = subprocess.Popen([sys.executable, "-c", program, "--plain", "watch"], cwd=workspace, stdin=theirs,
                                        stdout=theirs, stderr=theirs, start_new_session=True)  # fmt: skip
        os.close(theirs)
        self.terminal, self.said = ours, ""

    def until(self, text: str, seconds: float = 30) -> None:
        """Read until a text was printed since the last call."""
        deadline = time.monotonic() + seconds
        while text not in self.said:
            assert time.monotonic() < deadline, f"{text!r} did not come in {self.said!r}"
            if select.select([self.terminal], [], [], 0.1)[0]:
                self.said += os.read(self.terminal, 1 << 16).decode()
        self.said = self.said.partition(text)[2]

    def type(self, keys: str) -> None:
        os.write(self.terminal, keys.encode())


def test_watch_judges_at_every_save_and_takes_keys(course_root: Path, workspace: Path) -> None:
    watch = Terminal(course_root, workspace)
    try:
        watch.until("checking too_large")
        watch.until("NOT YET")
        watch.type("n")
        watch.until("has not passed yet")
        watch.type("h")
        watch.until("Hint 1 of 4")
        repair(workspace)
        watch.until("PASS", 5)
        watch.type("n")
        watch.until("Which one?")
        watch.until("NOT YET", 5)
        watch.type("q")
        assert watch.process.wait(10) == 0
    finally:
        watch.process.kill()


def test_interrupting_watch_is_quiet(course_root: Path, workspace: Path) -> None:
    watch = Terminal(course_root, workspace)
    try:
        watch.until("NOT YET")
        os.killpg(watch.process.pid, signal.SIGINT)
        watch.until("interrupted; nothing was lost")
        assert watch.process.wait(10) == 130
    finally:
        watch.process.kill()
