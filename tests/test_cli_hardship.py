"""The command line where something is missing, full, broken or in a hurry: one sentence, the right exit code, nothing lost."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import types
from collections.abc import Callable
from pathlib import Path

import pytest

from rerail.cli import check, execute
from rerail.cli.recorded import described
from rerail.cli.settings import Settings
from rerail.evidence import record

SCRIPT = "exercises/01_sample/too_large.py"
SHEET = "exercises/01_sample/which_one.py"
Rerail = Callable[..., tuple[int, str, str]]


@pytest.fixture
def rerail(course_root: Path, capsys: pytest.CaptureFixture[str]) -> Rerail:
    """Return a function that runs a command line: exit code, standard output, standard error."""

    def call(*arguments: str, root: Path = course_root) -> tuple[int, str, str]:
        code = execute(arguments, Settings(root=root))
        said = capsys.readouterr()
        return code, said.out, said.err

    return call


@pytest.fixture
def workspace(rerail: Rerail, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a new workspace, the current folder."""
    monkeypatch.chdir(tmp_path)
    assert rerail("start", "learn")[0] == 0
    monkeypatch.chdir(tmp_path / "learn")
    return tmp_path / "learn"


def program(root: Path, *arguments: str) -> list[str]:
    """Return the command that runs a command line on a course, in a process of its own."""
    text = (
        "import sys; from pathlib import Path; from rerail.cli import main; from rerail.cli.settings import Settings; "
        f"main(sys.argv[1:], Settings(root=Path({str(root)!r})))"
    )
    return [sys.executable, "-c", text, *arguments]


def ask(
    root: Path, workspace: Path, *arguments: str, **environment: str
) -> subprocess.CompletedProcess[str]:  # fmt: skip
    return subprocess.run(
        program(root, *arguments), cwd=workspace, capture_output=True, text=True, env=os.environ | environment
    )


# what was typed


@pytest.mark.parametrize("name", ["1.1", "too-large", "too_l", "too_large.py", SCRIPT, f"./{SCRIPT}", "Too_Large"])
def test_an_exercise_has_many_names(rerail: Rerail, workspace: Path, name: str) -> None:
    assert "1.1 too_large" in rerail("show", name)[1]


@pytest.mark.parametrize("name", [f"/x/{SCRIPT}", "../too_large.py", "other/too_large.py", SCRIPT.replace("01", "09")])
def test_the_script_of_another_place_is_not_taken_for_ours(rerail: Rerail, workspace: Path, name: str) -> None:
    (workspace.parent / "too_large.py").write_text("theirs")
    before = (workspace / SCRIPT).read_text()

    for command in ("check", "run", "reset", "watch"):
        code, out, error = rerail(command, name)
        assert (code, out, "is not the script of this workspace; write 'too_large'" in error) == (2, "", True), command
    assert ((workspace.parent / "too_large.py").read_text(), (workspace / SCRIPT).read_text()) == ("theirs", before)


