"""`rerail next`: move to the next exercise that is not done."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from rerail.cli.settings import Problem, Settings
from rerail.cli.show import show

if TYPE_CHECKING:
    from rerail.progress import Progress


@click.command(name="next")
@click.pass_obj
def command(settings: Settings) -> None:
    """Move on to the next exercise that is not done. Those whose solution was shown come last."""
    move_on(settings)


def move_on(settings: Settings) -> None:
    """Make the next exercise that is not done the one at hand."""
    workspace = settings.workspace()
    progress, everything = workspace.progress(), settings.exercises()
    here = everything.index(settings.current(progress))
    ahead = [*everything[here + 1 :], *everything[: here + 1]]
    todo = [
        exercise for status in ("todo", "revealed") for exercise in ahead if progress.status(exercise.name) == status
    ]
    if not todo:
        settings.say(f"All {len(everything)} exercises are done.", done=len(everything), current=None)
        return
    target = todo[0]

    def move(progress: Progress) -> None:
        progress.current = target.name

    trouble = workspace.update(move)
    if trouble:
        raise Problem(trouble, 3)
    if progress.status(everything[here].name) == "todo":
        settings.warn(f"{everything[here].name} stays open; `rerail list --todo` shows what does")
    show(settings, target)
