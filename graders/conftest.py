"""`pytest graders --tree PATH`: grade a folder of scripts, each check a test.

A grader is not a test module and a script is never imported here: each file of `graders/` becomes a collector whose
tests ask one report, which is made in children of one warm engine. pytest takes conftest files and settings from the
folders that a command line names, so a learner's could have been among them: they are kept out below.
"""

from __future__ import annotations

import stat
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from rerail.course import Exercise
from rerail.engine import Engine, EngineError, open_engine
from rerail.grading import LIMIT_SOURCE, Grader, Submission
from rerail.judging import checks_of, sentence
from rerail.report import Report
from rerail.workspace import Workspace

GRADERS = Path(__file__).resolve().parent
USAGE = "write `pytest graders --tree PATH`"


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    """Add --tree, and keep out what lies in the tree: until now pytest took its path for a folder of tests."""
    parser.addoption("--tree", metavar="PATH", help="grade PATH/exercises/NN_lesson/NAME.py, by default the workspace")
    config = pluginmanager.get_plugin("pytestconfig")
    assert isinstance(config, pytest.Config)
    for tree in _named_trees(config.invocation_params.args):
        _block_conftests((config.invocation_params.dir / tree).absolute(), pluginmanager)


def _named_trees(arguments: tuple[str, ...]) -> Iterator[str]:
    """Find what follows --tree on a command line that is not parsed yet."""
    for argument, following in zip(arguments, (*arguments[1:], ""), strict=True):
        if argument == "--tree":
            yield following
        elif argument.startswith("--tree="):
            yield argument.partition("=")[2]


def _block_conftests(tree: Path, pluginmanager: pytest.PytestPluginManager) -> None:
    """Take the names under which pytest would register the conftest files of a tree; then it does not load them."""
    inside = [folder for folder in tree.glob("test*") if folder.is_dir()] if tree.is_dir() else []
    for folder in {tree, *tree.parents, *inside} - {GRADERS, *GRADERS.parents}:
        name = str(folder / "conftest.py")
        if not pluginmanager.hasplugin(name):
            pluginmanager.register(ModuleType("nothing"), name)


def pytest_configure(config: pytest.Config) -> None:
    """Find the scripts, or say which call would."""
    if not any(_is_ours(argument, config) for argument in config.args):
        return  # `pytest .` met this folder on its way: the tests of the project, nobody's scripts
    named = config.option.tree
    if named is None:
        workspace = Workspace.find(config.invocation_params.dir)
        if workspace is None:
            raise pytest.UsageError(f"there is no workspace around this folder to grade; {USAGE}")
        tree = workspace.folder
    else:
        tree = config.invocation_params.dir / named
        if not (tree / "exercises").is_dir():
            raise pytest.UsageError(f"{named} has no folder exercises/ with scripts to grade; {USAGE}")
    tree = tree.resolve()
    _refuse_settings_of(tree, config)
    config.stash[LEARNER] = Learner(tree)


def _refuse_settings_of(tree: Path, config: pytest.Config) -> None:
    """Refuse calls that let a learner's files into this process; a hostile one can only be kept out by habit."""
    if _names_the_tree_first(config) or (config.inipath and config.inipath.resolve().is_relative_to(tree)):
        raise pytest.UsageError(f"pytest takes its settings from the first folder that it is given; {USAGE}")
    if any(Path(entry).resolve().is_relative_to(tree) for entry in sys.path):
        raise pytest.UsageError(f"`python -m pytest` imports from the current folder, the learner's files; {USAGE}")


def _names_the_tree_first(config: pytest.Config) -> bool:
    arguments = config.invocation_params.args
    ours = [i for i, argument in enumerate(arguments) if _is_ours(argument, config)]
    return "--tree" in arguments and bool(ours) and arguments.index("--tree") < ours[0]


