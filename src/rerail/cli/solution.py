"""`rerail solution`: the smallest repair, after a pass or after giving up."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

import click

from rerail.cli.settings import Problem, Settings
from rerail.course import Exercise

if TYPE_CHECKING:
    from rerail.progress import Progress


@click.command(name="solution")
@click.argument("exercise", required=False, metavar="[ID]")
@click.option("--diff", is_flag=True, help="The changed lines. (That is what is shown anyway.)")
@click.option("--give-up", is_flag=True, help="Show it before a pass; asks for the name of the exercise.")
@click.pass_obj
def command(settings: Settings, exercise: str | None, diff: bool, give_up: bool) -> None:
    """Show the smallest repair of an exercise that passed. As changed lines, and as a file of its own."""
    from rerail.workspace import WorkspaceError

    workspace, found = settings.workspace(), settings.exercise(exercise)
    status = workspace.progress().status(found.name)
    if status == "todo":
        if not give_up:
            raise Problem(
                f"{found.name} has not passed yet; `rerail hint {found.name}` helps, "
                f"`rerail solution {found.name} --give-up` shows it all the same"
            )
        if click.prompt(f"Type {found.name} to see its solution", err=True) != found.name:
            raise Problem("that is not its name; the solution stays closed")

        def reveal(progress: Progress) -> None:
            progress.of(found.name)["status"] = "revealed"

        settings.warn(workspace.update(reveal))
    try:
        path = workspace.keep_solution(found)
    except WorkspaceError as error:
        raise Problem(str(error), 3) from None
    lines = changes(found)
    settings.say("\n".join([str(path.relative_to(workspace.folder)), "", *lines]), exercise=found.name,
                 path=str(path), diff=lines)  # fmt: skip


def changes(exercise: Exercise) -> list[str]:
    """Return the lines in which the solution differs from the shipped script, as a unified diff without its head."""
    before, after = exercise.shipped.decode().splitlines(), exercise.solution.decode().splitlines()
    return list(difflib.unified_diff(before, after, lineterm="", n=1))[2:]
