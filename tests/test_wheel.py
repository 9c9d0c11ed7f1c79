"""The wheel alone, in an empty folder: what `pip install rerail` gives."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel and unpack it, as an installer does."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "site")
    return folder / "site"


def rerail(installed: Path, where: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(installed)}
    command = [sys.executable, "-m", "rerail", *arguments]
    return subprocess.run(command, cwd=where, env=environment, capture_output=True, text=True)


def test_the_wheel_carries_the_course_and_nothing_else_of_the_clone(installed: Path) -> None:
    names = {path.relative_to(installed).parts[0] for path in installed.rglob("*") if path.is_file()}
    course = {path.relative_to(installed / "rerail/_course").as_posix() for path in installed.rglob("_course/*/*/*.py")}
    ours = {
        p.relative_to(ROOT).as_posix()
        for tree in ("exercises", "solutions", "graders")
        for p in (ROOT / tree).rglob("*/*.py")
    }

    assert len(names) == 2, names  # the package and its metadata
    assert course == ours


def test_the_wheel_works_in_an_empty_folder(installed: Path, tmp_path: Path) -> None:
    started = rerail(installed, tmp_path, "start", "learn")
    assert started.returncode == 0, started.stderr
    learn = tmp_path / "learn"
    listed = rerail(installed, learn, "list")
    assert "all_finite" in listed.stdout
    for name in ("all_finite", "same_score"):  # the second reads data that lie beside it
        assert rerail(installed, learn, "check", name).returncode == 1
        assert rerail(installed, learn, "run", name).returncode == 0

    program = "import rerail; print(rerail.__file__)"
    used = subprocess.run([sys.executable, "-c", program], env=os.environ | {"PYTHONPATH": str(installed)},
                          capture_output=True, text=True, cwd=tmp_path)  # fmt: skip
    assert used.stdout.startswith(str(installed)), "the clone was tested in place of the wheel"
