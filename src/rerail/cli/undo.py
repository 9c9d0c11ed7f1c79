"""`rerail undo`: the script as it was before the last reset."""

from __future__ import annotations

import click

from rerail.cli.settings import Problem, Settings


@click.command(name="undo")
@click.argument("exercise", required=False, metavar="[ID]")
@click.option("--list", "only_list", is_flag=True, help="Show what is kept, the newest first; change nothing.")
@click.pass_obj
def command(settings: Settings, exercise: str | None, only_list: bool) -> None:
    """Put back what the last reset (or undo) replaced."""
    from rerail.workspace import WorkspaceError

    workspace, found = settings.workspace(), settings.exercise(exercise)
    if only_list:
        kept = [path.relative_to(workspace.folder).as_posix() for path in reversed(workspace.backups(found))]
        settings.say("\n".join(kept) or f"nothing of {found.name} was replaced yet", exercise=found.name, backups=kept)
        return
    try:
        content = workspace.undo(found)
    except WorkspaceError as error:
        raise Problem(str(error), 3) from None
    if content is None:
        raise Problem(f"there is no backup of {found.name}: no command has replaced it yet")
    settings.say(f"{workspace.shown(found)} is back; undo again to go forth.", exercise=found.name)
