"""The command line: `rerail`. One module a command; each parses, calls, and prints."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from collections.abc import Sequence
from typing import Any

import click

from rerail import __version__
from rerail.cli.settings import Problem, Settings, report_problem

COMMANDS = (
    "start", "next", "show", "run", "check", "watch", "hint", "solution", "reset", "undo", "list", "doctor",
    "classroom", "dev",
)  # fmt: skip
HIDDEN = ("dev",)  # for authors


class Commands(click.Group):
    """Import a command's module only when it is asked for: most commands need a fraction of them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order of a learner's way."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command by its name."""
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(f"rerail.cli.{cmd_name}").command
        command.hidden = cmd_name in HIDDEN
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command of a command line; an unknown one is told with the next step."""
        if args[0] not in COMMANDS:
            raise Problem(f"no command is called {args[0]!r}; `rerail --help` shows them all")
        return super().resolve_command(ctx, args)


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
    sys.exit(run(sys.argv[1:] if arguments is None else arguments, settings or Settings()))


def run(arguments: Sequence[str], settings: Settings) -> int:
    """Run a command line; return its exit code, and print what went wrong as one sentence."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, ValueError):
            stream.reconfigure(errors="replace")  # type: ignore[union-attr]  # a console that has no letter for a dash
    settings.as_json = "--json" in arguments
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
    except click.ClickException as error:  # click's own words on options and arguments
        return report_problem(settings, f"{error.format_message().rstrip('.')}; `rerail --help` shows what there is", 2)
    except BrokenPipeError:  # the reader of our output has left: nobody is to be told
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        return report_problem(
            settings, f"{error.filename or 'a file'}: {error.strerror or error}; try again once it is mended", 3
        )


def _globals_first(arguments: Sequence[str]) -> list[str]:
    """Let `rerail check --json` mean `rerail --json check`."""
    flags = {"--json", "--plain"}
    return [a for a in arguments if a in flags] + [a for a in arguments if a not in flags]
