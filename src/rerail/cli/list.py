"""`rerail list`: all exercises and how far you are."""

from __future__ import annotations

import click

from rerail.cli.settings import Settings


@click.command(name="list")
@click.option("--todo", "only", flag_value="todo", help="Those not done.")
@click.option("--done", "only", flag_value="done", help="Those done.")
@click.option("--revealed", "only", flag_value="revealed", help="Those whose solution was shown before a pass.")
@click.pass_obj
def command(settings: Settings, only: str | None) -> None:
    """List the exercises, and how far you are. Number, name, status, minutes, points, symptom."""
    workspace = settings.maybe_workspace()
    progress = workspace.progress() if workspace else None
    if progress:
        settings.warn(progress.warning)
    rows = []
    for exercise in settings.exercises():
        status = progress.status(exercise.name) if progress else "todo"
        if only in (None, status):
            rows.append({"id": exercise.name, "number": exercise.number, "status": status, "title": exercise.title,
                         "minutes": exercise.meta["MINUTES"], "points": exercise.meta["POINTS"],
                         "layer": exercise.meta["LAYER"]})  # fmt: skip
    width = max((len(row["id"]) for row in rows), default=2)
    lines = [f"{'':>5} {'id':<{width}}  {'status':<8} {'min':>4} {'pts':>4}  symptom"]
    lines += [
        f"{r['number']:>5} {r['id']:<{width}}  {r['status']:<8} {r['minutes']:>4} {r['points']:>4}  {r['title']}"
        for r in rows
    ]
    if workspace is None:
        lines += ["", "There is no workspace around this folder; `rerail start learn` makes one."]
    settings.say("\n".join(lines) if rows else f"no exercise is {only}", exercises=rows)
