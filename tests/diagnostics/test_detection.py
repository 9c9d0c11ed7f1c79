"""The detection matrix keeps its goals: layers, causes, wrong fixes, right fixes, and no fault on a healthy run."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

from detection import matrix  # noqa: E402
from detection.faults import FAULTS  # noqa: E402
from detection.healthy import KINDS, LOOK_ALIKES, VARIATIONS, varied  # noqa: E402


@pytest.fixture(scope="module")
def result():
    """Computed anew where the library has changed since it was stored."""
    return matrix.current()


def test_the_goals_are_kept(result):
    totals = result["totals"]

    assert totals["faults"] >= 40
    assert totals["starred"] == 33
    assert totals["starred_right_layer"] >= 31
    assert totals["starred_right_cause"] >= 27
    assert totals["wrong_fixes_flagged"] >= 0.9 * totals["wrong_fixes"]
    assert totals["right_fixes_accepted"] == totals["right_fixes"]
    assert totals["healthy"] >= 60
    assert totals["healthy_fault"] == 0
    assert totals["healthy_suspicious"] <= 0.05 * totals["healthy"]


def test_the_totals_are_the_counts_of_the_rows(result):
    assert result["totals"] == matrix.totals(result["faults"], result["healthy"])
    assert [row["ident"] for row in result["faults"]] == [fault.ident for fault in FAULTS]
    assert len(result["healthy"]) == len(KINDS) * len(VARIATIONS) + len(LOOK_ALIKES)


@pytest.mark.parametrize("ident", ["S03", "G03", "U01", "E08", "D01"])
def test_a_stored_row_is_what_comes_out_now(result, ident):
    fault = next(fault for fault in FAULTS if fault.ident == ident)
    stored = next(row for row in result["faults"] if row["ident"] == ident)

    assert matrix.fault_row(fault) == stored


def test_a_healthy_run_is_asked_many_questions_and_all_are_answered():
    row = matrix.healthy_row("MLP", "another seed", lambda: varied(KINDS["MLP"], "another seed"))

    assert row["status"] == "ok"
    assert row["checks"] >= 9


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.ident)
def test_every_fault_has_a_wrong_and_a_right_repair(fault):
    assert fault.right
    assert fault.wrong or fault.ident == "X01"  # its wrong fixes need whole epochs