def test_a_script_is_found_from_within_the_workspace(
    rerail: Rerail, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(workspace / "exercises/01_sample")

    for name in ("too_large.py", "../01_sample/too_large.py", SCRIPT, str(workspace / SCRIPT)):
        assert rerail("show", name)[0] == 0, name
    code, _, error = rerail("check", "../01_sample")
    assert (code, "is a folder, the name of an exercise was expected" in error) == (2, True)


def test_a_group_without_a_command_shows_its_help(rerail: Rerail) -> None:
    code, out, error = rerail("classroom")

    assert (code, out, error.splitlines()[0]) == (2, "", "Usage: rerail classroom [OPTIONS] COMMAND [ARGS]...")


def test_doctor_sees_a_workspace_without_room(rerail: Rerail, workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rerail.cli.doctor._child", lambda settings: (True, ""))
    monkeypatch.setattr("shutil.disk_usage", lambda folder: types.SimpleNamespace(free=5 << 10))

    code, out, _ = rerail("doctor")

    assert (code, "5 KB free in" in out, "make room" in out) == (3, True, True)


def test_what_was_checked_is_at_hand_and_what_is_left_open_is_told(rerail: Rerail, workspace: Path) -> None:
    rerail("next")
    rerail("check", "too_large")

    assert "too_large" in rerail()[1].split("at hand")[1].splitlines()[0]
    _, out, error = rerail("next")
    assert "which_one" in out
    assert error == "rerail: too_large stays open; `rerail list --todo` shows what does\n"


@pytest.mark.parametrize(
    "arguments", [("list", "-q"), ("list", "--plain"), ("list", "--workspace", "."), ("list", "--color=never")]
)
def test_global_options_may_come_last(rerail: Rerail, workspace: Path, arguments: tuple[str, ...]) -> None:
    assert rerail(*arguments) == rerail(*arguments[1:], arguments[0])


def test_a_workspace_that_is_none_is_told(rerail: Rerail, workspace: Path) -> None:
    for folder, says in (("nowhere", "no workspace"), (SCRIPT, "is a file, a workspace is a folder")):
        code, _, error = rerail("--workspace", folder, "list")
        assert (code, says in error) == (2, True), "also where one lies around the current folder"


def test_start_in_a_workspace_says_so(rerail: Rerail, workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(workspace / "exercises")

    code, out, _ = rerail("start")

    assert (code, "is your workspace already" in out) == (0, True)
    assert not (workspace / "exercises/learn").exists()


def test_start_says_what_it_wrote(rerail: Rerail, workspace: Path) -> None:
    assert "nothing was missing in it" in rerail("start", ".")[1]
    (workspace / SCRIPT).unlink()
    assert f"{SCRIPT} was missing, and written again" in rerail("start", ".")[1]


def test_a_workspace_that_lost_its_progress_is_one_again(rerail: Rerail, workspace: Path) -> None:
    (workspace / SCRIPT).write_text("mine")
    shutil.rmtree(workspace / ".rerail")
    assert "`rerail start .` makes it anew" in rerail("check")[2]
    (workspace / ".rerail").write_text("")
    for arguments, code in ((("check",), 3), (("start", "."), 2)):
        got, _, error = rerail(*arguments)
        assert (got, "move it away, then `rerail start .`" in error) == (code, True)
    (workspace / ".rerail").unlink()

    assert rerail("start", ".")[0] == 0
    assert ((workspace / SCRIPT).read_text(), rerail("list")[0]) == ("mine", 0)


def test_the_course_itself_is_no_workspace(rerail: Rerail, course_root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(course_root)

    assert "holds other files" in rerail("start", ".")[2]


IN_THE_WAY = [
    ("lock", ("next",)),
    ("pristine.json", ("start", ".")),
    ("backups", ("reset",)),
    ("state.json", ("next",)),
]


@pytest.mark.parametrize(("name", "arguments"), IN_THE_WAY, ids=[name for name, _ in IN_THE_WAY])
def test_what_is_in_the_way_is_named(rerail: Rerail, workspace: Path, name: str, arguments: tuple[str, ...]) -> None:
    path = workspace / ".rerail" / name
    path.unlink(missing_ok=True)
    path.write_text("") if name == "backups" else path.mkdir()
    (workspace / SCRIPT).write_text("mine")
    (workspace / SHEET).unlink()

    code, _, error = rerail(*arguments)

    assert (code, f"move {path} away" in error) == (3, True), error
    assert (workspace / SCRIPT).read_text() == "mine"


def test_help_is_whole_and_an_unknown_command_is_told(rerail: Rerail) -> None:
    code, out, _ = rerail("--help")
    assert (code, "doctor" in out, "..." in out.replace("[ARGS]...", "")) == (0, True, False)
    assert (
        rerail("chk")[2] == "rerail: no command is called 'chk'; did you mean 'check'? `rerail --help` shows them all\n"
    )


# what the files are


def test_odd_files_get_a_verdict_or_a_sentence(rerail: Rerail, workspace: Path) -> None:
    (workspace / SCRIPT).write_bytes(b"\xff\xfe\x00 not utf-8")
    (workspace / SHEET).write_bytes(b"ANSWER = '\xff'")

    code, out, error = rerail("check")
    assert (code, "SyntaxError" in out, error) == (1, True, "")
    code, out, error = rerail("check", "which_one")
    assert (code, "the sheet cannot be read" in out, error) == (1, True, "")
    code, out, error = rerail("run", "which_one")
    assert (code, "nothing that can be read" in out, error) == (0, True, "")


def test_an_empty_workspace_is_filled_again(rerail: Rerail, workspace: Path) -> None:
    shutil.rmtree(workspace / "exercises")

    code, _, error = rerail("check")
    assert (code, error.startswith("BLOCKED"), "`rerail reset too_large`" in error) == (3, True, True)
    assert rerail("reset")[0] == 0
    assert (workspace / SCRIPT).is_file()


def test_a_folder_in_the_way_of_a_lesson_is_told(rerail: Rerail, workspace: Path) -> None:
    shutil.rmtree(workspace / "exercises")
    (workspace / "exercises").write_text("mine")

    for command in ("check", "reset"):
        code, _, error = rerail(command)
        assert (code, len(error.splitlines()), error[:7]) == (3, 1, "BLOCKED")
    assert (workspace / "exercises").read_text() == "mine"


def test_what_may_not_be_written_is_told(rerail: Rerail, workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Permissions bind nobody who is root, so the refusal comes from a double."""

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, os.strerror(13))

    (workspace / SCRIPT).write_text("mine")
    monkeypatch.setattr("rerail.files.tempfile.mkstemp", refuse)

    for command, expected in (("reset", 3), ("next", 3), ("hint", 0)):
        code, _, error = rerail(command)
        assert (code, len(error.splitlines()), "Permission denied" in error) == (expected, 1, True), command
    assert (workspace / SCRIPT).read_text() == "mine"


def test_a_bug_of_ours_is_said_to_be_ours(rerail: Rerail, workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stumble(*_: object) -> None:
        raise ZeroDivisionError("one by zero")

    monkeypatch.setattr("rerail.cli.show.show", stumble)

    code, _, error = rerail("show")

    assert (code, error.count("\n"), error.startswith("DEFECT")) == (4, 1, True)
    assert "ZeroDivisionError: one by zero (test_cli_hardship.py:" in error
    assert json.loads(rerail("show", "--json")[1])["outcome"] == "defect"


# verdicts


def test_the_json_of_a_check_is_the_report(rerail: Rerail, workspace: Path) -> None:
    sheet = workspace / SHEET
    sheet.write_text(sheet.read_text().replace('""}', '"scale"}'))

    code, out, _ = rerail("check", "which_one", "--json")
    result = json.loads(out)

    assert (code, result["schema"], result["outcome"], result["exit_code"]) == (0, "rerail.result/1", "pass", 0)
    assert (result["attempt"], result["status"], result["hints"]) == (1, "done", {"seen": 0, "total": 4})


def test_the_worst_outcome_decides_and_no_attempt_is_counted(
    rerail: Rerail, workspace: Path, course_root: Path, tmp_path: Path
) -> None:
    root = tmp_path / "course"
    shutil.copytree(course_root, root)
    for tree in ("exercises", "solutions", "graders"):
        (root / tree / "01_sample/too_large.py").unlink()
        shutil.copy(root / tree / "01_sample/which_one.py", root / tree / "01_sample/ours.py")
    grader = root / "graders/01_sample/ours.py"
    (workspace / "exercises/01_sample/ours.py").write_text('ANSWER = {"cause": ""}')
    assert rerail("check", "--all", root=root)[0] == 1

    (workspace / SHEET).unlink()
    assert rerail("check", "--all", root=root)[0] == 3

    grader.write_text(grader.read_text().replace("if answer", "raise KeyError('ours')\n    if answer"))
    code, out, error = rerail("check", "--all", root=root)
    assert (code, "DEFECT" in out, "`rerail reset which_one`" in error) == (4, True, True)
    assert json.loads((workspace / ".rerail/state.json").read_text())["exercises"]["which_one"]["attempts"] == 0
    assert json.loads(rerail("check", "--all", "--json", root=root)[1])["exit_code"] == 4


def test_the_third_time_a_hint_is_offered(rerail: Rerail, workspace: Path) -> None:
    said = [rerail("check", "which_one")[1] for _ in range(3)]

    assert ["Look closer" in text for text in said] == [True, True, False]
    assert "The same check failed 3 times. Hint 1 of 4: rerail hint which_one" in said[2]


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        pytest.param("a\nb\nc", 0, id="none"),
        pytest.param("a\nx\nc", 1, id="one rewritten"),
        pytest.param("a\nb\nx\ny\nc", 2, id="two added"),
        pytest.param("c", 2, id="two taken away"),
    ],
)
def test_changed_lines(after: str, expected: int) -> None:
    assert check.changed_lines("a\nb\nc", after) == expected


# a solution, undo


def test_undo_list_changes_nothing(rerail: Rerail, workspace: Path) -> None:
    (workspace / SCRIPT).write_text("mine")
    rerail("reset")

    code, out, _ = rerail("undo", "--list")

    assert (code, (workspace / out.strip()).read_text()) == (0, "mine")
    assert (workspace / SCRIPT).read_text() != "mine"


def test_what_was_revealed_comes_last_and_a_pass_makes_it_done(rerail: Rerail, workspace: Path) -> None:
    state = workspace / ".rerail/state.json"
    state.write_text(json.dumps({"current": "which_one", "exercises": {"too_large": {"status": "revealed"}}}))
    (workspace / SHEET).write_text((workspace / SHEET).read_text().replace('""}', '"scale"}'))

    assert "which_one" in rerail("next")[1]
    rerail("check", "which_one")
    assert "too_large" in rerail("next")[1]
    assert "revealed" in rerail("list", "--revealed")[1]


# running a script


def script_says(rerail: Rerail, workspace: Path, source: str) -> tuple[str, float]:
    """Run a script with `rerail run`; return all that was printed, and the seconds it took."""
    (workspace / SCRIPT).write_text(source)
    begin = time.monotonic()
    code, out, error = rerail("run")
    assert (code, error) == (0, "")
    return out, time.monotonic() - begin


def test_a_script_that_hangs_or_floods_is_stopped_and_cut(
    rerail: Rerail, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import rerail.cli.run as module

    monkeypatch.setattr(module, "SECONDS", 0.5)
    monkeypatch.setattr(module, "MOST_CHARACTERS", 200_000)
    monkeypatch.setattr("rerail.engine.ForkServer.run", no_run)
    out, _ = script_says(rerail, workspace, "import time\nprint('begins', flush=True)\ntime.sleep(60)")
    assert "begins\n[stopped after 0 s]" in out or "begins\n[stopped after 1 s]" in out
    assert "The probe was not run" in out

    monkeypatch.setattr(module, "SECONDS", 60)
    out, seconds = script_says(rerail, workspace, "print('first')\nwhile True: print('y' * 99)")
    assert "\nfirst\n" in out
    assert "characters cut]" in out
    assert "[stopped: it printed more than 200000 characters]" in out
    assert (len(out) < 30_000, seconds < 30) == (True, True)


def no_run(*_: object, **__: object) -> object:
    from rerail.talk import Ran

    return Ran("died", problem={"code": 7})


def test_how_a_script_ends_is_told(rerail: Rerail, workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rerail.engine.ForkServer.run", no_run)

    out, _ = script_says(rerail, workspace, "import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    assert "[ended by signal 9]" in out
    assert "recorded nothing: the process ended by itself, with exit code 7" in out
    out, seconds = script_says(
        rerail, workspace, "import subprocess; subprocess.Popen(['sleep', '30']); print('no newline', end='')"
    )
    assert ("no newline\n" in out, seconds < 15) == (True, True)


def test_a_script_that_leaves_or_is_no_text_is_told(rerail: Rerail, workspace: Path) -> None:
    for source, says in (
        (b"import sys\nsys.exit(0)", "the script ended the run itself (SystemExit: 0)"),
        (b"\0\1\2", "`rerail reset too_large` puts the shipped script back"),
    ):
        (workspace / SCRIPT).write_bytes(source)
        code, out, _ = rerail("check")
        assert (code, says in " ".join(out.split())) == (1, True), out


def test_evidence_is_laid_out_whole() -> None:
    loss = [1.0] * 20
    loss[7] = float("nan")
    lines = "\n".join(described(record({
        "steps": 20, "note": "text", "gone": None, "loss": loss, "norm": [2.0] * 20, "weights": [[1.0, float("inf")]],
        **{f"a_name_that_is_long_{i}": [0.0] * 20 for i in range(6)},
    }), {"loss": "the mean " * 20, "norm": "its length"}))  # fmt: skip

    assert "  loss  the mean the mean" in lines
    assert "loss is not finite in 1 of 20 rows, first in row 7" in lines
    assert "1x2        1 to 1, 1 not finite" in lines
    assert all(f"a_name_that_is_long_{i}" in lines for i in range(6))
    assert all(word in lines for word in ("steps", "text", "absent", "norm", "..."))
    assert max(map(len, lines.splitlines())) <= 88


def recorded(*_: object, **__: object) -> object:
    from rerail.talk import Ran

    return Ran("evidence", (record({"loss": [3.0, 2.0, float("nan")], "mean": 1.0}),))


def test_a_plot_is_a_file_with_the_symptom(rerail: Rerail, workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rerail.engine.ForkServer.run", recorded)
    (workspace / SCRIPT).write_text("pass")

    code, out, _ = rerail("run", "--plot", "curve.svg")
    assert (code, "Plot     curve.svg" in out) == (0, True)
    drawn = (workspace / "curve.svg").read_text()
    assert all(
        f"<!-- {text} -->" in drawn for text in ("The mean is too large", "loss", "row", "x: not finite, 1 of 3 rows")
    )
    code, out, error = rerail("run", "--json", "--plot", "curve.nonsense")
    assert (code, json.loads(out)["exit_code"], error) == (2, 2, "")
    code, _, error = rerail("run", "--plot", ".")
    assert (code, "is a directory; name a file in it" in error) == (2, True)
    assert "Plot     curve.png" in rerail("run", "--plot", "curve")[1]
    assert Path("curve.png").is_file()
    code, _, error = rerail("run", "--plot", "no/such/folder.png")
    assert (code, "could not be written" in error) == (3, True)
    code, _, error = rerail("run", "which_one", "--plot", "x.png")
    assert (code, "leave --plot out" in error) == (2, True)


# processes of their own


def test_where_torch_is_not_installed(course_root: Path, workspace: Path, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\n"
        "class Without:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.partition('.')[0] == 'torch':\n"
        "            raise ModuleNotFoundError(f'No module named {name!r}', name=name)\n"
        "sys.meta_path.insert(0, Without())\n"
    )

    for command in ("check", "run", "watch"):
        done = ask(course_root, workspace, command, PYTHONPATH=str(tmp_path))
        assert (done.returncode, done.stderr[:7], len(done.stderr.splitlines())) == (3, "BLOCKED", 1), done.stderr
        assert "pip install 'torch>=2.13'" in done.stderr
    for command in ("list", "show", "hint", "next", "reset", "start"):
        assert ask(course_root, workspace, command, PYTHONPATH=str(tmp_path)).returncode == 0, command
    assert ask(course_root, workspace, "check", "which_one", PYTHONPATH=str(tmp_path)).returncode == 1
    doctor = ask(course_root, workspace, "doctor", PYTHONPATH=str(tmp_path))
    assert (doctor.returncode, "Traceback" in doctor.stdout + doctor.stderr) == (3, False)


def test_ctrl_c_is_answered_at_once_also_while_torch_is_loaded(course_root: Path, workspace: Path) -> None:
    process = subprocess.Popen(
        program(course_root, "check"), cwd=workspace, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    time.sleep(0.8)
    begin = time.monotonic()
    os.killpg(process.pid, signal.SIGINT)
    out, error = process.communicate(timeout=20)

    assert (process.returncode, out, error) == (130, "", "\nrerail: interrupted; nothing was lost\n")
    assert time.monotonic() - begin < 2, "torch takes three seconds"


def test_ctrl_c_ends_a_run_and_leaves_no_folder(course_root: Path, workspace: Path, tmp_path: Path) -> None:
    (tmp_path / "tmp").mkdir()
    (workspace / SCRIPT).write_text(f"open({str(tmp_path / 'begun')!r}, 'w').close()\nwhile True: pass")
    process = subprocess.Popen(
        program(course_root, "check"), cwd=workspace, stderr=subprocess.PIPE, text=True, start_new_session=True,
        env=os.environ | {"TMPDIR": str(tmp_path / "tmp")},
    )  # fmt: skip
    deadline = time.monotonic() + 30
    while not (tmp_path / "begun").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)

    assert process.communicate(timeout=20)[1] == "\nrerail: interrupted; nothing was lost\n"
    assert process.returncode == 130
    assert list((tmp_path / "tmp").iterdir()) == []


@pytest.mark.parametrize("arguments", [("list",), ("list", "--json"), ("hint", "nothing"), ("--help",)])
def test_a_full_disk_under_the_output_is_one_sentence(
    course_root: Path, workspace: Path, arguments: tuple[str, ...]
) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            program(course_root, *arguments), cwd=workspace, stdout=full, stderr=subprocess.PIPE, text=True
        )

    assert len(done.stderr.splitlines()) == 1
    assert "Traceback" not in done.stderr
    assert done.returncode in (2, 3)


def test_a_console_that_has_no_such_letter(course_root: Path, workspace: Path) -> None:
    (workspace / SCRIPT).write_text("raise ValueError('\N{SNOWMAN}')", "utf-8")

    done = ask(course_root, workspace, "check", PYTHONIOENCODING="latin-1")

    assert (done.returncode, done.stderr, "ValueError: ?" in done.stdout) == (1, "", True)


# for authors


def test_a_new_exercise_is_not_accepted_until_it_is_written(rerail: Rerail, course_root: Path, tmp_path: Path) -> None:
    root = tmp_path / "course"
    shutil.copytree(course_root, root)

    assert rerail("dev", "new", "02_more/too_small", root=root)[0] == 0
    code, out, _ = rerail("dev", "check", "too_small", root=root)
    assert code == 1
    assert "solution: expected pass, got check_answer" in out
    (root / "exercises/02_more/too_small.py").unlink()
    code, _, error = rerail("dev", "new", "02_more/too_small", root=root)
    assert (code, "is there already, and is not overwritten" in error) == (2, True)
