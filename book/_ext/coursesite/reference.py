"""
`reference` and `causes`: the reference pages, read from the docstrings and the causes of `rerail.diagnostics`.

Autodoc reads docstrings as reStructuredText; these are Markdown, like every other text of the course, and are parsed
as the pages are.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
import textwrap
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from docutils import nodes
from sphinx.util.docutils import SphinxDirective

from coursesite.markdown import code, parsed
from rerail.briefs import plain

if TYPE_CHECKING:
    from sphinx.application import Sphinx

SECTIONS = ("Args", "Attributes", "Returns", "Raises", "Source", "Example")
WIDTH = 76  # of a signature on one line


def setup(app: Sphinx) -> None:
    """Register both directives."""
    app.add_directive("reference", Reference)
    app.add_directive("causes", Causes)


class Reference(SphinxDirective):
    """The signature and the docstring of a public name, `rerail.NAME` or `MODULE.NAME`."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Find the name; one that does not exist breaks the build."""
        name = self.arguments[0]
        module, _, short = name.rpartition(".")
        try:
            thing = getattr(importlib.import_module(module or "rerail"), short)
        except (ImportError, AttributeError) as error:
            raise self.error(f"there is no {name}: {error}") from error
        self.env.note_dependency(inspect.getsourcefile(inspect.unwrap(thing)) or "")
        return parsed(self, [*_signature(f"{module or 'rerail'}.{short}", thing), *_docstring(thing, short)])


class Causes(SphinxDirective):
    """All causes of one layer, with the next check, what would refute them, and what is no repair."""

    required_arguments = 1
    final_argument_whitespace = True

    def run(self) -> list[nodes.Node]:
        """Build the list, in the order of the identifiers."""
        lines = []
        for cause in causes():
            if cause.layer == self.arguments[0]:
                lines += [f"`{cause.ident}`", f": Next: {plain(cause.next)}."]
                lines += ["", f"  Wrong if: {plain(cause.refute)}."] if cause.refute else []
                fixes = "; ".join(cause.wrong_fixes)
                lines += ["", f"  No repair: {plain(fixes)}."] if fixes else []
                lines += [""]
        if not lines:
            raise self.error(f"no cause belongs to the layer {self.arguments[0]!r}")
        return parsed(self, lines)


def causes() -> list[Any]:
    """Return every cause that a module of the diagnostics declares, by identifier."""
    import rerail.diagnostics
    import rerail.lightning
    from rerail.diagnostics.finding import Cause

    modules = [importlib.import_module(f"rerail.diagnostics.{each.name}") for each in _modules(rerail.diagnostics)]
    found: dict[str, Cause] = {}
    for module in [*modules, rerail.lightning]:
        for value in vars(module).values():
            for each in value.values() if isinstance(value, dict) else [value]:
                if isinstance(each, Cause):
                    found[each.ident] = each
    return [found[ident] for ident in sorted(found)]


def _modules(package: Any) -> Iterator[Any]:
    yield from pkgutil.iter_modules(package.__path__)


def _signature(name: str, thing: Any) -> list[str]:
    try:
        signature = inspect.signature(thing)
    except (TypeError, ValueError):
        return code(name, "python")
    parts = [
        re.sub(r"'([^']*)'", r"\1", str(each), count=1) for each in signature.parameters.values() if each.name != "self"
    ]
    bare = [each for each in signature.parameters.values() if each.name != "self"]
    if any(each.kind is inspect.Parameter.KEYWORD_ONLY for each in bare):
        parts.insert(next(at for at, each in enumerate(bare) if each.kind is inspect.Parameter.KEYWORD_ONLY), "*")
    given = "" if inspect.isclass(thing) or signature.return_annotation is inspect.Signature.empty else (
        f" -> {str(signature.return_annotation).strip(chr(39))}"
    )  # fmt: skip
    line = f"{name}({', '.join(parts)}){given}"
    if len(line) > WIDTH:
        line = "\n".join([f"{name}(", *(f"    {part}," for part in parts), f"){given}"])
    return code(line, "python")


def _docstring(thing: Any, name: str) -> Iterator[str]:
    text = inspect.getdoc(thing) or ""
    pieces = re.split(rf"^({'|'.join(SECTIONS)}):\n", text, flags=re.M)
    yield pieces[0].strip()
    yield ""
    for title, body in zip(pieces[1::2], pieces[2::2], strict=True):
        body = textwrap.dedent(body).strip("\n")
        if title in ("Args", "Attributes", "Raises"):
            yield from _entries("Arguments" if title == "Args" else title, body)
        elif title == "Example":
            yield from (body, "")
        else:
            yield from (f"*{title}:* {' '.join(body.split())}", "")


def _entries(title: str, body: str) -> Iterator[str]:
    """Turn `name: text` lines into a definition list."""
    yield from (f"*{title}*", "")
    for entry in re.split(r"\n(?=\S)", body):
        name, _, says = entry.partition(":")
        yield from (f"`{name.strip()}`", f": {' '.join(says.split())}", "")
