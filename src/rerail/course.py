"""Where things are: an exercise is one name shared by three trees, in a clone or in the installed package."""

from __future__ import annotations

import ast
import functools
import re
import types
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TREES = ("exercises", "solutions", "graders")
LAYERS = ("process", "data", "values", "tiny batch", "gradient path", "update", "evaluation")


class CourseError(Exception):
    """The course itself is broken or not there: never the learner's fault."""


@dataclass(frozen=True)
class Exercise:
    """One exercise; what is read from its files is read when asked for."""

    name: str
    lesson: str  # the folder: "02_leakage"
    root: Path  # of the three trees

    def path(self, tree: str) -> Path:
        """Return the exercise's file in one of the three trees."""
        return self.root / tree / self.lesson / f"{self.name}.py"

    @functools.cached_property
    def shipped(self) -> bytes:
        """The broken script as learners get it."""
        return self.path("exercises").read_bytes()

    @functools.cached_property
    def solution(self) -> bytes:
        """The script with the smallest repair."""
        return self.path("solutions").read_bytes()

    @functools.cached_property
    def grader(self) -> str:
        """The source of the grader."""
        try:
            return self.path("graders").read_text("utf-8")
        except OSError as error:
            raise CourseError(f"the grader of {self.name!r} cannot be read: {error.strerror}; install again") from None

    @functools.cached_property
    def brief(self) -> str:
        """The header of the script: title, what one sees, the task, what is graded."""
        return (ast.get_docstring(ast.parse(self.shipped)) or "").strip()

    @property
    def title(self) -> str:
        """The symptom: the first line of the header, without its full stop."""
        return self.brief.partition("\n")[0].rstrip(".")

    @property
    def number(self) -> str:
        """The lesson's number and the place in it, as in "4.2"."""
        return f"{int(self.lesson[:2])}.{self.meta['ORDER']}"

    @functools.cached_property
    def meta(self) -> dict[str, Any]:
        """The constants at the head of the grader (LAYER, MINUTES, ORDER, POINTS, GRADED, ...), read, not executed."""
        head = re.split(r"^(?:def|class|@)", self.grader, maxsplit=1, flags=re.M)[0]
        found: dict[str, Any] = {"GRADED": (), "HINTS": (), "BASELINE": "", "REQUIRES": (), "RECORDED": {}}
        for node in ast.parse(head).body:
            if isinstance(node, ast.Assign):
                names = [element.id for element in ast.walk(node.targets[0]) if isinstance(element, ast.Name)]
                try:
                    value = ast.literal_eval(node.value)
                except ValueError:  # computed: not one of these constants
                    continue
                found.update(zip(names, value if len(names) > 1 else [value], strict=True))
        missing = {"LAYER", "MINUTES", "ORDER", "POINTS"} - found.keys()
        if missing:
            raise CourseError(f"the grader of {self.name!r} lacks {', '.join(sorted(missing))}")
        return found

    @property
    def is_sheet(self) -> bool:
        """Whether the file holds an ANSWER to be judged, and not code to be run."""
        return re.search(r"^def probe\(", self.grader, re.M) is None

    def loaded_grader(self) -> types.ModuleType:
        """Execute the grader in this process: its top level needs numpy and `rerail.checks`, never torch."""
        return _module(self.name, self.grader, str(self.path("graders")))

    @functools.cached_property
    def probe_half(self) -> str:
        """The part of the grader that its probe reaches: all that a child is given."""
        return half(self.grader, lambda name: name == "probe")


@functools.lru_cache(maxsize=256)
def _module(name: str, source: str, file: str) -> types.ModuleType:
    module = types.ModuleType(f"rerail_grader_{name}")
    module.__file__ = file
    exec(compile(source, file, "exec", dont_inherit=True), module.__dict__)
    return module


@functools.lru_cache(maxsize=8)
def root(start: Path | None = None) -> Path:
    """
    Find the folder of the three trees: `_course` in the installed package, or the clone that this file lies in.

    Raises:
        CourseError: If neither is there.
    """
    here = start or Path(__file__).resolve().parent
    for folder in (here / "_course", here.parents[1]):
        if all((folder / tree).is_dir() for tree in TREES):
            return folder
    raise CourseError(f"the course's files are not beside {here}; install rerail again")


def exercises(where: Path | None = None) -> list[Exercise]:
    """Return all exercises in the order of the course: by lesson, then by ORDER."""
    where = where or root()
    files = (path for path in (where / "exercises").glob("[0-9][0-9]_*/*.py") if not path.name.startswith("_"))
    found = [Exercise(path.stem, path.parent.name, where) for path in files]
    return sorted(found, key=lambda exercise: (exercise.lesson, exercise.meta["ORDER"], exercise.name))


def find(text: str, where: Path | None = None) -> Exercise:
    """
    Find an exercise by its name, its number ("4.2"), or a beginning of its name that no other shares.

    Raises:
        LookupError: If there is none or more than one; the message says which are near.
    """
    everything = exercises(where)
    wanted = text.strip().lower().replace("-", "_").removesuffix(".py")
    exact = [exercise for exercise in everything if wanted in (exercise.name, exercise.number)]
    near = exact or [exercise for exercise in everything if wanted and _begins(exercise, wanted)]
    if len(near) == 1:
        return near[0]
    if near:
        raise LookupError(f"{text!r} may be {' or '.join(exercise.name for exercise in near)}; type one more letter")
    import difflib

    like = difflib.get_close_matches(wanted, [exercise.name for exercise in everything], 1, 0.5)
    guess = f"did you mean {like[0]!r}? " if like else ""
    raise LookupError(f"no exercise is called {text!r}; {guess}`rerail list` shows them all")


def _begins(exercise: Exercise, wanted: str) -> bool:
    """Tell whether a text is the beginning of an exercise's name, or the number of its lesson."""
    return exercise.name.startswith(wanted) or exercise.number.partition(".")[0] == wanted


def half(source: str, wanted: Callable[[str], bool]) -> str:
    """
    Blank out every top-level statement that the wanted names do not reach; line numbers stay.

    A child gets what `probe` reaches: the checks, the accepted fixes, the traps and the seeds stay with the judge.
    """
    tree = ast.parse(source)
    owners: dict[str, list[ast.stmt]] = {}
    for node in tree.body:
        for name in _defined(node):
            owners.setdefault(name, []).append(node)
    todo = [name for name in owners if wanted(name) or name == "annotations"]
    seen, keep = set(todo), set()
    while todo:
        for node in owners[todo.pop()]:
            keep.add(node)
            used = {item.id for item in ast.walk(node) if isinstance(item, ast.Name)} & owners.keys()
            todo += used - seen
            seen |= used
    lines = source.splitlines()
    for node in tree.body:
        if node not in keep:
            first = min([node.lineno, *(decorator.lineno for decorator in getattr(node, "decorator_list", []))])
            lines[first - 1 : node.end_lineno] = [""] * ((node.end_lineno or first) - first + 1)
    return "\n".join(lines)


def _defined(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return [node.name]
    if isinstance(node, ast.Import | ast.ImportFrom):
        return [(alias.asname or alias.name).split(".")[0] for alias in node.names]
    return [item.id for item in ast.walk(node) if isinstance(item, ast.Name) and isinstance(item.ctx, ast.Store)]
