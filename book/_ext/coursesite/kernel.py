"""
What every kernel of the book starts with: short tracebacks, short warnings, one figure style. An IPython extension.

`coursesite.execution` writes the profile that loads it, so a page needs no hidden first cell.
"""

from __future__ import annotations

import linecache
import re
import traceback
import warnings
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

from coursesite import style

# torch appends the place in its C++ source to some messages: a path of the machine that built the wheel
TRIGGERED = re.compile(r"\s*\(Triggered internally at .*\)", re.S)


def load_ipython_extension(shell: Any) -> None:
    """Set up a kernel of the book."""
    shell.set_custom_exc((Exception,), show_traceback)
    warnings.formatwarning = short_warning
    style.apply()


def short_warning(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
) -> str:
    """Format a warning as its kind and its message: the file is a path of the machine that built the page."""
    return f"{category.__name__}: {TRIGGERED.sub('', str(message)).strip()}\n"


def show_traceback(
    shell: Any, kind: type[BaseException], error: BaseException, tb: TracebackType | None, tb_offset: int | None = None
) -> list[str]:
    """Print a traceback with the reader's own lines; what libraries did in between is one line."""
    lines = short_traceback(shell, kind, error, tb)
    shell._showtraceback(kind, error, lines)
    return lines


def short_traceback(shell: Any, kind: type[BaseException], error: BaseException, tb: TracebackType | None) -> list[str]:
    """Return the lines of a traceback without any path: cells by number, files of the course by name."""
    cells = getattr(shell.compile, "_filename_map", {})
    lines, folded = ["Traceback (most recent call last)"], []
    for frame, number in traceback.walk_tb(tb):
        where = _place(frame, cells)
        if where:
            lines += [_fold(folded)] if folded else []
            folded = []
            lines += [f"{where}, line {number}, in {frame.f_code.co_name}"]
            lines += [f"----> {linecache.getline(frame.f_code.co_filename, number).strip()}"]
        elif _module(frame).split(".")[0] != "IPython":
            folded.append(frame)
    lines += [_fold(folded)] if folded else []
    message = TRIGGERED.sub("", "".join(traceback.format_exception_only(kind, error)).rstrip())
    return [*lines, message]


def _place(frame: FrameType, cells: dict[str, Any]) -> str:
    """Name the reader's own frames: a cell, or a script of the course; nothing for a library's."""
    name = frame.f_code.co_filename
    if name in cells:
        return f"Cell In[{cells[name]}]"
    parts = Path(name).parts
    for tree in ("exercises", "solutions"):
        if tree in parts and "site-packages" not in parts:
            return "/".join(parts[len(parts) - 1 - parts[::-1].index(tree) :])
    return "Cell" if _module(frame) == "__main__" else ""


def _fold(frames: list[FrameType]) -> str:
    last = frames[-1]
    library = _module(last).split(".")[0]
    plural = "frame" if len(frames) == 1 else "frames"
    return f"  ... {len(frames)} {plural} inside {library}, the last in {_module(last)}.{last.f_code.co_qualname} ..."


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", "?"))
