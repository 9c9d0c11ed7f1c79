"""The role `tip`: a glossary term whose definition shows on hover and focus; without a script, a link to it."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING

from docutils import nodes
from sphinx import addnodes
from sphinx.util.docutils import SphinxRole

if TYPE_CHECKING:
    from sphinx.application import Sphinx

GLOSSARY = "glossary"  # the page with the definitions
LIMIT = 320  # characters: a tip is read in one glance


def setup(app: Sphinx) -> None:
    """Register the role and what adds the definitions."""
    app.add_role("tip", Tip())
    app.connect("doctree-resolved", add_definitions)


class Tip(SphinxRole):
    """A reference to a term that remembers where its definition goes."""

    def run(self) -> tuple[list[nodes.Node], list[nodes.system_message]]:
        """Accept both forms that {term} accepts: `term` and `text <term>`."""
        text, _, rest = self.text.partition("<")
        term = rest.rstrip("> ") or text
        link = addnodes.pending_xref(
            "",
            nodes.inline(text=text.strip()),
            refdomain="std",
            reftype="term",
            reftarget=term.strip(),
            refdoc=self.env.docname,
            refexplicit=bool(rest),
            refwarn=True,
        )
        link.source, link.line = self.get_source_info()
        self.env.note_dependency(self.env.doc2path(GLOSSARY))
        return [nodes.inline("", "", link, classes=["tip"], term=term.strip())], []


def add_definitions(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Put each definition behind its link; ids count up, so that two builds are the same."""
    tips = list(doctree.findall(lambda node: isinstance(node, nodes.inline) and "tip" in node["classes"]))
    if not tips:
        return
    meaning = definitions(app)
    for number, tip in enumerate(tips, 1):
        text, link = meaning.get(tip["term"].lower()), next(iter(tip.findall(nodes.reference)), None)
        if text and link is not None:
            tip.children = [nodes.raw("", _html(link["refuri"], link.astext(), text, f"tip-{number}"), format="html")]


def _html(address: str, shown: str, text: str, ident: str) -> str:
    link = f'<a class="reference internal" href="{html.escape(address)}" aria-describedby="{ident}">'
    meaning = f'<span class="tip-text" role="tooltip" id="{ident}">{html.escape(text)}</span>'
    return f"{link}{html.escape(shown)}</a>{meaning}"


def definitions(app: Sphinx) -> dict[str, str]:
    """Return the first paragraph of each definition of the glossary, by its term in lower case."""
    found: dict[str, str] = {}
    for item in app.env.get_doctree(GLOSSARY).findall(nodes.definition_list_item):
        paragraph = next(iter(item.findall(nodes.paragraph)), None)
        for term in item.findall(nodes.term):
            text = paragraph.astext() if paragraph is not None else ""
            found[term.astext().lower()] = text if len(text) <= LIMIT else f"{text[:LIMIT].rsplit(' ', 1)[0]} ..."
    return found