def _is_ours(argument: str, config: pytest.Config) -> bool:
    """Tell whether an argument names this folder or a test in it."""
    return (config.invocation_params.dir / argument.partition("::")[0]).resolve().is_relative_to(GRADERS)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Let no run end well in which a test was skipped: a check that was not reached has not passed."""
    learner = session.config.stash.get(LEARNER, None)
    if learner and learner.unanswered and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_unconfigure(config: pytest.Config) -> None:
    """End the engine."""
    if LEARNER in config.stash:
        config.stash[LEARNER].close()


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """Collect a grader as the tests of its exercise."""
    place = file_path.resolve()
    if LEARNER not in parent.config.stash or place.suffix != ".py" or place.parent.parent != GRADERS:
        return None
    exercise = Exercise(place.stem, place.parent.name, GRADERS.parent)
    return GraderFile.from_parent(parent, path=file_path, exercise=exercise)


class Learner:
    """One learner's files, and the engine and the reports of one session."""

    def __init__(self, tree: Path) -> None:
        self.tree = tree
        self.unanswered = False  # some check was not reached
        self._engine: Engine | None = None
        self._grader = Grader(None)
        self._reports: dict[str, Report] = {}

    def report(self, exercise: Exercise) -> Report:
        """Grade an exercise, once a session; a file that is not there is a report too."""
        if exercise.name not in self._reports:
            self._reports[exercise.name] = self._graded(exercise)
        return self._reports[exercise.name]

    def _graded(self, exercise: Exercise) -> Report:
        shown = f"exercises/{exercise.lesson}/{exercise.name}.py"
        path, about = self.tree / shown, (exercise.name, exercise.number, exercise.title, shown)
        ungraded = Report(*about, "not yet", "contract", possible=exercise.meta["POINTS"], level="none")
        if not path.exists() and not path.is_symlink():
            return replace(ungraded, message=f"{shown} is not there, so nothing was handed in")
        if path.resolve() != path or not stat.S_ISREG(path.stat().st_mode):  # it could be somebody else's work
            return replace(ungraded, message=f"{shown} is a link or no file at all; hand in the file itself")
        try:
            if self._engine is None and not exercise.is_sheet:
                self._engine = open_engine()
        except EngineError as error:
            return replace(ungraded, outcome="blocked", reason="", message=f"{error}; `rerail doctor` looks closer")
        with open(path, "rb") as file:
            submission = Submission(file.read(LIMIT_SOURCE + 1), shown)
        self._grader.engine = self._engine
        return self._grader.grade(exercise, submission)

    def close(self) -> None:
        """End the engine, if one was needed."""
        if self._engine is not None:
            self._engine.close()


LEARNER = pytest.StashKey[Learner]()


class Failure(Exception):
    """The learner's work does not pass; the text says why, and is all that is shown."""


class Blocked(Exception):
    """There is no verdict, through no fault of the learner: an error, not a failure."""


class GraderFile(pytest.File):
    """One grader: a test for "the code runs", and one for each check."""

    def __init__(self, *, exercise: Exercise, **given: object) -> None:
        super().__init__(**given)  # type: ignore[arg-type]  # what pytest hands on: path, parent
        self.exercise = exercise

    def collect(self) -> Iterator[pytest.Item]:
        """Name the tests by the sentences that must hold."""
        runs = "the sheet can be read" if self.exercise.is_sheet else "the code runs"
        yield Question.from_parent(self, name=runs, check="", line=0)
        for check, function in checks_of(self.exercise.loaded_grader()).items():
            line = function.__code__.co_firstlineno - 1
            yield Question.from_parent(self, name=sentence(function), check=check, line=line)


class Question(pytest.Item):
    """One check as a test: it looks up what the report says."""

    def __init__(self, *, check: str, line: int, **given: object) -> None:
        super().__init__(**given)  # type: ignore[arg-type]  # what pytest hands on: name, parent
        self._check, self._line = check, line  # no check: does the code run?
        self._report: Report | None = None

    def setup(self) -> None:
        """Grade, unless another test of the exercise has; what is not the learner's fault ends here, as an error."""
        assert isinstance(self.parent, GraderFile)
        learner = self.config.stash[LEARNER]
        self._report = learner.report(self.parent.exercise)
        if self._report.outcome in ("blocked", "defect"):
            raise Blocked(self._report.text())

    def runtest(self) -> None:
        """Pass, fail or skip as the report says."""
        report = self._report
        assert report is not None
        if report.outcome == "pass":
            return
        stands = {finding.check: finding.status for finding in report.findings}
        stood = "pass" if report.findings else "fail"  # by "the code runs"
        status = stands.get(self._check, "not reached") if self._check else stood
        if status == "fail":
            raise Failure(report.text())
        if status == "not reached":
            self.config.stash[LEARNER].unanswered = True
            pytest.skip(f"not reached: {report.reason} comes first")

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: object = None) -> str:
        """Show the report, and a traceback only of a bug of ours."""
        if isinstance(excinfo.value, Failure | Blocked):
            return str(excinfo.value)
        return str(super().repr_failure(excinfo))

    def reportinfo(self) -> tuple[Path, int, str]:
        """Tell where the check stands."""
        return self.path, self._line, self.name
