"""A course of one small exercise, and engines that tests share."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from rerail.course import Exercise
from rerail.engine import Engine, open_engine
from rerail.grading import Grader, Submission
from rerail.report import Report

# A shell that starts the tests in the background has them ignore Ctrl-C, and every child would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

SHIPPED = '''"""
The mean is too large.

Task: return the mean of the values. Graded: `mean`. Run it: python exercises/01_sample/too_large.py
"""
import torch


def mean(values):
    return values.sum() / (len(values) - 1)


if __name__ == "__main__":
    print(f"mean {mean(torch.ones(5)).item():.2f}")
'''

GRADER = '''"""The mean is too large."""

from __future__ import annotations

from typing import Any

import numpy as np

from rerail.checks import Failed, Trap, close
from rerail.evidence import Evidence

LAYER, MINUTES, ORDER, POINTS = "values", 5, 1, 2
GRADED = ("mean",)
BASELINE = "check_mean"
HINTS = ("observe", "locate", "explain", "shape of the fix")
SECRET = "of the judge"


def cases(seed: int) -> list[dict[str, Any]]:
    return [values(5, 0), values(7, seed)]


def values(rows: int, seed: int) -> dict[str, Any]:
    return {"values": np.random.default_rng(seed).normal(size=rows)}


def probe(script: Any, batch: dict[str, Any]) -> dict[str, Any]:
    from rerail.probes import number, tensors

    found = script.mean(tensors(batch)["values"])
    return {"mean": number(found, "what `mean` returns"), "several": found if getattr(found, "ndim", 0) else 0.0}


def check_mean(run: Evidence, batch: dict[str, Any]) -> None:
    """the mean is the sum divided by the count"""
    exact = float(batch["values"].mean())
    if not close(run.mean, exact):
        raise Failed("the mean is another number", show={"this code": run.mean, "exact": exact})


ACCEPTED = {
    "divide by the count": [("(len(values) - 1)", "len(values)")],
    "torch's own": [("values.sum() / (len(values) - 1)", "values.mean()")],
    "a float": [("values.sum() / (len(values) - 1)", "float(values.mean())")],
}
TRAPS = {
    "a constant": Trap([("values.sum() / (len(values) - 1)", "0.0")], "check_mean", "zero is the mean of no batch here"),
    "crash": Trap([("values.sum() / (len(values) - 1)", "values.mena()")], "crash: AttributeError"),
    "nothing": Trap([("return values.sum() / (len(values) - 1)", "values.sum()")], "unusable"),
}
'''

SHEET = '"""\nWhich one?\n\nTask: name it.\n"""\nANSWER = {"cause": ""}\n'
SHEET_GRADER = '''"""Which one?"""

from __future__ import annotations

from typing import Any

from rerail.checks import Failed, Trap

LAYER, MINUTES, ORDER, POINTS = "process", 5, 2, 1
BASELINE = "check_cause"
HINTS = ("observe", "locate", "explain", "shape of the fix")


def check_cause(answer: Any) -> None:
    """the cause is named"""
    if answer.get("cause") != "scale":
        raise Failed(f"{answer.get('cause')!r} is not it")


ACCEPTED = {"scale": [('""}', '"scale"}')]}
TRAPS = {"rate": Trap([('""}', '"rate"}')], "check_cause")}
'''


@pytest.fixture(scope="session")
def course_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the three trees of a course of one script (`too_large`) and one answer sheet (`which_one`)."""
    root = tmp_path_factory.mktemp("course")
    solution = SHIPPED.replace("(len(values) - 1)", "len(values)  # each value counts once")
    files = {"exercises": (SHIPPED, SHEET), "solutions": (solution, SHEET.replace('""}', '"scale"}')),
             "graders": (GRADER, SHEET_GRADER)}  # fmt: skip
    for tree, (script, sheet) in files.items():
        folder = root / tree / "01_sample"
        folder.mkdir(parents=True)
        (folder / "too_large.py").write_text(script)
        (folder / "which_one.py").write_text(sheet)
    return root


@pytest.fixture(scope="session")
def too_large(course_root: Path) -> Exercise:
    return Exercise("too_large", "01_sample", course_root)


@pytest.fixture(scope="session")
def which_one(course_root: Path) -> Exercise:
    return Exercise("which_one", "01_sample", course_root)


@pytest.fixture(scope="session")
def engine() -> Iterator[Engine]:
    """A warm engine of the strongest level here."""
    opened = open_engine()
    yield opened
    opened.close()


@pytest.fixture(scope="session")
def grader(engine: Engine) -> Grader:
    return Grader(engine)


@pytest.fixture
def verdict(grader: Grader, too_large: Exercise):  # type: ignore[no-untyped-def]  # a function of a source
    """Return a function that grades a source as `too_large`; runs are stopped after two seconds."""
    quick = Grader(grader.engine, floor_seconds=2.0)

    def judge(source: str | bytes) -> Report:
        return quick.grade(too_large, Submission(source if isinstance(source, bytes) else source.encode(), "it.py"))

    return judge


@pytest.fixture(autouse=True)
def one_thread_and_one_seed(request: pytest.FixtureRequest) -> Iterator[None]:
    """Run the tests of the diagnostics with one thread, from the same seed; the others import no torch."""
    if "diagnostics" not in request.path.parts:
        yield
        return
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(threads)
