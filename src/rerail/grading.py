"""Submission -> evidence -> checks -> Report. Start reading here.

A submission is frozen bytes. A child runs it on the exercise's cases and sends evidence; a second child runs the
solution on the same cases at the same time. The checks then question that evidence in this process, which never runs a
learner's code.
"""

from __future__ import annotations

import hashlib
import importlib.util
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

from rerail import judging
from rerail.course import CourseError, Exercise
from rerail.engine import FLOOR_SECONDS, Engine, EngineError
from rerail.report import Report
from rerail.talk import Job, Ran

REFERENCE_FACTOR = 20  # a run may take this many times the solution's time, where that is more than the floor
REFERENCE_SECONDS = 300.0  # the solution itself must end by then
LIMIT_SOURCE = 1 << 20


@dataclass(frozen=True)
class Submission:
    """The frozen bytes of one file, and the name under which its owner knows it."""

    source: bytes
    shown: str


@dataclass
class Grader:
    """
    Grade submissions with one engine, keeping the solutions' evidence in memory.

    Args:
        engine: Where code runs; None grades answer sheets only.
        threads: Of torch in the children; verdicts do not depend on it.
        floor_seconds: No run is stopped before.
    """

    engine: Engine | None
    threads: int = 1
    floor_seconds: float = FLOOR_SECONDS
    _references: dict[tuple[Any, ...], Ran] = field(default_factory=dict)

    def grade(self, exercise: Exercise, submission: Submission, *, seed: int | None = None) -> Report:
        """
        Judge one submission.

        Args:
            exercise: Whose grader judges.
            submission: What is judged.
            seed: Of the cases that the code has not seen; by default one that belongs to this version of the grader.

        Returns:
            A report; a fault of the environment or of the course is a report too (`blocked`, `defect`).
        """
        begin = time.monotonic()
        seed = default_seed(exercise) if seed is None else seed
        report = self._blank(exercise, submission, seed)
        try:
            report = self._judged(exercise, submission, seed, report)
        except EngineError as error:
            report = replace(report, outcome="blocked", message=f"{error}; `rerail doctor` looks closer")
        except CourseError as error:
            report = replace(report, outcome="defect", message=str(error))
        except OSError as error:  # no room on the disk, no more processes: nothing of the learner's
            report = replace(report, outcome="blocked", message=f"{error}; make room and check again")
        points = report.possible if report.outcome == "pass" else 0
        return replace(report, points=points, seconds=time.monotonic() - begin)

    def evidence(self, exercise: Exercise, submission: Submission, *, seed: int | None = None) -> Ran:
        """
        Run one submission on its cases and return what the probe recorded, unjudged.

        Raises:
            EngineError: If no child can be started.
        """
        if self.engine is None:
            raise EngineError("no engine was opened to run code")
        batches = tuple(exercise.loaded_grader().cases(default_seed(exercise) if seed is None else seed))
        return self.engine.run(self._job(exercise, submission.source, submission.shown, batches))

    def _blank(self, exercise: Exercise, submission: Submission, seed: int) -> Report:
        return Report(
            exercise.name,
            exercise.number,
            exercise.title,
            submission.shown,
            outcome="pass",
            possible=exercise.meta["POINTS"],
            level=self.engine.level if self.engine and not exercise.is_sheet else "none",
            seed=seed,
            submission=hashlib.sha256(submission.source).hexdigest(),
            grader=hashlib.sha256(exercise.grader.encode()).hexdigest(),
        )

    def _judged(self, exercise: Exercise, submission: Submission, seed: int, report: Report) -> Report:
        if len(submission.source) > LIMIT_SOURCE:
            message = f"the file has {len(submission.source)} bytes; a submission may have {LIMIT_SOURCE}"
            return replace(report, outcome="not yet", reason="unusable", message=message)
        if exercise.is_sheet:
            return judging.judge_sheet(report, exercise, submission.source)
        missing = [name for name in exercise.meta["REQUIRES"] if importlib.util.find_spec(name) is None]
        if missing:
            raise EngineError(f"this exercise needs {missing[0]}; install it with pip install 'rerail[{missing[0]}]'")
        batches = tuple(exercise.loaded_grader().cases(seed))
        run, reference = self._run_both(exercise, submission, batches, seed)
        return judging.judge(report, exercise, submission.source, run, reference, batches)

    def _run_both(
        self, exercise: Exercise, submission: Submission, batches: tuple[Any, ...], seed: int
    ) -> tuple[Ran, Ran]:
        """Run the submission and the solution at the same time; the solution's time decides how long the other has."""
        if self.engine is None:
            raise EngineError("no engine was opened to run code")
        key = (exercise.name, exercise.grader, exercise.solution, seed, self.threads)
        finished = [self._references[key]] if key in self._references else []
        since = time.monotonic()

        def limit() -> float | None:
            if finished:
                return max(self.floor_seconds, REFERENCE_FACTOR * finished[0].seconds)
            return None if time.monotonic() - since > self.floor_seconds else self.floor_seconds

        def finish(future: Future[Ran]) -> None:
            finished.append(Ran("died") if future.exception() else future.result())

        job = self._job(exercise, submission.source, submission.shown, batches)
        if finished:
            return self.engine.run(job, limit), finished[0]
        with ThreadPoolExecutor(1) as pool:
            solution = self._job(exercise, exercise.solution, "solution.py", batches)
            future = pool.submit(self.engine.run, solution, lambda: REFERENCE_SECONDS)
            future.add_done_callback(finish)
            run, reference = self.engine.run(job, limit), future.result()
        if reference.how == "died":  # the submission may have killed the server that both ran under: once more, alone
            reference = self.engine.run(solution, lambda: REFERENCE_SECONDS)
        if reference.how == "evidence":
            self._references[key] = reference
        return run, reference

    def _job(self, exercise: Exercise, source: bytes, shown: str, batches: tuple[Any, ...]) -> Job:
        file = str(exercise.path("exercises"))
        return Job(source, shown, file, exercise.probe_half, tuple(exercise.meta["GRADED"]), batches, self.threads)


def default_seed(exercise: Exercise) -> int:
    """Return the seed of the unseen cases that belongs to this version of the grader: the same verdict on every run."""
    return int.from_bytes(hashlib.sha256(exercise.grader.encode()).digest()[:4], "little") % 10**6 + 1
