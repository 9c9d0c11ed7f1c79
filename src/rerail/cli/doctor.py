"""`rerail doctor`: does this computer have what the course needs?"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable

import click

from rerail.cli.settings import INSTALL, Settings

NEEDED_BYTES = 200 << 20  # room for a run's own folder, with a margin
ROOM_BYTES = 1 << 20  # for the scripts of a workspace, their backups and the progress


@click.command(name="doctor")
@click.pass_obj
def command(settings: Settings) -> None:
    """Tell whether all that is needed is here. Looks at Python, PyTorch, child processes, the workspace, the disk."""
    rows = []
    for name, look in LOOKS.items():
        try:
            good, text = look(settings)
        except Exception as error:  # a doctor does not fall ill
            good, text = False, f"{getattr(error, 'message', error)} ({type(error).__name__})"
        rows.append({"name": name, "ok": good, "text": text})
        if not settings.as_json:
            settings.say(f"{'ok' if good else 'FAIL':<5} {name:<12} {text}")
    settings.exit_code = 0 if all(row["ok"] for row in rows) else 3
    if settings.as_json:
        settings.say("", checks=rows, exit_code=settings.exit_code)


def _python(settings: Settings) -> tuple[bool, str]:
    version = ".".join(map(str, sys.version_info[:3]))
    good = sys.version_info >= (3, 11)
    return good, f"{version} at {sys.executable}{'' if good else '; 3.11 or newer is needed'}"


def _torch(settings: Settings) -> tuple[bool, str]:
    from importlib.metadata import PackageNotFoundError, version

    try:
        found = version("torch")
    except PackageNotFoundError:
        return False, f"not installed for {sys.executable}; {INSTALL}"
    major, minor = (int(part) for part in found.split(".")[:2])
    if (major, minor) < (2, 13):
        return False, f"{found}, 2.13 or newer is needed; {INSTALL}"
    return True, f"{found}, the course was tested with 2.13.0"


def _numpy(settings: Settings) -> tuple[bool, str]:
    try:
        import numpy as np
    except ImportError as error:
        return False, f"{error}; pip install 'numpy>=2'"
    if int(np.__version__.split(".")[0]) < 2:
        return False, f"{np.__version__}, 2 or newer is needed; pip install 'numpy>=2'"
    return True, np.__version__


def _child(settings: Settings) -> tuple[bool, str]:
    from rerail.engine import EngineError, open_engine
    from rerail.talk import Job

    begin = time.monotonic()
    engine = open_engine()
    try:
        probe = "def probe(script, batch):\n    return {'answer': script.answer(batch)}\n"
        right = engine.run(Job(b"def answer(x): return x + 1", "it.py", "it.py", probe, ("answer",), (1,)))
        warm = time.monotonic() - begin
        begin = time.monotonic()
        hung = engine.run(Job(b"while True: pass", "it.py", "it.py", probe, (), (1,)), lambda: 0.3)
        killed = time.monotonic() - begin
    except EngineError as error:
        return False, f"cannot be started, so no script can be judged: {error}"
    finally:
        engine.close()
    good = right.how == "evidence" and right.evidence[0].answer == 2 and hung.how == "timeout"
    if not good:
        what = f"{right.how} where 2 was due, {hung.how} where a timeout was due"
        return False, f"isolation {engine.level}: {what}; report it with the output of `rerail --json doctor`"
    return True, f"isolation {engine.level}, warm after {warm:.1f} s; one that hung was ended after {killed:.1f} s"


def _threads(settings: Settings) -> tuple[bool, str]:
    set_to = os.environ.get("OMP_NUM_THREADS", "not set")
    return True, f"{os.cpu_count()} processors, OMP_NUM_THREADS {set_to}; scripts are judged on one thread"


def _workspace(settings: Settings) -> tuple[bool, str]:
    workspace = settings.maybe_workspace()
    if workspace is None:
        return True, "none around this folder; `rerail start learn` makes one"
    progress = workspace.progress()
    if progress.warning:
        return False, progress.warning
    closed = [p for p in (workspace.folder, workspace.folder / ".rerail") if not os.access(p, os.W_OK)]
    if closed:
        return False, f"{closed[0]} cannot be written; chmod u+rwx {closed[0]}"
    free = shutil.disk_usage(workspace.folder).free
    if free < ROOM_BYTES:
        return False, f"{free >> 10} KB free in {workspace.folder}, where your progress is written; make room"
    missing = [e.name for e in settings.exercises() if not workspace.path(e).is_file()]
    if missing:
        return False, f"{missing[0]} has no script; `rerail reset {missing[0]}` writes it again"
    return True, str(workspace.folder)


def _disk(settings: Settings) -> tuple[bool, str]:
    folder = tempfile.gettempdir()
    free = shutil.disk_usage(folder).free
    good = free > NEEDED_BYTES
    what = f"{free >> 20} MB free in {folder}, {NEEDED_BYTES >> 20} MB are needed"
    return good, what if good else f"{what}; make room, or let TMPDIR name another place"


def _console(settings: Settings) -> tuple[bool, str]:
    return True, f"encoding {sys.stdout.encoding}, {'a terminal' if sys.stdout.isatty() else 'no terminal'}"


LOOKS: dict[str, Callable[[Settings], tuple[bool, str]]] = {
    "python": _python, "torch": _torch, "numpy": _numpy, "child": _child, "threads": _threads,
    "workspace": _workspace, "disk": _disk, "console": _console,
}  # fmt: skip
