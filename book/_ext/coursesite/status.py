"""`build-status` and `outcomes`: tables about the build and about grading that are read from the running code."""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING, Any

from docutils import nodes
from sphinx.util.docutils import SphinxDirective

from coursesite.execution import PACKAGES, digest, version
from coursesite.markdown import parsed, table
from rerail import report
from rerail.briefs import plain

if TYPE_CHECKING:
    from sphinx.application import Sphinx
    from sphinx.environment import BuildEnvironment

OUTCOMES = {
    "pass": "Every check holds on every case.",
    "not yet": "The code ran or should have run, and something about it is not right yet; the report says what.",
    "blocked": "The environment kept the check from running: nothing was judged, and it is not your fault.",
    "defect": "The course itself has a bug: nothing was judged, and it is not your fault.",
}


class StatusTable(nodes.General, nodes.Element):
    """The place of the table, which is known only when all pages have been executed."""


def setup(app: Sphinx) -> None:
    """Register both directives."""
    app.add_node(StatusTable)
    app.add_directive("build-status", BuildStatus)
    app.add_directive("outcomes", Outcomes)
    app.connect("env-updated", pages_with_status)
    app.connect("doctree-resolved", resolve)


class Outcomes(SphinxDirective):
    """The outcomes of a check and the exit codes of the command, as `rerail.report` has them."""

    def run(self) -> list[nodes.Node]:
        """Build the table; an outcome without an explanation here breaks the build."""
        missing = report.EXIT_CODES.keys() ^ OUTCOMES.keys()
        if missing:
            raise self.error(f"the outcomes {sorted(missing)} are explained here or exist in rerail.report, not both")
        rows = [[f"`{name}`", str(number), plain(OUTCOMES[name])] for name, number in report.EXIT_CODES.items()]
        return parsed(self, table(("Outcome", "Exit code", "What it means"), rows, "15 15 70"))


class BuildStatus(SphinxDirective):
    """Which pages were executed, and with what. Without times: two builds of one state are byte for byte the same."""

    def run(self) -> list[nodes.Node]:
        """Leave the places to be filled."""
        self.env.metadata[self.env.docname]["shows-build-status"] = True
        return [StatusTable()]


def pages_with_status(app: Sphinx, env: BuildEnvironment) -> list[str]:
    """Write the page again in every build."""
    return [page for page, data in env.metadata.items() if data.get("shows-build-status")]


def resolve(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Fill the table."""
    for place in list(doctree.findall(StatusTable)):
        versions = [("Python", platform.python_version()), *((name, version(name)) for name in PACKAGES)]
        made_with = [[nodes.Text(name), nodes.literal(text=text)] for name, text in versions]
        made_with.append([nodes.Text("state of the code"), nodes.literal(text=digest())])
        place.replace_self([_table(("Page", "Executed"), _pages(app, docname)), _table(("Made with", ""), made_with)])


def _pages(app: Sphinx, docname: str) -> list[list[nodes.Node]]:
    collected: dict[str, Any] = getattr(app.env, "nb_metadata", {})
    rows: list[list[nodes.Node]] = []
    for page in sorted(app.env.found_docs):
        run = collected.get(page, {}).get("exec_data")
        state = "no code on it" if not run else "yes, without error" if run.get("succeeded") else "stopped by an error"
        link = nodes.reference("", app.env.titles[page].astext(), refuri=app.builder.get_relative_uri(docname, page))
        rows.append([link, nodes.Text(state)])
    return rows


def _table(header: tuple[str, ...], rows: list[list[nodes.Node]]) -> nodes.table:
    group = nodes.tgroup("", *(nodes.colspec(colwidth=1) for _ in header), cols=len(header))
    group += nodes.thead("", _row([nodes.Text(name) for name in header]))
    group += nodes.tbody("", *map(_row, rows))
    return nodes.table("", group, classes=["colwidths-auto"])


def _row(cells: list[nodes.Node]) -> nodes.row:
    return nodes.row("", *(nodes.entry("", nodes.paragraph("", "", cell)) for cell in cells))
