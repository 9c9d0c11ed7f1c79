"""`rerail diagnose` and `rerail minify`: what they print, their exit codes, and one sentence for what they cannot read."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest

from rerail.cli import execute
from rerail.cli.settings import Settings

TRACE = Path(__file__).parent / "diagnostics/traces/deep.txt"
HISTORY = "epoch,train_loss,val_loss\n0,1.0,1.1\n1,0.5,inf\n2,0.3,1.2\n"
SETUP = """\
import torch
from torch import nn

def make(*last):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 3), *last)
    batch = torch.randn(12, 6), torch.arange(12) % 3
    return {"model": model, "optimizer": torch.optim.Adam(model.parameters(), lr=1e-3),
            "loss_fn": nn.functional.cross_entropy, "batch": batch}

def healthy(): return make()
def broken(): return make(nn.Softmax(1))
def crash(): raise ValueError("no data")
def partial(): return {"model": 1}
def nothing(): return None
def odd(): return {**make(), "colour": "red"}
def leave(): raise SystemExit(0)
def make_with(size): return make()
"""


@pytest.fixture
def rerail(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "metrics.csv").write_text(HISTORY)
    (tmp_path / "my_setup.py").write_text(SETUP)
    (tmp_path / "leaves.py").write_text("raise SystemExit(3)")
    (tmp_path / "list.json").write_text("[1, 2]")
    (tmp_path / "empty.json").write_text("{}")
    (tmp_path / "wide.csv").write_text("step,loss\n1,0.5\n2,0,4\n")
    sys.modules.pop("my_setup", None)
    monkeypatch.setattr(sys, "path", sys.path[:])  # the command puts the working directory in front

    def call(*arguments: str):
        code = execute(arguments, Settings())
        said = capsys.readouterr()
        return code, said.out, said.err

    return call


def test_a_history_with_a_number_that_is_not_finite_fails_a_build(rerail):
    code, out, _ = rerail("diagnose", "metrics.csv")

    assert code == 1
    assert "values.non_finite_history" in out
    assert "row 1, val_loss" in out


def test_a_healthy_history_passes(rerail, tmp_path):
    (tmp_path / "good.jsonl").write_text("\n".join(json.dumps({"loss": 1 / n}) for n in range(1, 9)))

    assert rerail("diagnose", "good.jsonl")[0] == 0


def test_json_is_the_report(rerail):
    _, out, _ = rerail("--json", "diagnose", "metrics.csv")

    held = json.loads(out)
    assert held["status"] == "fault"
    assert held["findings"][0]["cause"] == "values.non_finite_history"


def test_a_checkup_of_a_function_says_where_it_stops(rerail, tmp_path):
    code, out, _ = rerail("diagnose", "my_setup:broken", "--verbose", "--plot", "rows.svg")

    assert code == 2  # a checkup has a table of words: nothing to plot
    code, out, _ = rerail("diagnose", "my_setup:broken", "--verbose")
    assert code == 1
    assert "values.softmax_before_cross_entropy" in out
    assert "not trusted" in out
    assert rerail("diagnose", "my_setup:healthy")[0] == 0


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("diagnose", "nowhere.csv"), 2, "there is no file"),
        (("diagnose", "."), 2, "is a directory"),
        (("diagnose", "my_setup.py"), 2, "was not read"),
        (("diagnose", "no_module:f"), 2, "the import of 'no_module' raised ModuleNotFoundError"),
        (("diagnose", "my_setup:absent"), 2, "has no function"),
        (("diagnose", ":f"), 2, "names no module; write MODULE:FUNCTION"),
        (("diagnose", "my_setup:crash"), 2, "raised ValueError: no data (my_setup.py, line 13)"),
        (("diagnose", "my_setup:partial"), 2, "lacks optimizer, loss_fn, batch"),
        (("diagnose", "my_setup:nothing"), 2, "got NoneType"),
        (("diagnose", "my_setup:odd"), 2, "does not take"),
        (("diagnose", "my_setup:leave"), 2, "called sys.exit(0) (my_setup.py, line 17)"),
        (("diagnose", "leaves:f"), 2, "the import of 'leaves' called sys.exit(3)"),
        (("diagnose", "my_setup:make_with"), 2, "needs `size`"),
        (("diagnose", "list.json"), 2, "row 0 is '1'"),
        (("diagnose", "empty.json"), 2, "holds no rows"),
        (("diagnose", "wide.csv"), 2, "row 1 has 3 cells under 2 names: '2,0,4'"),
        (("diagnose", "metrics.csv", "--plot", "."), 2, "name a file in it"),
        (("minify", "nowhere.log"), 2, "there is no file"),
        (("minify", "."), 2, "is a directory"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_what_cannot_be_read_is_told_in_one_sentence(rerail, arguments, code, says):
    got, out, err = rerail(*arguments)

    assert got == code
    assert says in err
    assert "Traceback" not in out + err
    assert len(err.strip().splitlines()) <= 2


def test_a_traceback_becomes_short_from_a_file_and_from_the_standard_input(rerail, monkeypatch):
    code, out, _ = rerail("minify", str(TRACE))

    assert code == 0
    assert "4x3 and 5x2" in out
    assert len(out.splitlines()) < 15
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(TRACE.read_bytes())))
    assert rerail("minify", "-")[1] == out
    assert json.loads(rerail("--json", "minify", str(TRACE))[1])["signature"].startswith("RuntimeError-")


def test_what_is_no_traceback_leaves_byte_for_byte(tmp_path):
    held = "loss 0.3 \u00e9\n".encode() + b"\xff\xfe broken\r\n"
    (tmp_path / "log").write_bytes(held)

    done = subprocess.run(
        [sys.executable, "-m", "rerail", "minify", "log"], cwd=tmp_path, capture_output=True, check=True
    )

    assert done.stdout == held


def test_a_checkpoint_is_no_log(rerail, tmp_path):
    (tmp_path / "model.pt").write_bytes(b"PK\0\0")

    assert "holds zero bytes" in rerail("minify", "model.pt")[2]
