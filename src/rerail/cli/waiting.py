"""Wait for work that takes a while, and stay able to listen: to Ctrl-C, to keys, to a save."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from rerail.engine import Engine
    from rerail.talk import Job, Limit, Ran

Result = TypeVar("Result")
TICK_SECONDS = 0.2  # a lock that is waited for without end cannot be interrupted on every system
STOP_SECONDS = 0.7  # how long a run that is no longer wanted may take to end


class Background(Generic[Result]):
    """A call in a thread of its own; the thread never keeps the program alive."""

    def __init__(self, call: Callable[[], Result]) -> None:
        self._call, self._results, self._errors = call, list[Result](), list[BaseException]()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._results.append(self._call())
        except BaseException as error:  # raised where the result is asked for
            self._errors.append(error)

    @property
    def done(self) -> bool:
        """Whether there is a result, or an error."""
        return not self._thread.is_alive()

    def wait(self, seconds: float) -> None:
        """Wait at most so long."""
        self._thread.join(seconds)

    def result(self) -> Result:
        """Wait for the result and return it, or raise what the call raised."""
        while not self.done:
            self.wait(TICK_SECONDS)
        if self._errors:
            raise self._errors[0]
        return self._results[0]


class Stoppable:
    """An engine whose runs can be ended from another thread, because nobody wants their result any more."""

    def __init__(self, engine: Engine) -> None:
        self._engine, self.level = engine, engine.level
        self._unwanted = threading.Event()
        self._running = threading.Semaphore(0)
        self._started = 0

    def run(self, job: Job, limit: Limit | None = None) -> Ran:
        """Run one job; once stopped, its time is over."""
        from rerail.engine import FLOOR_SECONDS

        most = limit or (lambda: FLOOR_SECONDS)
        self._started += 1
        try:
            return self._engine.run(job, lambda: 0.0 if self._unwanted.is_set() else most())
        finally:
            self._running.release()

    def stop(self) -> None:
        """End what runs, within half a second; what is asked for until `go_on` ends at once."""
        self._unwanted.set()

    def go_on(self) -> None:
        """Take jobs again."""
        self._unwanted.clear()

    def close(self) -> None:
        """End the engine, and what runs; one that is still loading is not waited for, it ends by itself."""
        self.stop()
        until = time.monotonic() + STOP_SECONDS
        for _ in range(self._started):  # a run that is given its time removes its folder
            self._running.acquire(timeout=max(until - time.monotonic(), 0))
        Background(self._engine.close).wait(TICK_SECONDS)
