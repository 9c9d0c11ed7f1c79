"""`rerail hint`: four steps, from what to measure to the shape of the repair."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

import click

from rerail.cli.settings import Problem, Settings
from rerail.course import Exercise

if TYPE_CHECKING:
    from rerail.progress import Progress


@click.command(name="hint")
@click.argument("exercise", required=False, metavar="[ID]")
@click.option("--again", is_flag=True, help="Repeat what was shown; show nothing new.")
@click.pass_obj
def command(settings: Settings, exercise: str | None, again: bool) -> None:
    """Show the next hint: observe, locate, explain, shape of the fix."""
    show_hint(settings, settings.exercise(exercise), again)


def show_hint(settings: Settings, found: Exercise, again: bool = False) -> None:
    """Print the next hint of an exercise, or those shown so far, and remember how far it went."""
    workspace = settings.workspace()
    hints = found.meta["HINTS"]
    if not hints:
        raise Problem(f"{found.name} has no hints; its brief is all there is: `rerail show {found.name}`", 1)
    seen = min(workspace.progress().of(found.name)["hints"], len(hints))
    if again and not seen:
        raise Problem(f"no hint of {found.name} was shown yet; `rerail hint {found.name}` shows the first")
    upto = seen if again else min(seen + 1, len(hints))

    def count(progress: Progress) -> None:
        progress.of(found.name)["hints"] = upto

    if not again:
        settings.warn(workspace.update(count))
    first = 0 if again else upto - 1
    lines = []
    for number in range(first, upto):
        lines.append(f"Hint {number + 1} of {len(hints)}")
        lines += textwrap.wrap(hints[number], 84, initial_indent="  ", subsequent_indent="  ")
    if upto == len(hints):
        lines += ["", f"  That was the last one. `rerail solution {found.name} --give-up` shows a repair."]
    else:
        lines += ["", f"  Next     rerail run {found.name}, or rerail hint {found.name} for the next one"]
    settings.say("\n".join(lines), exercise=found.name, shown=upto, total=len(hints), hints=list(hints[first:upto]))
