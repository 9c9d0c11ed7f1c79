"""
The book's own Sphinx extension: cards and solutions from the course's files, tips, build status, repairs of the theme.

For page authors
----------------
A lesson that runs code starts with

    ---
    jupytext: {text_representation: {extension: .md, format_name: myst}}
    kernelspec: {name: python3, display_name: Python 3}
    ---

and needs no hidden first cell: `coursesite.kernel` is loaded into every kernel (one thread, figure style, short
tracebacks, short warnings, and `import coursesite`). Everything printed comes from a cell; a cell that is meant to
raise is tagged `raises-exception`, any other error breaks the build.

    ```{exercise-card} NAME        the card of an exercise; anchor exercise-NAME
    ```{solution-of} NAME          diff, reason, accepted repairs, traps; anchor solution-NAME
    ```{exercise-list}             the table of all exercises
    ```{outcomes}                  the table of outcomes and exit codes, from the package
    ```{build-status}              which pages were executed, with which versions
    ```{reference} NAME            signature and docstring of a public name of rerail
    ```{causes} LAYER              all causes of a layer
    ```{detection} PART            totals, faults, checks or healthy, of the detection matrix
    {tip}`leakage`                 a glossary term with a tip; also {tip}`leaks <leakage>`

Link to a card with {ref}`the exercise <exercise-NAME>`. In cells, as the last expression:

    from coursesite.tensors import FollowTheTensor
    from coursesite.recorded import RecordedRun

Every figure has alt text (`mystnb: {image: {alt: ...}}` at the head of the cell). Real files are shown with
`literalinclude`, never pasted. No maths markup: formulas are code. No task lists: their boxes have no labels.

Each part lies in a module of its own; this file only connects them, and imports Sphinx only when asked to set up,
so that a kernel can import `coursesite.tensors` without it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sphinx.application import Sphinx


def setup(app: Sphinx) -> dict[str, Any]:
    """Connect all parts to a Sphinx application."""
    from coursesite import cards, detection, execution, pages, reference, repairs, solutions, status, tips

    for part in (execution, pages, cards, solutions, status, reference, detection, tips, repairs):
        part.setup(app)
    return {"version": "1", "env_version": 1, "parallel_read_safe": True, "parallel_write_safe": True}
