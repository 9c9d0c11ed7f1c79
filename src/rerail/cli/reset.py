"""`rerail reset`: the script as it was shipped."""

from __future__ import annotations

import click

from rerail.cli.settings import Problem, Settings


@click.command(name="reset")
@click.argument("exercise", required=False, metavar="[ID]")
@click.pass_obj
def command(settings: Settings, exercise: str | None) -> None:
    """Put the shipped script back. Yours is kept, and `rerail undo` brings it back."""
    from rerail.workspace import WorkspaceError

    workspace, found = settings.workspace(), settings.exercise(exercise)
    if workspace.path(found).is_dir():
        raise Problem(f"{workspace.shown(found)} is a folder, a script was expected; move it away first", 3)
    try:
        backup = workspace.replace(found, found.shipped)
        workspace.complete([found])
    except WorkspaceError as error:
        raise Problem(str(error), 3) from None
    kept = f"yours is kept; `rerail undo {found.name}` brings it back" if backup else "nothing of yours had to be kept"
    settings.say(f"{workspace.shown(found)} is as it was shipped; {kept}.", exercise=found.name,
                 backup=str(backup) if backup else None)  # fmt: skip
