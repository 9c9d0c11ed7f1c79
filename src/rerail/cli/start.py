"""`rerail start`: make a workspace."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import click

from rerail.cli.settings import INSTALL, Problem, Settings, lacks_torch


@click.command(name="start")
@click.argument("folder", required=False, metavar="[DIR]")
@click.option("--yes", is_flag=True, help="Ask nothing. (Nothing is asked now; scripts may rely on it.)")
@click.pass_obj
def command(settings: Settings, folder: str | None, yes: bool) -> None:
    """Make a workspace in DIR (learn). It holds your copies of the scripts, and your progress."""
    from rerail.workspace import HIDDEN, Occupied, Workspace, WorkspaceError

    folder = folder or settings.folder
    if folder is None:
        around = settings.maybe_workspace()
        folder = str(around.folder) if around else "learn"
    path = Path(folder).absolute()
    outer = Workspace.find(path.parent)
    if outer is not None and not (path / HIDDEN).is_dir():
        raise Problem(f"{folder} would lie inside the workspace {outer.folder}; start it elsewhere")
    was_there = (path / HIDDEN).is_dir()
    exercises = settings.exercises()
    try:
        written = Workspace(path).complete(exercises) if was_there else []
        workspace = Workspace.create(path, exercises)
    except Occupied as error:
        raise Problem(str(error)) from None
    except WorkspaceError as error:
        raise Problem(str(error), 3) from None
    first = settings.current(workspace.progress())
    what = "is your workspace now"
    if was_there:
        what = f"is your workspace already; {_brought_back(written)}"
    if lacks_torch():
        settings.warn(f"PyTorch is not installed for {sys.executable}; before you check anything: {INSTALL}")
    here = path == Path.cwd()
    settings.say(
        f"{folder} {what}. It has {len(exercises)} exercises.\n\n"
        f"{'' if here else f'  cd {shlex.quote(folder)}{chr(10)}'}"
        f"  rerail show    tells what goes wrong in {first.name}\n"
        f"  rerail run     shows it\n"
        f"  rerail watch   judges your script at every save; rerail check does it once",
        workspace=str(path), created=not was_there, exercises=len(exercises),
    )  # fmt: skip


def _brought_back(written: list[str]) -> str:
    if not written:
        return "nothing was missing in it"
    more = f" and {len(written) - 1} more" if len(written) > 1 else ""
    return f"exercises/{written[0]}{more} {'was' if len(written) == 1 else 'were'} missing, and written again"
