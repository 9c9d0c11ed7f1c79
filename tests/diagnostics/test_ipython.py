"""Short tracebacks in IPython: on, off, and gone again."""

import pytest

interactive = pytest.importorskip("IPython.core.interactiveshell")

CELLS = (
    "from torch import nn, zeros\nmodel = nn.Sequential(*(nn.Sequential(nn.Sequential(nn.Identity())) for _ in range(9)), nn.Linear(5, 2))",
    "model(zeros(4, 3))",
)


@pytest.fixture
def shell(capsys):
    made = interactive.InteractiveShell()
    made.colors = "nocolor"
    made.run_cell(CELLS[0])
    yield made
    made.run_cell("%unload_ext rerail.ipython")


def said(shell, cell, capsys) -> str:
    capsys.readouterr()
    shell.run_cell(cell)
    return capsys.readouterr().out


def test_a_cell_that_fails_shows_few_lines_and_the_whole_on_demand(shell, capsys):
    whole = said(shell, CELLS[1], capsys)
    shell.run_cell("%load_ext rerail.ipython")

    short = said(shell, CELLS[1], capsys)

    assert len(short.splitlines()) < 15 < len(whole.splitlines())
    assert "4x3 and 5x2" in short
    assert "library frames" in short
    assert len(said(shell, "%tb", capsys).splitlines()) > 15


def test_it_can_be_switched_off_and_unloaded(shell, capsys):
    shell.run_cell("%load_ext rerail.ipython")
    shell.run_cell("%minify off")
    assert "library frames" not in said(shell, CELLS[1], capsys)
    assert "minify is off" in said(shell, "%minify", capsys)
    shell.run_cell("%minify on")
    assert "library frames" in said(shell, CELLS[1], capsys)
    shell.run_cell("%unload_ext rerail.ipython")
    assert "library frames" not in said(shell, CELLS[1], capsys)
