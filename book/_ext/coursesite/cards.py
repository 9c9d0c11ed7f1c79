"""Exercises on pages: `exercise-card` and `exercise-list`, both read from the files of the course."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from docutils import nodes
from sphinx.util.docutils import SphinxDirective

from coursesite.markdown import parsed
from rerail import briefs, course
from rerail.briefs import plain

if TYPE_CHECKING:
    from sphinx.application import Sphinx
    from sphinx.environment import BuildEnvironment

COURSE = "BOOK_COURSE"  # an environment variable: another folder with the three trees, for tests of this extension
# What one looks for first in a list is how long it takes; an exercise's grader may say DIFFICULTY otherwise.
EFFORT = ((8, "short"), (14, "medium"))


class LessonLink(nodes.Inline, nodes.TextElement):
    """The place of a link to the page with an exercise's card: known only when all pages have been read."""


def setup(app: Sphinx) -> None:
    """Register both directives and what links them."""
    app.add_node(LessonLink)
    app.add_directive("exercise-card", ExerciseCard)
    app.add_directive("exercise-list", ExerciseList)
    app.connect("env-purge-doc", forget)
    app.connect("env-merge-info", merge)
    app.connect("env-updated", pages_with_links)
    app.connect("doctree-resolved", resolve)


def trees() -> Path | None:
    """Return the folder of the three trees; None is the course itself."""
    return Path(os.environ[COURSE]) if os.environ.get(COURSE) else None


def exercise_of(directive: SphinxDirective) -> course.Exercise:
    """Find the exercise that a directive names by its full name, and rebuild the page when its files change."""
    name = directive.arguments[0]
    found = {exercise.name: exercise for exercise in course.exercises(trees())}
    if name not in found:
        raise directive.error(f"no exercise is called {name!r}; there are {', '.join(sorted(found)) or 'none'}")
    for tree in course.TREES:
        directive.env.note_dependency(str(found[name].path(tree)))
    return found[name]


def anchored(directive: SphinxDirective, kind: str, exercise: course.Exercise, title: str) -> nodes.container:
    """Return a box with the anchor `kind-NAME`, which {ref} and `LessonLink` find."""
    label = f"{kind}-{exercise.name}"
    box = nodes.container(classes=[kind], ids=[label.replace("_", "-"), label], names=[])
    places = _places(directive.env, kind)
    if exercise.name in places and places[exercise.name] != directive.env.docname:
        raise directive.error(f"{exercise.name!r} stands in {places[exercise.name]} already; one {kind} each")
    places[exercise.name] = directive.env.docname
    domain = directive.env.get_domain("std")
    domain.anonlabels[label] = (directive.env.docname, label)  # type: ignore[attr-defined]
    domain.labels[label] = (directive.env.docname, label, title)  # type: ignore[attr-defined]
    return box


class ExerciseCard(SphinxDirective):
    """The card of an exercise: what one sees, what to do, how to start."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Build the card from the header of the script and the head of the grader."""
        exercise = exercise_of(self)
        box = anchored(self, "exercise", exercise, exercise.title)
        box += parsed(self, self.head(exercise))
        box += parsed(self, briefs.markdown(exercise.brief))
        box += parsed(self, ["```{code-block} console", *commands(exercise), "```"])
        solution = nodes.paragraph(classes=["exercise-solution"])
        solution += LessonLink(kind="solution", exercise=exercise.name, shown="Solution, accepted repairs and traps")
        box += solution
        return [box]

    def head(self, exercise: course.Exercise) -> list[str]:
        """Return the title and the line of facts."""
        meta = exercise.meta
        points = f"{meta['POINTS']} point{'' if meta['POINTS'] == 1 else 's'}"
        facts = [f"{meta['MINUTES']} minutes", points, f"layer: {meta['LAYER']}"]
        facts += [f"needs {', '.join(meta['REQUIRES'])}"] if meta["REQUIRES"] else []
        file = f"`exercises/{exercise.lesson}/{exercise.name}.py`"
        return [
            "{.exercise-title}",
            f"Exercise {exercise.number} · {plain(exercise.title)}",
            "",
            "{.exercise-facts}",
            f"{' · '.join(facts)} · {file}",
            "",
        ]


def commands(exercise: course.Exercise) -> list[str]:
    """Return what a learner types, in the order in which it is typed."""
    return [f"$ rerail show {exercise.name}", f"$ rerail check {exercise.name}"]


