"""Measure the promises about speed as ratios, each beside its alternative in the same minutes: `make bench`.

Whole processes are timed from outside, in turn (A B A B ...), and medians are divided; absolute times depend on the
machine and its neighbours. Nothing here passes or fails: a busy machine must not turn a test red.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from rerail import course
from rerail.engine import ForkServer, open_engine
from rerail.grading import Grader, Submission

RUNS = 7
PASS = [sys.executable, "-c", "pass"]
IMPORT = [sys.executable, "-c", "import torch"]
OPTIMIZER = [sys.executable, "-c", "import torch; torch.optim.Adam(torch.nn.Linear(2, 1).parameters())"]


def seconds(call: Callable[[], object]) -> float:
    """Return the wall time of one call."""
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def process(command: list[str], folder: str | None = None) -> Callable[[], object]:
    """Return a call that runs a command to its end, silently."""
    return lambda: subprocess.run(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def compare(
    name: str, measured: Callable[[], object], against: str, base: Callable[[], object], promise: float
) -> None:
    """Time two calls in turn and print the ratio of their medians beside what was promised."""
    measured(), base()  # once each, uncounted: files come into the cache
    pairs = [(seconds(measured), seconds(base)) for _ in range(RUNS)]
    mine, other = (statistics.median(column) for column in zip(*pairs, strict=True))
    word = "kept" if mine / other <= promise else "MISSED"
    ratio = f"ratio {mine / other:5.2f}  <= {promise:<5} {word}"
    print(f"{name:<34} {mine:7.3f} s   {against:<26} {other:7.3f} s   {ratio}")


def memory_megabytes(process_number: int) -> float:
    """Return the proportional memory of a process: pages that it shares count in part."""
    rollup = Path(f"/proc/{process_number}/smaps_rollup").read_text()
    return next(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:")) / 1024


def main() -> None:
    """Print one line a promise."""
    rerail = str(Path(sys.executable).with_name("rerail"))
    scripts = [exercise for exercise in course.exercises() if not exercise.is_sheet]
    with tempfile.TemporaryDirectory() as folder:
        workspace = os.path.join(folder, "learn")
        subprocess.run([rerail, "start", workspace, "--yes"], check=True, stdout=subprocess.DEVNULL)
        compare("rerail list", process([rerail, "list"], workspace), "python -c pass", process(PASS), 8)
        cold = process([rerail, "check", scripts[0].name], workspace)
        compare("cold check", cold, "import torch, optimizer", process(OPTIMIZER), 1.25)
    engine = open_engine()
    grader = Grader(engine)
    for exercise in scripts:
        submission = Submission(exercise.solution, f"{exercise.name}.py")
        warm = lambda e=exercise, s=submission: grader.grade(e, s)  # noqa: E731
        compare(f"warm check of {exercise.name}", warm, "import torch", process(IMPORT), 0.15)
    if isinstance(engine, ForkServer):
        print(f"{'memory of the standby':<34} {memory_megabytes(engine.process_number):7.0f} MB")
    engine.close()


if __name__ == "__main__":
    main()
