"""Text of the course as markdown: what the directives of this extension generate is parsed like a page."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from docutils import nodes
    from sphinx.util.docutils import SphinxDirective


def parsed(directive: SphinxDirective, lines: Iterable[str]) -> list[nodes.Node]:
    """Parse generated markdown in the place of a directive."""
    from docutils import nodes as docutils_nodes
    from docutils.statemachine import StringList

    holder = docutils_nodes.container()
    text = "\n".join(lines).splitlines()
    directive.state.nested_parse(StringList(text, source=directive.env.docname), directive.content_offset, holder)
    return holder.children


def code(text: str, language: str) -> list[str]:
    """Return a code block; the fence is longer than any in the text."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(4, longest + 1)
    return [f"{fence}{{code-block}} {language}", *text.rstrip("\n").split("\n"), fence, ""]


def table(header: Sequence[str], rows: Iterable[Sequence[str]], widths: str = "auto") -> list[str]:
    """Return a list table; each cell is markdown of one paragraph."""
    lines = ["`````{list-table}", ":header-rows: 1", f":widths: {widths}", ""]
    for row in [header, *rows]:
        for column, cell in enumerate(row):
            lines.append(f"{'* - ' if column == 0 else '  - '}{cell}")
    return [*lines, "`````", ""]


def fold(title: str, lines: Iterable[str]) -> list[str]:
    """Return lines that a reader opens."""
    return [f"```````{{dropdown}} {title}", "", *lines, "```````", ""]
