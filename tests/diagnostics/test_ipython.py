"""Short tracebacks in IPython: on, off, and gone again."""

import pytest

interactive = pytest.importorskip("IPython.core.interactiveshell")

SETUP = """\
from torch import nn, zeros
model = nn.Sequential(*(nn.Sequential(nn.Sequential(nn.Identity())) for _ in range(9)), nn.Linear(5, 2))
def resume():
    try:
        model(zeros(4, 3))
    except RuntimeError as error:
        raise LookupError("at step 7") from error
"""
FAILS = "model(zeros(4, 3))"


@pytest.fixture
def shell(capsys):
    made = interactive.InteractiveShell()
    made.colors = "nocolor"
    made.run_cell(SETUP)
    yield made
    made.run_cell("%unload_ext rerail.ipython")


def said(shell, cell, capsys) -> str:
    capsys.readouterr()
    shell.run_cell(cell)
    return capsys.readouterr().out


def test_a_cell_that_fails_shows_few_lines_and_the_whole_on_demand(shell, capsys):
    whole = said(shell, FAILS, capsys)
    shell.run_cell("%load_ext rerail.ipython")

    short = said(shell, FAILS, capsys)

    assert len(short.splitlines()) < 15 < len(whole.splitlines())
    assert short.startswith("RuntimeError: mat1 and mat2 shapes cannot be multiplied (4x3 and 5x2)\n")
    assert "Cell In[1]:1 in <module>: model(zeros(4, 3))" in short
    assert "library frames (torch)" in short
    assert len(said(shell, "%tb", capsys).splitlines()) > 15


@pytest.mark.parametrize("mode", ["Context", "Plain", "Verbose"])
def test_a_chain_is_told_in_every_mode(shell, capsys, mode):
    shell.run_cell(f"%load_ext rerail.ipython\n%xmode {mode}")

    short = said(shell, "resume()", capsys)

    assert short.startswith("RuntimeError: mat1")
    assert "in resume: model(zeros(4, 3))" in short
    assert "direct cause of LookupError: at step 7" in short
    assert len(short.splitlines()) < 15


@pytest.mark.parametrize("cell", ["1 / 0", "def f(:\n    1", "%alias_magic", "%timeit -q -zz", "assert 1 == 2, 'no'"])
def test_what_ipython_tells_in_few_lines_stays_as_it_is(shell, capsys, cell):
    before = said(shell, cell, capsys)
    shell.run_cell("%load_ext rerail.ipython")

    assert said(shell, cell, capsys) == before


def test_wrong_syntax_of_an_imported_file_is_told_with_its_line(shell, capsys, tmp_path):
    (tmp_path / "broken_of_ada.py").write_text("x = 1\ndef f(:\n")
    shell.run_cell("%load_ext rerail.ipython")

    told = said(shell, f"import sys; sys.path.insert(0, {str(tmp_path)!r})\nimport broken_of_ada", capsys)
    shell.run_cell("sys.path.pop(0)")

    assert "def f(:" in told


def test_an_exception_that_prints_itself_is_left_to_do_so(shell, capsys):
    shell.run_cell("%load_ext rerail.ipython")
    shell.run_cell("class Told(Exception):\n    def _render_traceback_(self):\n        return ['in my own words']")

    assert said(shell, "raise Told", capsys).strip() == "in my own words"


def test_it_can_be_switched_off_and_unloaded(shell, capsys):
    shell.run_cell("%load_ext rerail.ipython")
    assert "minify is on" in said(shell, "%minify", capsys)
    shell.run_cell("%minify off")
    assert "library frames" not in said(shell, FAILS, capsys)
    assert "minify is off" in said(shell, "%minify", capsys)
    shell.run_cell("%minify on")
    assert "library frames" in said(shell, FAILS, capsys)
    shell.run_cell("%unload_ext rerail.ipython")
    assert "library frames" not in said(shell, FAILS, capsys)
    assert "minify" not in shell.magics_manager.magics["line"]


def test_a_handler_that_was_there_is_there_again(shell, capsys):
    shell.set_custom_exc((RuntimeError,), lambda shell, kind, error, trace, tb_offset=None: print("mine"))
    shell.run_cell("%load_ext rerail.ipython\n%reload_ext rerail.ipython\n%minify on")
    assert "library frames" in said(shell, FAILS, capsys)

    shell.run_cell("%unload_ext rerail.ipython")

    assert said(shell, FAILS, capsys).strip() == "mine"
