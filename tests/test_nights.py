"""The four logs of `last_line` are what the programs in `nights/` write."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
import torch

from rerail import course

NIGHTS = Path(__file__).parent / "nights"
LOGS = course.find("last_line").path("exercises").parent / "data"
HOME, PACKAGES = "/home/ada/scans", "/home/ada/venv/lib/python3.11/site-packages"
WRITTEN_BY = ("2.13.0", "3.11")  # their README says so: other releases have other lines in their frames
CLOCK = re.compile(r"^E\d{4} [\d:.]+ \d+ ", re.M)
WAITING = re.compile(r'(?<=dataloader.py", line )\d+(?=, in _next_data)')  # which of two places waits is a race


def programs(day: str, folder: Path) -> tuple[list[str], dict[str, str]]:
    """Lay out the programs of one night; return what starts them, and their environment."""
    name = {"monday": "compiled", "tuesday": "compiled", "wednesday": "worker", "thursday": "resume"}[day]
    shutil.copytree(NIGHTS / name, folder)
    environment = os.environ | {"OMP_NUM_THREADS": "1", "TORCHINDUCTOR_CACHE_DIR": str(folder / "cache")}
    if day == "tuesday":  # the model fits, and the machine has no compiler
        model = folder / "model.py"
        model.write_text(model.read_text().replace("4 * 8 * 8", "4 * 7 * 7"))
        environment |= {"PATH": "/nowhere"}
    if day == "thursday":  # an earlier run with fewer classes
        save = "import checkpoint, model; checkpoint.save('night.pt', model.build(10), 400)"
        subprocess.run([sys.executable, "-c", save], cwd=folder, check=True)
    return [sys.executable, str(folder / "train.py")], environment


@pytest.mark.parametrize("day", ["monday", "tuesday", "wednesday", "thursday"])
def test_a_log_is_what_its_program_writes(day: str, tmp_path: Path) -> None:
    command, environment = programs(day, tmp_path / "scans")
    run = subprocess.run(command, cwd=tmp_path / "scans", env=environment, capture_output=True, text=True, timeout=120)
    written = run.stderr.replace(str(tmp_path / "scans"), HOME).replace(sysconfig.get_paths()["purelib"], PACKAGES)
    kept = (LOGS / f"{day}.txt").read_text()

    def comparable(log: str) -> list[str]:
        lines = WAITING.sub("N", CLOCK.sub("", log)).splitlines()
        if (torch.__version__.partition("+")[0], platform.python_version()[:4]) == WRITTEN_BY:
            return lines
        return [line for line in lines if HOME in line]

    assert run.returncode != 0
    assert comparable(written) == comparable(kept)
