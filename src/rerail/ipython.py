"""Short tracebacks in IPython and Jupyter: `%load_ext rerail.ipython`, then `%minify off` and `%minify on`."""

from __future__ import annotations

import sys
import traceback
from types import TracebackType
from typing import Any
from weakref import WeakKeyDictionary

from rerail.diagnostics.trace_reader import FRAME
from rerail.diagnostics.tracebacks import LIMIT, minify_traceback

BEFORE: WeakKeyDictionary[Any, tuple[Any, Any]] = WeakKeyDictionary()  # what handled exceptions, by shell


def load_ipython_extension(shell: Any) -> None:
    """Shorten the tracebacks of cells, and register `%minify`."""
    shell.register_magic_function(lambda line: _switch(shell, line), "line", "minify")
    _switch(shell, "on")


def unload_ipython_extension(shell: Any) -> None:
    """Show whole tracebacks again, and forget `%minify`."""
    _switch(shell, "off")
    shell.magics_manager.magics["line"].pop("minify", None)


def _switch(shell: Any, line: str) -> None:
    """Handle `%minify on` and `%minify off`; without either it says which one holds."""
    word = line.strip().lower()
    if word == "on":
        BEFORE.setdefault(shell, (shell.custom_exceptions, shell.CustomTB))
        shell.set_custom_exc((Exception,), _show)
    elif word == "off":
        if shell in BEFORE:
            shell.custom_exceptions, shell.CustomTB = BEFORE.pop(shell)
    else:
        print(f"minify is {'on' if shell in BEFORE else 'off'}; `%minify on` or `%minify off` changes it")


def _show(
    shell: Any, kind: type[BaseException], error: BaseException, trace: Any, tb_offset: int | None = None
) -> list[str] | None:
    """Print the short traceback; the whole one is shown by `%tb`. What is short already, IPython prints."""
    if _is_for_ipython(error):
        running = trace is not None and trace.tb_frame.f_code.co_name == "run_code"  # else the cell does not compile
        shell.showtraceback((kind, error, trace), tb_offset=tb_offset, running_compiled_code=running)
        return None
    sys.last_type, sys.last_value, sys.last_traceback = kind, error, trace
    whole = shell.InteractiveTB.structured_traceback(kind, error, trace, tb_offset=tb_offset)
    if len("\n".join(whole).splitlines()) < LIMIT:
        shell._showtraceback(kind, error, whole)
        return None
    text = "".join(traceback.format_exception(kind, error, _of_the_cell(trace, tb_offset or 1)))
    short = minify_traceback("\n".join(_named(shell, line) for line in text.splitlines()))
    shell._showtraceback(kind, error, [f"{short.rstrip()}\n(%tb shows the whole traceback)"])
    return None


def _is_for_ipython(error: BaseException) -> bool:
    """Tell what IPython prints in its own short way: wrong syntax, wrong magics, exceptions that print themselves."""
    return (
        isinstance(error, SyntaxError) or type(error).__name__ == "UsageError" or hasattr(error, "_render_traceback_")
    )


def _of_the_cell(trace: TracebackType | None, offset: int) -> TracebackType | None:
    """Leave out the frames of IPython that run a cell."""
    inner = trace
    for _ in range(offset):
        inner = inner.tb_next if inner is not None else None
    return inner or trace


def _named(shell: Any, line: str) -> str:
    """Write `Cell In[3]` for the file that a notebook made of a cell."""
    found = FRAME.match(line)
    name = (
        shell.compile.format_code_name(found.group(1)) if found and hasattr(shell.compile, "format_code_name") else ""
    )
    return line.replace(f'"{found.group(1)}"', f'"{" ".join(name)}"', 1) if found and name else line
