"""`rerail show`: what goes wrong, and what is asked."""

from __future__ import annotations

import click

from rerail.cli.settings import Settings
from rerail.course import Exercise
from rerail.report import counted


@click.command(name="show")
@click.argument("exercise", required=False, metavar="[ID]")
@click.pass_obj
def command(settings: Settings, exercise: str | None) -> None:
    """Show a brief: the symptom, the task, what must stay as it is."""
    show(settings, settings.exercise(exercise))


def show(settings: Settings, exercise: Exercise) -> None:
    """Print a brief."""
    workspace = settings.maybe_workspace()
    path = str(workspace.path(exercise)) if workspace else exercise.path("exercises").name
    meta = exercise.meta
    settings.say(
        f"{exercise.number} {exercise.name}   about {meta['MINUTES']} minutes, {counted(meta['POINTS'], 'point')}\n"
        f"{path}\n\n{exercise.brief}\n\n"
        f"  Look     rerail run {exercise.name}\n"
        f"  Judge    rerail check {exercise.name}",
        exercise=exercise.name, number=exercise.number, title=exercise.title, brief=exercise.brief, path=path,
        minutes=meta["MINUTES"], points=meta["POINTS"], layer=meta["LAYER"],
    )  # fmt: skip
