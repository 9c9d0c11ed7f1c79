"""The command line: `rerail`. One module a command; each parses, calls, and prints.

The modules `list`, `next` and `run` become names of this one when they are imported: it uses none of the three.
"""

from __future__ import annotations

import contextlib
import difflib
import importlib
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from rerail import __version__
from rerail.cli.settings import Problem, Settings, report_problem
from rerail.course import CourseError

COMMANDS = (
    "start", "next", "show", "run", "check", "watch", "hint", "solution", "reset", "undo", "list", "doctor",
    "diagnose", "minify", "classroom", "dev",
)  # fmt: skip
HIDDEN = ("dev",)  # for authors


class Commands(click.Group):
    """Import a command's module only when it is asked for: most commands need a fraction of them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order of a learner's way."""
        return [name for name in COMMANDS if _is_there(name)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command by its name."""
        if not _is_there(cmd_name):
            return None
        command: click.Command = importlib.import_module(f"rerail.cli.{cmd_name}").command
        command.hidden = cmd_name in HIDDEN
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command of a command line; an unknown one is told with the next step."""
        if not _is_there(args[0]):
            near = difflib.get_close_matches(args[0], self.list_commands(ctx), 1)
            guess = f"did you mean {near[0]!r}? " if near else ""
            raise Problem(f"no command is called {args[0]!r}; {guess}`rerail --help` shows them all")
        return super().resolve_command(ctx, args)


def _is_there(name: str) -> bool:
    return name in COMMANDS and (Path(__file__).parent / f"{name}.py").is_file()


@click.group(cls=Commands, invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--workspace", metavar="DIR", help="The workspace; by default the one around the current folder.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--plain", is_flag=True, envvar="RERAIL_PLAIN", help="No colour, nothing that moves.")
@click.option("--color", type=click.Choice(["auto", "always", "never"]), default="auto", show_default=True)
@click.option("-q", "--quiet", is_flag=True, help="Print the first line only.")
@click.version_option(__version__, message="%(version)s")
@click.pass_context
def program(context: click.Context, /, **options: Any) -> None:
    """Practice in debugging training runs: repair a broken run, and have the repair judged."""
    settings: Settings = context.obj
    settings.take(**options)
    if context.invoked_subcommand is None:
        from rerail.cli.here import here

        here(settings)


def main(arguments: Sequence[str] | None = None, settings: Settings | None = None) -> None:
    """Run a command line and leave with its exit code: 0, 1 not yet, 2 usage, 3 blocked, 4 defect, 130 interrupted."""
    code = execute(sys.argv[1:] if arguments is None else arguments, settings or Settings())
    os._exit(code)  # at once: an interpreter waits for threads that wait for torch


def execute(arguments: Sequence[str], settings: Settings) -> int:
    """Run a command line; return its exit code, and print what went wrong as one sentence."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, ValueError):
            stream.reconfigure(errors="replace")  # type: ignore[union-attr]  # a console that has no letter for a dash
    settings.as_json = "--json" in arguments
    try:
        return _answered(arguments, settings)
    except BrokenPipeError:  # the reader of our output has left: nobody is to be told
        return 0
    except OSError as error:  # standard output cannot be written, by an answer or by a problem
        with contextlib.suppress(OSError):
            click.echo(f"BLOCKED  the answer could not be written: {error.strerror or error}; make room", err=True)
        return 3


def _answered(arguments: Sequence[str], settings: Settings) -> int:
    try:
        program.main(_globals_first(arguments), prog_name="rerail", standalone_mode=False, obj=settings)
        sys.stdout.flush()
        return settings.exit_code
    except click.exceptions.Exit as leave:
        return leave.exit_code
    except (KeyboardInterrupt, click.Abort):
        return report_problem(settings, "interrupted; nothing was lost", 130)
    except Problem as problem:
        return report_problem(settings, problem.message, problem.code)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return 2
    except click.UsageError as error:  # click's own words on options and arguments
        command = error.ctx.command_path if error.ctx else "rerail"
        said = error.format_message().rstrip(".")
        return report_problem(settings, f"{said}; `{command} --help` shows what there is", 2)
    except SystemExit:  # how click leaves when the reader of our output has left
        return 0
    except CourseError as error:
        return report_problem(settings, str(error), 4)
    except ImportError as error:
        return report_problem(settings, f"{error}; install rerail again, with all that it needs", 3)
    except BrokenPipeError:
        raise
    except OSError as error:
        if error.filename is None:
            raise
        from rerail.files import remedy

        return report_problem(settings, f"{error.filename}: {error.strerror}; {remedy(error)}", 3)
    except Exception as error:
        what = f"{type(error).__name__}: {error} ({_place(error)})"
        return report_problem(settings, f"a bug of rerail, nothing of yours was judged: {what}; please report it", 4)


def _place(error: BaseException) -> str:
    """Name the file and line that raised, for a report."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{Path(last.filename).name}:{last.lineno}"


GLOBAL_FLAGS = ("--json", "--plain", "-q", "--quiet")
GLOBAL_OPTIONS = ("--color", "--workspace")


def _globals_first(arguments: Sequence[str]) -> list[str]:
    """Let `rerail check --json` mean `rerail --json check`."""
    first: list[str] = []
    rest: list[str] = []
    waiting = [*arguments]
    while waiting:
        argument = waiting.pop(0)
        if argument == "--":
            return [*first, *rest, argument, *waiting]
        if argument in GLOBAL_FLAGS or argument.startswith(tuple(f"{option}=" for option in GLOBAL_OPTIONS)):
            first.append(argument)
        elif argument in GLOBAL_OPTIONS and waiting:
            first += [argument, waiting.pop(0)]
        else:
            rest.append(argument)
    return [*first, *rest]
