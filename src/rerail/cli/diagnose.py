"""`rerail diagnose`: read a history, or run a checkup on what a function of yours returns."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import sys
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rerail.cli.recorded import picture
from rerail.cli.settings import Problem, Settings
from rerail.files import remedy

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
    target = picture(str(plot)) if plot is not None else None
    report = _history(what) if _is_file(what) else _checkup(what)
    if target is not None:
        _draw(report, target)
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
    except OSError as error:
        raise Problem(f"{what!r} was not read: {error.strerror or error}; {remedy(error)}") from None
    except ValueError as error:
        raise Problem(f"{what!r} was not read: {error}") from None
    if not any(records):
        raise Problem(f"{what!r} holds no rows; expected a CSV with a line of names, JSONL, or JSON")
    return diagnose_history(records)


def _checkup(what: str) -> Report:
    given = _called(what)
    from rerail.diagnostics.checkup import checkup

    missing = [name for name in NEEDED if name not in given]
    if missing:
        raise Problem(f"{what!r} must return a mapping with {', '.join(NEEDED)}; it lacks {', '.join(missing)}")
    try:
        inspect.signature(checkup).bind(**given)
    except TypeError as error:
        raise Problem(f"{what!r} returned what `rerail.checkup` does not take: {error}") from None
    with _told(f"the checkup of what {what!r} returned"):
        report: Report = checkup(**given)
    return report


def _called(what: str) -> Mapping[str, Any]:
    module_name, _, function_name = what.partition(":")
    if not (module_name and function_name):
        raise Problem(f"{what!r} names no {'function' if module_name else 'module'}; write MODULE:FUNCTION")
    sys.path.insert(0, str(Path.cwd()))
    with _told(f"the import of {module_name!r}"):
        module = importlib.import_module(module_name)
    function = getattr(module, function_name, None)
    if not callable(function):
        raise Problem(f"{module_name!r} has no function {function_name!r}; write MODULE:FUNCTION")
    needed = _needed_by(function)
    if needed:
        raise Problem(f"{what!r} needs {', '.join(needed)}; expected a function that is called without arguments")
    with _told(repr(what)):
        given = function()
    if not isinstance(given, Mapping):
        raise Problem(f"{what!r} must return a mapping with {', '.join(NEEDED)}, got {type(given).__name__}")
    return given


def _needed_by(function: Any) -> list[str]:
    """Name the arguments that a function cannot be called without."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # some built-in functions have none
        return []
    required = (p for p in parameters if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD))
    return [f"`{p.name}`" for p in required]


@contextlib.contextmanager
def _told(what: str) -> Iterator[None]:
    """Say in one sentence how code that is not ours ended, and where."""
    try:
        yield
    except SystemExit as leave:
        said = f"{what} called sys.exit({leave.code!r}){_place(leave)}, which ends a program; nothing was diagnosed"
        raise Problem(said) from None
    except Exception as error:
        raise Problem(f"{what} raised {type(error).__name__}: {error}{_place(error)}") from None


def _place(error: BaseException) -> str:
    """Name the last line of a traceback that lies around the current folder."""
    here = str(Path.cwd())
    lines = [f for f in traceback.extract_tb(error.__traceback__) if f.filename.startswith(here)]
    return f" ({Path(lines[-1].filename).name}, line {lines[-1].lineno})" if lines else ""


def _draw(report: Report, path: str) -> None:
    try:
        figure = report.plot().get_figure(root=True)
        if figure is not None:
            figure.savefig(path)
    except ValueError as error:
        raise Problem(str(error)) from None
    except OSError as error:
        raise Problem(f"{path} was not written: {error.strerror or error}; {remedy(error)}", 3) from None
