"""The built site: whole, self-contained, and usable by everybody. `make book` builds it, and so does the first test."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
from bs4 import BeautifulSoup

ROOT = Path(__file__).resolve().parents[2]
SITE = ROOT / "_build/html"
LOADS = (("script", "src"), ("link", "href"), ("img", "src"), ("iframe", "src"), ("source", "src"))
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync"]  # fmt: skip
VARIANTS = [(width, scheme) for width in (1280, 390) for scheme in ("light", "dark")]


class Pages(dict[Path, BeautifulSoup]):
    """The parsed pages; a failing test does not print them all."""

    def __repr__(self) -> str:
        return f"{len(self)} pages"


@pytest.fixture(scope="session")
def pages() -> Pages:
    """Build the site (from its cache, where nothing changed) and parse every page."""
    done = subprocess.run([sys.executable, str(ROOT / "book/build.py")], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-3000:]
    found = sorted(path for path in SITE.rglob("*.html") if "_static" not in path.parts)
    return Pages({path: BeautifulSoup(path.read_text("utf-8"), "lxml") for path in found})


def named(pages: Pages) -> Iterator[tuple[str, Path, BeautifulSoup]]:
    for path, soup in pages.items():
        yield path.relative_to(SITE).as_posix(), path, soup


def test_every_expected_page_is_there(pages: Pages) -> None:
    names = {name for name, _, _ in named(pages)}
    sources = {f"{p.relative_to(ROOT / 'book').with_suffix('.html').as_posix()}" for p in (ROOT / "book").rglob("*.md")}

    assert {"index.html", "404.html", "search.html", "genindex.html"} <= names
    assert sources <= names, "a page that is in no table of contents is read by nobody"


def test_every_exercise_has_its_card_and_its_solution(pages: Pages) -> None:
    from rerail import course

    text = {name: soup for name, _, soup in named(pages)}
    for exercise in course.exercises():
        for prefix, folder in (("exercise", "lessons"), ("solution", "solutions")):
            anchor = f"{prefix}-{exercise.name.replace('_', '-')}"
            holders = [n for n, s in text.items() if s.find(id=anchor) or s.find(id=f"{prefix}-{exercise.name}")]
            assert holders == [f"{folder}/{exercise.lesson}.html"], anchor


def test_nothing_is_loaded_from_elsewhere(pages: Pages) -> None:
    for name, _, soup in named(pages):
        for tag, attribute in LOADS:
            for element in soup.find_all(tag):
                address = str(element.get(attribute) or "")
                foreign = address.startswith(("http:", "https:", "//")) and element.get("rel") != ["canonical"]
                assert not foreign, f"{name} loads {address}"


def test_internal_links_and_fragments_resolve(pages: Pages) -> None:
    for name, path, soup in named(pages):
        for tag, attribute in (*LOADS, ("a", "href")):
            for element in soup.find_all(tag):
                address = str(element.get(attribute) or "")
                parts = urlsplit(address)
                if not address or parts.scheme or parts.netloc or address.startswith("data:"):
                    continue
                target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
                target = target / "index.html" if target.is_dir() else target
                assert target.exists(), f"{name} links to {address}"
                if parts.fragment and target in pages:
                    assert pages[target].find(id=unquote(parts.fragment)), f"{name} links to {address}"


def test_images_have_a_text_that_is_no_file_name(pages: Pages) -> None:
    for name, _, soup in named(pages):
        for image in soup.find_all("img"):
            alt = str(image.get("alt") or "").strip()
            assert len(alt) > 10, f"{name}: {image.get('src')}"
            assert not re.search(r"[0-9a-f]{32}", alt), f"{name}: {alt}"


def test_no_path_of_the_building_machine_shows(pages: Pages) -> None:
    roots = {path.parts[1] for path in (ROOT, Path.home(), Path(tempfile.gettempdir()), Path(sys.prefix))}
    for name, _, soup in named(pages):
        text = soup.get_text()
        assert not re.findall(rf"/(?:{'|'.join(map(re.escape, roots))})/[\w./-]+", text), name


def test_titles_are_unique_and_the_footer_names_the_licences(pages: Pages) -> None:
    titles = [soup.title.get_text() for soup in pages.values() if soup.title]

    assert len(titles) == len(set(titles)) == len(pages)
    for name, _, soup in named(pages):
        footer = soup.find("footer", class_="bd-footer-content") or soup.find("footer")
        assert footer, name
        assert "MIT" in soup.get_text(), name
        assert "CC BY 4.0" in soup.get_text(), name


def test_no_address_of_an_object_shows(pages: Pages) -> None:
    """It would differ from build to build, and it means nothing to a reader."""
    for name, _, soup in named(pages):
        assert not re.search(r"\bat 0x[0-9a-f]{6,}", soup.get_text()), name


def test_no_cell_failed_unless_it_was_meant_to(pages: Pages) -> None:
    for name, _, soup in named(pages):
        for output in soup.select("div.cell:not(.tag_raises-exception) .output.traceback"):
            raise AssertionError(f"{name}: {output.get_text()[:300]}")


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=FLAGS)
        yield opened
        opened.close()


@pytest.mark.parametrize(("width", "scheme"), VARIANTS)
def test_pages_are_accessible_fit_and_ask_nobody(pages: Pages, browser: Any, width: int, scheme: str) -> None:
    from axe_playwright_python.sync_playwright import Axe

    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page = context.new_page()
    asked: list[str] = []
    page.on("request", lambda r: asked.append(r.url) if not r.url.startswith(("file:", "data:")) else None)
    found: dict[str, list[Any]] = {}
    for name, path, _ in named(pages):
        page.goto(path.as_uri())
        page.wait_for_timeout(100)
        wide = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        violations = Axe().run(page, options={"runOnly": RULES}).response["violations"]
        broken = [(v["id"], [node["target"] for node in v["nodes"]][:3]) for v in violations]
        if wide > 0 or broken:
            found[name] = [f"{wide} px too wide", broken]
    context.close()

    assert not asked
    assert not found


def test_tips_open_on_focus_and_close_with_escape(pages: Pages, browser: Any) -> None:
    path = next(path for path, soup in pages.items() if soup.select(".tip"))
    page = browser.new_page()
    page.goto(path.as_uri())
    tip = page.locator(".tip").first
    text = tip.locator(".tip-text")

    assert not text.is_visible()
    tip.locator("a").focus()
    assert text.is_visible()
    page.keyboard.press("Escape")
    assert not text.is_visible()
    page.close()


def test_a_finished_lesson_is_remembered(pages: Pages, browser: Any) -> None:
    lesson = next(path for path in pages if path.parent.name == "lessons")
    context = browser.new_context()
    page = context.new_page()
    page.goto(lesson.as_uri())
    page.locator(".finished input").focus()
    page.keyboard.press("Space")
    page.goto((SITE / "index.html").as_uri())
    page.goto(lesson.as_uri())

    assert page.locator(".finished input").is_checked()
    assert page.locator(".bd-sidebar-primary .tick").count() >= 1
    context.close()


def test_interactive_parts_work_by_keyboard_and_without_a_script(pages: Pages, browser: Any) -> None:
    plain = browser.new_context(java_script_enabled=False).new_page()
    scripted = browser.new_page()
    seen = 0
    for path, soup in pages.items():
        if soup.select(".recorded-run"):
            seen += 1
            plain.goto(path.as_uri())
            assert all(plain.locator(".recorded-why").nth(i).is_visible() for i in range(2))
            scripted.goto(path.as_uri())
            scripted.locator(".recorded-cause input").first.focus()
            scripted.keyboard.press("Space")
            assert scripted.locator(".recorded-why").first.is_visible()
            assert "You looked at 0 of" in scripted.locator(".recorded-run [role=status]").inner_text()
        if soup.select(".follow-the-tensor"):
            seen += 1
            plain.goto(path.as_uri())
            assert plain.locator(".follow-the-tensor tbody tr").last.is_visible()
            scripted.goto(path.as_uri())
            scripted.locator(".follow-the-tensor button").first.focus()
            scripted.keyboard.press("Enter")
            assert scripted.locator(".follow-the-tensor tr.ahead").count() > 0

    assert seen, "no page has an interactive part: this test would pass in vain"
