"""Children that run a learner's code: start, limit, kill, collect. Nothing here runs a learner's code.

Two engines behind one interface: a warm fork-server (level L1, Linux), and one standby process (level L0, anywhere).
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from typing import Protocol

from rerail.child import receive
from rerail.talk import Job, Limit, Ran, follow

FLOOR_SECONDS = 20.0  # no run is stopped before
LEVELS = {"L1": "own process group, limits on memory and files", "L0": "own process, a time limit"}
KEPT = (
    "PATH",
    "HOME",
    "LANG",
    "LC_ALL",
    "LD_LIBRARY_PATH",
    "DYLD_LIBRARY_PATH",
    "SYSTEMROOT",
    "PYTHONPATH",
    "VIRTUAL_ENV",
)


class EngineError(Exception):
    """No child can be started here: the environment's fault, never the learner's."""


class Engine(Protocol):
    """What grading needs of an engine; every level of isolation is one."""

    level: str

    def run(self, job: Job, limit: Limit = lambda: FLOOR_SECONDS) -> Ran:
        """Run one job in a child of its own and wait for it; several may run at once."""

    def close(self) -> None:
        """End the engine and all that it started."""


def open_engine(level: str = "") -> Engine:
    """
    Start to warm an engine; it is usable at once, and the first run waits until it is warm.

    Args:
        level: "L1" or "L0"; by default the strongest that this system has.

    Raises:
        EngineError: If this system cannot have that level.
    """
    forks = sys.platform == "linux"
    level = level or ("L1" if forks else "L0")
    if level not in LEVELS:
        raise EngineError(f"isolation is one of {', '.join(LEVELS)}, got {level!r}")
    if level == "L1" and not forks:
        raise EngineError("isolation L1 needs Linux; use L0 here")
    return ForkServer() if level == "L1" else Standby()


class ForkServer:
    """A warm process that forks one child a job (level L1)."""

    level = "L1"

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._failed = ""
        self._start()

    @property
    def process_number(self) -> int:
        """The server's process number."""
        return self._process.pid

    def run(self, job: Job, limit: Limit = lambda: FLOOR_SECONDS) -> Ran:
        """Run one job in a forked child."""
        self._wait_until_warm()
        (talk, theirs), (status, status_theirs) = socket.socketpair(), socket.socketpair()
        reading, writing = os.pipe()
        try:
            self._submit([theirs.fileno(), writing, status_theirs.fileno()])
        finally:
            theirs.close()
            status_theirs.close()
            os.close(writing)

        def wait() -> int:
            with contextlib.suppress(OSError):
                return int(status.recv(16) or -9)
            return -9

        def tell(word: bytes) -> None:
            with contextlib.suppress(OSError):
                status.send(word)

        try:
            return follow(job, limit, talk.fileno(), talk.fileno(), reading, wait, tell)
        finally:
            talk.close()
            status.close()

    def close(self) -> None:
        """End the server; it kills its children."""
        self._control.close()
        _ended(self._process)

    def _start(self) -> None:
        self._control, theirs = socket.socketpair()
        self._process = _python("rerail.forkserver", stdin=theirs.fileno())
        theirs.close()
        self._warm = False

    def _wait_until_warm(self) -> None:
        with self._lock:
            if self._process.poll() is not None and self._warm:
                self.close()
                self._start()  # a child killed it: the others must not suffer
            if not self._warm and not self._failed:
                self._warm = self._control.recv(4) == b"warm"
                self._failed = "" if self._warm else _last_words(self._process)
            if self._failed:
                raise EngineError(self._failed)

    def _submit(self, descriptors: list[int]) -> None:
        with self._lock:
            try:
                socket.send_fds(self._control, [b"job"], descriptors)
            except OSError as error:
                raise EngineError(f"the fork-server has gone ({error}); run the command again") from None


class Standby:
    """One warm process waiting for one job, and the next one started when it is used (level L0)."""

    level = "L0"

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._next: subprocess.Popen[bytes] | None = self._start()

    def run(self, job: Job, limit: Limit = lambda: FLOOR_SECONDS) -> Ran:
        """Run one job in the standby process."""
        with self._lock:
            process, self._next = self._next or self._start(), None
        assert process.stdin and process.stdout and process.stderr
        try:
            if receive(process.stdout.fileno(), 16) != b"warm":
                raise EOFError
        except (EOFError, ValueError):
            raise EngineError(_last_words(process)) from None
        stderr = os.dup(process.stderr.fileno())

        def tell(word: bytes) -> None:
            with contextlib.suppress(OSError):
                if os.name != "posix":
                    process.kill()
                elif word == b"look":
                    process.send_signal(signal.SIGUSR1)
                else:
                    os.killpg(process.pid, signal.SIGKILL)

        try:
            return follow(job, limit, process.stdout.fileno(), process.stdin.fileno(), stderr, process.wait, tell)
        finally:
            _ended(process)
            with self._lock:
                self._next = self._next or self._start()

    def close(self) -> None:
        """End the process that waits."""
        with self._lock:
            if self._next is not None:
                self._next.kill()
                _ended(self._next)
                self._next = None

    def _start(self) -> subprocess.Popen[bytes]:
        return _python("rerail.child", stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def _python(module: str, *, stdin: int, stdout: int = subprocess.DEVNULL) -> subprocess.Popen[bytes]:
    """Start one of our programs in an environment that carries no secret."""
    environment = {k: v for k, v in os.environ.items() if k in KEPT or k.startswith(("OPENBLAS", "MKL", "RERAIL_TEST"))}
    environment |= {"OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0", "MPLBACKEND": "Agg", "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "-s", "-P", "-m", module]
    try:
        return subprocess.Popen(
            command, stdin=stdin, stdout=stdout, stderr=subprocess.PIPE, env=environment, cwd=tempfile.gettempdir(),
            start_new_session=True,
        )  # fmt: skip
    except OSError as error:
        raise EngineError(f"{sys.executable} could not be started: {error}") from None


def _last_words(process: subprocess.Popen[bytes]) -> str:
    """Tell why a program of ours did not get warm: the last line of what it said."""
    process.kill()
    said = process.communicate()[1].decode("utf-8", "replace").strip() if process.stderr else ""
    return (
        said.splitlines()[-1]
        if said
        else f"{sys.executable} ended before it was ready, with exit code {process.wait()}"
    )


def _ended(process: subprocess.Popen[bytes]) -> None:
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            with contextlib.suppress(OSError):
                stream.close()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(5)
        return
    process.kill()
    process.wait()
