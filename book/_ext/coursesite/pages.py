"""What concerns the whole site: its address, the page for a wrong address, and that no maths renderer is loaded."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from docutils import nodes
    from sphinx.application import Sphinx
    from sphinx.config import Config
    from sphinx.writers.html5 import HTML5Translator

BASE_URL = "BOOK_BASE_URL"  # the environment variable that `build.py --base-url` sets
NOT_FOUND = "404"


def setup(app: Sphinx) -> None:
    """Connect to the reading of the settings and to the end of the build."""
    app.add_html_math_renderer("plain", (_maths, _leave), (_maths, _leave))
    app.connect("config-inited", set_address, priority=100)
    app.connect("config-inited", include_not_found, priority=950)  # after the TOC has excluded all that it lacks
    app.connect("build-finished", free_not_found)


def set_address(app: Sphinx, config: Config) -> None:
    """Let the environment say where the site will stand: it differs between a preview and the real place."""
    config.html_baseurl = with_slash(os.environ.get(BASE_URL) or config.html_baseurl)


def with_slash(address: str) -> str:
    """Return an address that ends with a slash, as every link that is resolved against it needs."""
    return address if not address or address.endswith("/") else f"{address}/"


def include_not_found(app: Sphinx, config: Config) -> None:
    """Build 404.md although it is in no table of contents: nobody goes there on purpose."""
    config.exclude_patterns[:] = [pattern for pattern in config.exclude_patterns if pattern != f"{NOT_FOUND}.md"]


def free_not_found(app: Sphinx, error: Exception | None) -> None:
    """
    Make the links of 404.html independent of where it is served from.

    A server sends this page for any missing address, however deep, so its links start at the site's folder. Without
    a base URL they stay relative, and the page can be opened as a file like any other.
    """
    page = Path(app.outdir) / f"{NOT_FOUND}.html"
    if error is None and app.config.html_baseurl and page.exists():
        folder = urlsplit(app.config.html_baseurl).path or "/"
        page.write_text(rooted(page.read_text("utf-8"), folder), "utf-8")


def rooted(html: str, folder: str) -> str:
    """Put the site's folder before every relative address of a page that lies at the site's root."""
    attributes = r'(\s(?:href|src|action|data-content_root)=")(?!#|/|[a-z][a-z0-9+.-]*:)(?:\./)*([^"]*)"'
    return re.sub(attributes, rf'\g<1>{folder}\g<2>"', html)


def _maths(translator: HTML5Translator, node: nodes.Element) -> None:
    translator.body.append(f'<code class="maths">{translator.encode(node.astext())}</code>')
    from docutils import nodes as docutils_nodes

    raise docutils_nodes.SkipNode


def _leave(translator: HTML5Translator, node: nodes.Element) -> None:
    """Do nothing: the node was skipped."""