def difficulty(exercise: course.Exercise) -> str:
    """Return what the grader says, or else how much time is planned for it, as a word."""
    stated = exercise.meta.get("DIFFICULTY")
    return str(stated) if stated else next((word for most, word in EFFORT if exercise.meta["MINUTES"] <= most), "long")


class ExerciseList(SphinxDirective):
    """The table of all exercises of the course."""

    def run(self) -> list[nodes.Node]:
        """Build the table; the links to the lessons are filled in when all pages have been read."""
        everything = course.exercises(trees())
        self.env.metadata[self.env.docname]["links-to-exercises"] = True
        for exercise in everything:
            self.env.note_dependency(str(exercise.path("graders")))
            self.env.note_dependency(str(exercise.path("exercises")))
        if not everything:
            return [nodes.paragraph(text="There is no exercise yet.")]
        header = ("No.", "Name", "Symptom", "Lesson", "Minutes", "Points", "Effort")
        rows = [self.row(exercise) for exercise in everything]
        count, minutes = len(rows), sum(exercise.meta["MINUTES"] for exercise in everything)
        points = sum(exercise.meta["POINTS"] for exercise in everything)
        total = f"{count} exercise{'' if count == 1 else 's'}, {minutes} minutes, {points} points in all."
        return [nodes.paragraph(text=total), _table(header, rows)]

    def row(self, exercise: course.Exercise) -> list[list[nodes.Node]]:
        """Return the cells of one exercise."""
        card = LessonLink(kind="exercise", exercise=exercise.name, shown=exercise.title)
        lesson = LessonLink(kind="page", exercise=exercise.name, shown=exercise.lesson.replace("_", " "))
        meta = exercise.meta
        texts = (str(meta["MINUTES"]), str(meta["POINTS"]), difficulty(exercise))
        return [
            [nodes.Text(exercise.number)],
            [nodes.literal(text=exercise.name)],
            [card],
            [lesson],
            *([nodes.Text(text)] for text in texts),
        ]


def _table(header: tuple[str, ...], rows: list[list[list[nodes.Node]]]) -> nodes.Node:
    group = nodes.tgroup(cols=len(header))
    group += [nodes.colspec(colwidth=1) for _ in header]
    head, body = nodes.thead(), nodes.tbody()
    head += _row([[nodes.Text(name)] for name in header])
    body += [_row(row) for row in rows]
    group += [head, body]
    return nodes.table("", group, classes=["exercises", "colwidths-auto"])


def _row(cells: list[list[nodes.Node]]) -> nodes.row:
    return nodes.row("", *(nodes.entry("", nodes.paragraph("", "", *cell)) for cell in cells))


def _places(env: BuildEnvironment, kind: str) -> dict[str, str]:
    if not hasattr(env, "coursesite_places"):
        env.coursesite_places = {"exercise": {}, "solution": {}}  # type: ignore[attr-defined]
    return env.coursesite_places[kind]  # type: ignore[attr-defined,no-any-return]


def forget(app: Sphinx, env: BuildEnvironment, docname: str) -> None:
    """Drop what a page held before it is read again."""
    for kind in ("exercise", "solution"):
        places = _places(env, kind)
        for name in [name for name, page in places.items() if page == docname]:
            del places[name]


def merge(app: Sphinx, env: BuildEnvironment, docnames: list[str], other: BuildEnvironment) -> None:
    """Take over what a parallel reader found."""
    for kind in ("exercise", "solution"):
        _places(env, kind).update({name: page for name, page in _places(other, kind).items() if page in docnames})


def pages_with_links(app: Sphinx, env: BuildEnvironment) -> list[str]:
    """Write every page again that links to cards or solutions: they may have moved while the page stayed."""
    lists = [page for page, data in env.metadata.items() if data.get("links-to-exercises")]
    return sorted({*lists, *_places(env, "exercise").values()})


def resolve(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Turn each `LessonLink` into a link, or into its text where no page has the card; drop empty solution lines."""
    for link in list(doctree.findall(LessonLink)):
        kind = "solution" if link["kind"] == "solution" else "exercise"
        page = _places(app.env, kind).get(link["exercise"])
        text = link["shown"]
        if page is None:
            if kind == "solution":
                link.parent.parent.remove(link.parent)
            else:
                link.replace_self(nodes.Text(text))
            continue
        uri = app.builder.get_relative_uri(docname, page)
        if link["kind"] == "page":
            text = app.env.titles[page].astext()
        else:
            uri += f"#{kind}-{link['exercise']}"
        link.replace_self(nodes.reference("", "", nodes.Text(text), refuri=uri, internal=True))
