"""One learner's workspace: nothing of theirs is lost, whatever happens to the disk or to the files."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from rerail.course import Exercise
from rerail.workspace import HIDDEN, Occupied, Progress, Workspace, WorkspaceError, digest


@pytest.fixture
def lesson(tmp_path: Path) -> list[Exercise]:
    """Return two exercises of one lesson that has data."""
    folder = tmp_path / "course/exercises/01_sample"
    (folder / "data/__pycache__").mkdir(parents=True)
    (folder / "data/rows.csv").write_text("1,2\n")
    (folder / "data/__pycache__/x.pyc").write_text("")
    for name in ("one", "two"):
        (folder / f"{name}.py").write_text(f'"""{name}."""\n')
    return [Exercise(name, "01_sample", tmp_path / "course") for name in ("one", "two")]


@pytest.fixture
def workspace(tmp_path: Path, lesson: list[Exercise]) -> Workspace:
    return Workspace.create(tmp_path / "learn", lesson)


def contents(folder: Path) -> dict[str, str]:
    return {str(p.relative_to(folder)): p.read_text() for p in sorted(folder.rglob("*")) if p.is_file()}


def state_file(workspace: Workspace) -> Path:
    return workspace.folder / HIDDEN / "state.json"


def failing(call: Callable[..., object], after: int) -> Callable[..., object]:
    """Return a function that does what `call` does, until the disk is full."""
    left = [after]

    def maybe(*arguments: object, **named: object) -> object:
        if not left[0]:
            raise OSError(28, os.strerror(28))
        left[0] -= 1
        return call(*arguments, **named)

    return maybe


def test_it_is_found_from_within_and_nowhere_else(workspace: Workspace, tmp_path: Path) -> None:
    assert Workspace.find(workspace.folder / "exercises/01_sample") == workspace
    assert Workspace.find(tmp_path) is None
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / HIDDEN).write_text("a file")
    assert Workspace.find(tmp_path / "other") is None


def test_it_holds_scripts_and_data_and_what_they_were(workspace: Workspace) -> None:
    assert contents(workspace.folder / "exercises/01_sample") == {
        "data/rows.csv": "1,2\n", "one.py": '"""one."""\n', "two.py": '"""two."""\n'
    }  # fmt: skip
    pristine = json.loads((workspace.folder / HIDDEN / "pristine.json").read_text())
    assert pristine["one"]["files"]["01_sample/one.py"] == digest(b'"""one."""\n')


def test_a_second_start_writes_what_is_missing_and_remembers_what_was_written(
    workspace: Workspace, lesson: list[Exercise], tmp_path: Path
) -> None:
    pristine = workspace.folder / HIDDEN / "pristine.json"
    before = json.loads(pristine.read_text())
    workspace.path(lesson[0]).write_text("mine")
    (workspace.folder / "exercises/01_sample/data/rows.csv").unlink()
    (tmp_path / "course/exercises/01_sample/one.py").write_text("a newer release")

    Workspace.create(workspace.folder, [Exercise("one", "01_sample", tmp_path / "course")])

    assert workspace.path(lesson[0]).read_text() == "mine"
    assert (workspace.folder / "exercises/01_sample/data/rows.csv").read_text() == "1,2\n"
    assert (
        json.loads(pristine.read_text())["one"]["files"]["01_sample/one.py"]
        == before["one"]["files"]["01_sample/one.py"]
    )


@pytest.mark.parametrize("after", [0, 1, 2])
def test_a_start_without_room_is_completed_by_the_next(
    tmp_path: Path, lesson: list[Exercise], monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", failing(os.fsync, after))
        with pytest.raises(WorkspaceError, match="No space left on device; make room"):
            Workspace.create(tmp_path / "learn", lesson)

    complete = contents(Workspace.create(tmp_path / "learn", lesson).folder)

    assert {name for name in complete if not name.startswith(HIDDEN)} == {
        f"exercises/01_sample/{name}" for name in ("one.py", "two.py", "data/rows.csv")
    }
    assert not [name for name in complete if "/." in name], "a temporary file stayed behind"


def test_it_is_not_made_where_something_else_is(tmp_path: Path, lesson: list[Exercise]) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis/chapter.tex").write_text("precious")

    with pytest.raises(Occupied, match="holds other files; name a new folder"):
        Workspace.create(tmp_path / "thesis", lesson)
    with pytest.raises(Occupied, match="is a file; name a new folder"):
        Workspace.create(tmp_path / "thesis/chapter.tex", lesson)
    assert contents(tmp_path / "thesis") == {"chapter.tex": "precious"}


@pytest.mark.parametrize("after", [0, 1])
def test_a_replacement_without_room_leaves_the_file(
    workspace: Workspace, lesson: list[Exercise], monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    """Whether the backup or the file itself finds no room."""
    workspace.path(lesson[0]).write_text("mine")
    monkeypatch.setattr(os, "fsync", failing(os.fsync, after))

    with pytest.raises(WorkspaceError, match="could not be replaced, and is as it was"):
        workspace.replace(lesson[0], b"shipped")

    assert workspace.path(lesson[0]).read_text() == "mine"


def test_undo_goes_back_and_forth_and_loses_no_version(workspace: Workspace, lesson: list[Exercise]) -> None:
    exercise, path = lesson[0], workspace.path(lesson[0])
    for version in ("first", "second"):
        path.write_text(version)
        workspace.replace(exercise, exercise.shipped)

    assert [kept.read_text() for kept in workspace.backups(exercise)] == ["first", "second"]
    assert workspace.undo(exercise) == b"second"
    assert path.read_text() == "second"
    assert workspace.undo(exercise) == exercise.shipped
    assert {kept.read_text() for kept in workspace.backups(exercise)} == {"first", "second"}


def test_undo_brings_back_a_file_that_was_deleted_after_a_reset(workspace: Workspace, lesson: list[Exercise]) -> None:
    workspace.path(lesson[0]).write_text("mine")
    workspace.replace(lesson[0], lesson[0].shipped)
    workspace.path(lesson[0]).unlink()

    assert workspace.undo(lesson[0]) == b"mine"


ODD = [
    pytest.param({"schema": "one"}, id="schema is a text"),
    pytest.param({"exercises": {"one": {"hints": -3, "attempts": "four"}}}, id="odd counts"),
    pytest.param({"exercises": {"one": {"status": "finished"}}}, id="odd status"),
    pytest.param({"exercises": {"one": {"status": []}}}, id="status is a list"),
    pytest.param({"exercises": {"one": {"last": {"outcome": "pass", "finding": "", "count": "x"}}}}, id="odd last"),
    pytest.param({"exercises": {"one": "done"}, "current": 7}, id="an entry is a text"),
    pytest.param({"two": {"status": "done"}}, id="entries at the wrong place"),
]


@pytest.mark.parametrize("state", ODD)
def test_progress_that_is_partly_broken_is_kept_mended_and_told(workspace: Workspace, state: dict) -> None:
    state_file(workspace).write_text(json.dumps(state))
    assert "partly broken" in workspace.progress().warning

    told = workspace.update(lambda progress: progress.attempted("one", "pass", "", ""))

    kept = next((workspace.folder / HIDDEN).glob("state.broken-*.json"))
    assert (json.loads(kept.read_text()), kept.name in told) == (state, True)
    assert workspace.progress().warning == ""

    entry = workspace.progress().of("one")
    assert (entry["status"], entry["attempts"], entry["hints"], entry["last"]["count"]) == ("done", 1, 0, 1)


def test_progress_that_cannot_be_read_is_not_replaced(workspace: Workspace) -> None:
    state_file(workspace).mkdir()

    assert "cannot be read" in workspace.update(lambda progress: progress.attempted("one", "pass", "", ""))
    assert state_file(workspace).is_dir()


def test_progress_that_is_broken_is_kept_and_told(workspace: Workspace) -> None:
    state_file(workspace).write_text("{broken")

    told = workspace.update(lambda progress: progress.attempted("one", "pass", "", ""))

    kept = next((workspace.folder / HIDDEN).glob("state.broken-*.json"))
    assert (kept.read_text(), kept.name in told) == ("{broken", True)
    assert workspace.progress().status("one") == "done"


def test_no_room_for_progress_keeps_what_was_known(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    workspace.update(lambda progress: progress.attempted("one", "pass", "", ""))
    before = state_file(workspace).read_text()
    monkeypatch.setattr(os, "fsync", failing(os.fsync, 0))

    told = workspace.update(lambda progress: progress.attempted("two", "pass", "", ""))

    assert "No space left on device" in told
    assert state_file(workspace).read_text() == before
    assert sorted(p.name for p in (workspace.folder / HIDDEN).iterdir()) == ["lock", "pristine.json", "state.json"]


def test_writers_wait_for_each_other(workspace: Workspace) -> None:
    def often() -> None:
        for _ in range(20):
            workspace.update(lambda progress: progress.attempted("one", "not yet", "check", ""))

    threads = [threading.Thread(target=often) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert workspace.progress().of("one")["attempts"] == 80


def test_a_pass_is_for_good_and_a_look_at_all_is_no_attempt() -> None:
    progress = Progress({})
    progress.attempted("one", "not yet", "check_a", "")
    progress.attempted("one", "not yet", "check_a", "")
    progress.attempted("one", "not yet", "check_a", "", counts=False)
    assert (progress.of("one")["attempts"], progress.of("one")["last"]["count"]) == (2, 2)

    progress.attempted("one", "pass", "", "")
    progress.attempted("one", "not yet", "check_b", "")

    assert progress.status("one") == "done"
    assert progress.of("one")["last"] == {"outcome": "not yet", "finding": "check_b", "count": 1}
