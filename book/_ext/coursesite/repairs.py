"""
Repairs of the theme's HTML, made at build time, so that they hold without a script.

Each entry names the complaint that it answers (axe-core's rule); `tests/site` demands that none is left.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sphinx.application import Sphinx

REPAIRS = [
    # aria-required-children: the list of references has no items that a list may have; the role is deprecated, too
    (r'role="doc-biblioentry"', 'role="listitem"'),
]


def setup(app: Sphinx) -> None:
    """Connect to the end of the build."""
    app.connect("build-finished", repair_all)


def repair_all(app: Sphinx, error: Exception | None) -> None:
    """Repair every page; a page that was repaired before stays as it is."""
    if error is None and app.builder.format == "html":
        for page in sorted(Path(app.outdir).glob("**/*.html")):
            old = page.read_text("utf-8")
            new = repaired(old)
            if new != old:
                page.write_text(new, "utf-8")


def repaired(html: str) -> str:
    """Return a page with all repairs; applying it twice changes nothing more."""
    for pattern, replacement in REPAIRS:
        html = re.sub(pattern, replacement, html)
    return html
