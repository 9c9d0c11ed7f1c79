"""A brief as Markdown: menus and lists stay lists, text stays text."""

from __future__ import annotations

from rerail import course
from rerail.briefs import markdown

BRIEF = """Two runs, one curve.

Each has [N, 1] rows.

SUSPECTS. Five of them.
  cut   the loss is a plain number
  slow  a rate of 1e-8,
        or of 1e-9

Task: name three.
- Each changes one thing,
  and is cheap.
- Each is new.
Any three are right.
  look  units  all are 0

Graded: `ANSWER`.

Run it: python exercises/01_symptom/two.py
"""


def test_a_brief_keeps_its_lists_and_its_menus() -> None:
    assert markdown(BRIEF) == [
        r"Each has \[N, 1\] rows.",
        "",
        "SUSPECTS. Five of them.",
        "",
        "- `cut`: the loss is a plain number",
        "- `slow`: a rate of 1e-8, or of 1e-9",
        "",
        "**Task:** name three.",
        "",
        "- Each changes one thing, and is cheap.",
        "- Each is new.",
        "",
        "Any three are right.",
        "",
        "- `look`, units: all are 0",
        "",
        "**Graded:** `ANSWER`.",
        "",
    ]


def test_no_word_of_a_brief_is_lost() -> None:
    """What a learner reads on the page is what stands in the script, but for the line that runs it."""
    for exercise in course.exercises():
        words = exercise.brief.partition("\n")[2].split("Run it:")[0].replace(" - ", " ").split()
        shown = "\n".join(markdown(exercise.brief))
        for mark in ("\\", "`", "*", ":", ","):
            shown = shown.replace(mark, "")
        there = set(shown.split())
        bare = [word.translate(dict.fromkeys(map(ord, "`\\*:,"))) for word in words]
        assert [word for word in bare if word not in there and word != "-"] == []
