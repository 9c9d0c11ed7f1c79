"""`rerail start`: make a workspace."""

from __future__ import annotations

from pathlib import Path

import click

from rerail.cli.settings import Problem, Settings


@click.command(name="start")
@click.argument("folder", default="learn", metavar="[DIR]")
@click.option("--yes", is_flag=True, help="Ask nothing. (Nothing is asked now; scripts may rely on it.)")
@click.pass_obj
def command(settings: Settings, folder: str, yes: bool) -> None:
    """Make a workspace in DIR (learn): your copies of the scripts, and your progress."""
    from rerail.workspace import HIDDEN, Workspace, WorkspaceError

    path = Path(folder).absolute()
    outer = Workspace.find(path.parent)
    if outer is not None and not (path / HIDDEN).is_dir():
        raise Problem(f"{folder} would lie inside the workspace {outer.folder}; start it elsewhere")
    was_there = (path / HIDDEN).is_dir()
    exercises = settings.exercises()
    try:
        workspace = Workspace.create(path, exercises)
    except WorkspaceError as error:
        raise Problem(str(error), 2 if "name a new folder" in str(error) else 3) from None
    first = settings.current(workspace.progress())
    what = "is your workspace already; scripts that were missing are there again" if was_there else "is your workspace"
    settings.say(
        f"{folder} {what}: {len(exercises)} exercises.\n\n"
        f"  cd {folder}\n"
        f"  rerail show    tells what goes wrong in {first.name}\n"
        f"  rerail run     shows it\n"
        f"  rerail watch   judges your script at every save; rerail check does it once",
        workspace=str(path), created=not was_there, exercises=len(exercises),
    )  # fmt: skip
