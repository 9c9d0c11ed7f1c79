"""Short tracebacks in IPython and Jupyter: `%load_ext rerail.ipython`, then `%minify off` and `%minify on`."""

from __future__ import annotations

import sys
from typing import Any

from rerail.diagnostics.tracebacks import minify_traceback


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
        shell.set_custom_exc((Exception,), _show)
    elif word == "off":
        shell.set_custom_exc((), None)
    else:
        print(
            "minify is " + ("on" if shell.custom_exceptions else "off") + "; `%minify on` or `%minify off` changes it"
        )


def _show(
    shell: Any, kind: type[BaseException], error: BaseException, trace: Any, tb_offset: int | None = None
) -> list[str]:
    """Print the short traceback; the whole one is shown by `%tb`."""
    whole = shell.InteractiveTB.structured_traceback(kind, error, trace, tb_offset=tb_offset)
    sys.last_type, sys.last_value, sys.last_traceback = kind, error, trace
    short = minify_traceback(shell.InteractiveTB.stb2text(whole)).splitlines()
    shell._showtraceback(kind, error, [*short, "(%tb shows the whole traceback)"])
    return [*short]
