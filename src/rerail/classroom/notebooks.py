"""An exercise as a notebook: its brief, its script in an ordinary cell, and one locked cell that judges it.

The notebook is built from what learners get, the shipped script and the points; nothing of the solution or the grader
can reach it. It is written as plain JSON, so that making a course needs no package of the classroom.
"""

from __future__ import annotations

import json
from typing import Any

from rerail import briefs
from rerail.course import Exercise

Cell = dict[str, Any]  # JSON, as the notebook format 4.5 has it

KERNEL = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}


def notebook(exercise: Exercise) -> dict[str, Any]:
    """Return an exercise as a notebook, the same one on every call."""
    cells = [
        _markdown("brief", _brief(exercise)),
        _code("setup", "%load_ext rerail.notebook"),
        _code("script", f"%%exercise {exercise.name}\n{exercise.shipped.decode().rstrip()}"),
        *([] if exercise.is_sheet else [_code("run", f'run("{exercise.name}")')]),
        _judge(exercise),
    ]
    metadata = {"kernelspec": KERNEL, "language_info": {"name": "python"}}
    return {"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}


def written(exercise: Exercise) -> bytes:
    """Return the notebook as the bytes of its file."""
    return (json.dumps(notebook(exercise), indent=1, ensure_ascii=False) + "\n").encode()


def _brief(exercise: Exercise) -> str:
    """Return the header of the script as a page, without the command line, and how to work with the notebook."""
    here = "the cell that begins with `%%exercise`, and run that cell to hand it over"
    how = f"Write the answer into {here}; the last cell judges it."
    if not exercise.is_sheet:
        how = (
            f"Repair the script in {here}: it is kept as text, and runs in a process of its own. "
            "`run` shows what it prints, and the last cell judges it."
        )
    return "\n".join([f"# {exercise.title}", "", *briefs.markdown(exercise.brief), how])


def _judge(exercise: Exercise) -> Cell:
    """
    Return the only cell that nbgrader knows.

    Were the others locked too, nbgrader could not put this one back where a learner has deleted it.
    """
    cell = _code("check", f'from rerail.notebook import check\n\ncheck("{exercise.name}")')
    cell["metadata"] = {
        "deletable": False,
        "editable": False,
        "nbgrader": {
            "cell_type": "code",
            "grade": True,
            "grade_id": f"check_{exercise.name}",
            "locked": True,
            "points": exercise.meta["POINTS"],
            "schema_version": 3,
            "solution": False,
            "task": False,
        },
    }
    return cell


def _markdown(name: str, text: str) -> Cell:
    return {"cell_type": "markdown", "id": name, "metadata": {}, "source": text.splitlines(keepends=True)}


def _code(name: str, text: str) -> Cell:
    source = text.splitlines(keepends=True)
    return {"cell_type": "code", "execution_count": None, "id": name, "metadata": {}, "outputs": [], "source": source}
