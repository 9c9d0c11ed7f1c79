"""`rerail` alone: where you are, and what comes next."""

from __future__ import annotations

from rerail.cli.settings import Settings


def here(settings: Settings) -> None:
    """Tell the place in the course, the exercise at hand, its last outcome, and the next command."""
    workspace = settings.maybe_workspace()
    if workspace is None:
        settings.say(
            "Debugging Training Runs: repair broken training runs, and have the repair judged.\n\n"
            "  rerail start learn   makes a workspace in the folder learn\n"
            "  rerail --help        shows all commands",
            workspace=None,
        )
        return
    progress = workspace.progress()
    settings.warn(progress.warning)
    exercise, everything = settings.current(progress), settings.exercises()
    done = sum(progress.status(e.name) == "done" for e in everything)
    last = progress.of(exercise.name)["last"].get("outcome", "not checked yet")
    following = "rerail next" if progress.status(exercise.name) == "done" else "rerail check"
    settings.say(
        f"Debugging Training Runs, {done} of {len(everything)} done\n\n"
        f"  at hand  {exercise.number} {exercise.name}   {exercise.title}\n"
        f"  script   {workspace.path(exercise)}\n"
        f"  last     {last}\n"
        f"  next     {following}",
        workspace=str(workspace.folder), current=exercise.name, done=done, total=len(everything), last=last,
    )  # fmt: skip
