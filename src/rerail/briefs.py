"""The brief of an exercise as Markdown: the same text for the cards of the book and for notebooks."""

from __future__ import annotations

import re

SPECIAL = re.compile(r"([\\*_\[\]<>{}$|#~^])")
CODE = re.compile(r"(`[^`\n]+`)")
LABEL = re.compile(r"(Task|Graded):\s*")
RUN = re.compile(r"\s*\bRun it: \S.*")
TEXT, ITEM, ROW = "text", "item", "row"


def markdown(brief: str) -> list[str]:
    """
    Return the header of a script as lines of Markdown, without its title and without the command that runs it.

    Lines that begin with "- " are items of a list; indented lines of two or three columns, which two spaces or
    more part, are rows of a menu; one that is indented further goes on with the row above.
    """
    lines: list[str] = []
    for part in re.split(r"\n\s*\n", RUN.sub("", brief.partition("\n")[2]).strip("\n")):
        blocks: list[list[str]] = []
        for line in part.split("\n"):
            last = blocks[-1][0] if blocks else ""
            kind = ITEM if line.startswith("- ") else TEXT if line[:2].strip() else ROW
            goes_on = (kind == TEXT == last and not LABEL.match(line)) or (kind == ROW and last == ITEM)
            if goes_on or (kind == ROW == last and line.startswith("   ")):
                blocks[-1].append(line.strip())
            else:
                blocks.append([kind, line])
        before = ""
        for kind, *texts in blocks:
            if before in ("", TEXT) or kind == TEXT:
                lines += [""]
            lines += [_shown(kind, " ".join(texts))]
            before = kind
    return [*lines[1:], ""]


def plain(text: str) -> str:
    """Escape a text so that Markdown shows it as it stands; what is in backticks stays code."""
    parts = CODE.split(" ".join(text.split()))
    return "".join(part if CODE.fullmatch(part) else SPECIAL.sub(r"\\\1", part).replace("`", "\\`") for part in parts)


def _shown(kind: str, text: str) -> str:
    if kind == ITEM:
        return f"- {plain(text[2:])}"
    if kind == ROW:
        name, *between, meaning = re.split(r"\s{2,}", text.strip())
        return f"- {', '.join([f'`{name}`', *between])}: {plain(meaning)}"
    label = LABEL.match(text)
    return f"**{label[1]}:** {plain(text[label.end() :])}" if label else plain(text)
