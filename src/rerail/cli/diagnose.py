"""`rerail diagnose`: read a history, or run a checkup on what a function of yours returns."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rerail.cli.settings import Problem, Settings

if TYPE_CHECKING:
    from rerail.diagnostics.finding import Report

EXIT = {"fault": 1, "unknown": 3}  # all else is 0: a question is no failure of a build
NEEDED = ("model", "optimizer", "loss_fn", "batch")


@click.command(name="diagnose")
@click.argument("what", metavar="HISTORY|MODULE:FUNCTION")
@click.option("--verbose", is_flag=True, help="Print all findings, facts and rows.")
@click.option("--plot", type=click.Path(path_type=Path), metavar="FILE", help="Draw the report's table to a file.")
@click.pass_obj
def command(settings: Settings, what: str, verbose: bool, plot: Path | None) -> None:
    """Diagnose a run from its history, or one step of it.

    HISTORY is a CSV, JSONL or JSON file. MODULE:FUNCTION names a function without arguments that returns a mapping
    with `model`, `optimizer`, `loss_fn` and `batch`, and whatever else `rerail.checkup` takes.
    """
    report = _history(what) if _is_file(what) else _checkup(what)
    if plot is not None:
        _draw(report, plot)
    text = report.verbose() if verbose else str(report)
    settings.say(text, **report.to_dict())
    settings.exit_code = EXIT.get(report.status, 0)


def _is_file(what: str) -> bool:
    return ":" not in what or Path(what).exists()


def _history(what: str) -> Report:
    from rerail.diagnostics.history import diagnose_history
    from rerail.diagnostics.reading import read_history

    path = Path(what)
    if path.is_dir():
        raise Problem(f"{what!r} is a directory: name the file of the history in it, such as metrics.csv")
    try:
        records = read_history(path)
    except FileNotFoundError:
        raise Problem(f"there is no file {what!r}; a function is written as MODULE:FUNCTION") from None
    except (OSError, ValueError) as error:
        raise Problem(f"{what!r} was not read: {error}") from None
    return diagnose_history(records)


def _checkup(what: str) -> Report:
    given = _called(what)
    from rerail.diagnostics.checkup import checkup

    missing = [name for name in NEEDED if name not in given]
    if missing:
        raise Problem(f"{what!r} must return a mapping with {', '.join(NEEDED)}; it lacks {', '.join(missing)}")
    try:
        report: Report = checkup(**given)
    except TypeError as error:
        raise Problem(f"{what!r} returned what `rerail.checkup` does not take: {error}") from None
    return report


def _called(what: str) -> Mapping[str, Any]:
    module_name, _, function_name = what.partition(":")
    sys.path.insert(0, str(Path.cwd()))
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        raise Problem(f"the module {module_name!r} was not imported: {type(error).__name__}: {error}") from None
    function = getattr(module, function_name, None)
    if not callable(function):
        raise Problem(f"{module_name!r} has no function {function_name!r}; write MODULE:FUNCTION")
    try:
        given = function()
    except Exception as error:
        raise Problem(f"{what!r} failed: {type(error).__name__}: {error}", 3) from None
    if not isinstance(given, Mapping):
        raise Problem(f"{what!r} must return a mapping with {', '.join(NEEDED)}, got {type(given).__name__}")
    return given


def _draw(report: Report, path: Path) -> None:
    try:
        figure = report.plot().get_figure(root=True)
        if figure is not None:
            figure.savefig(path)
    except ValueError as error:
        raise Problem(str(error)) from None
    except OSError as error:
        raise Problem(f"{str(path)!r} was not written: {error.strerror or error}", 3) from None
