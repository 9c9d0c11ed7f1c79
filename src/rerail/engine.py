"""Children that run a learner's code: start, limit, kill, collect. Nothing here runs a learner's code.

Two engines behind one interface: a warm fork-server (level L1, Linux), and one standby process (level L0, anywhere).
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import queue
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from rerail.child import receive, send
from rerail.evidence import LIMIT_BYTES, Evidence, Garbage, decode

OUTPUT_BYTES = 64 << 10  # of what a script prints: the first part; the last 8 KiB of the rest
FLOOR_SECONDS = 20.0  # no run is stopped before
LOOK_SECONDS = 0.2  # how long a child that hangs has to write down the line it is in
UNREAD_SECONDS = 0.5  # how long messages of an ended child may still be on their way
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

Limit = Callable[[], float | None]  # seconds from the start of a run; None: not known yet


class EngineError(Exception):
    """No child can be started here: the environment's fault, never the learner's."""


@dataclass(frozen=True)
class Job:
    """One file, to be run on its cases: `probe` is the half of the grader that a child may see."""

    source: bytes
    name: str  # as tracebacks show it
    file: str  # the script's `__file__`, beside which its data lie
    probe: str
    graded: tuple[str, ...]
    batches: tuple[Any, ...]  # numpy and plain Python
    threads: int = 1


@dataclass(frozen=True)
class Ran:
    """
    What a child did.

    `how` is evidence, crash, unusable, memory, contract, timeout, died or garbage; `case` is where it ended.
    """

    how: str
    evidence: tuple[Evidence, ...] = ()
    case: int = 0
    problem: dict[str, Any] | None = None
    output: str = ""
    cut_bytes: int = 0
    hung_at: int | None = None
    seconds: float = 0.0


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
            return _follow(job, limit, talk.fileno(), talk.fileno(), reading, wait, tell)
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
            return _follow(job, limit, process.stdout.fileno(), process.stdin.fileno(), stderr, process.wait, tell)
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


def _follow(
    job: Job, limit: Limit, read: int, write: int, output: int, wait: Callable[[], int], tell: Callable[[bytes], None]
) -> Ran:
    """Talk to a child until it has answered for every case, ended, or run past its limit; then kill its group."""
    begin = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="rerail-"))
    drain = _Drain(output)
    events: queue.Queue[tuple[str, Any]] = queue.Queue()
    reader = threading.Thread(target=_read, args=(read, events), daemon=True)
    waiter = threading.Thread(target=lambda: events.put(("ended", wait())), daemon=True)
    evidence: list[Evidence] = []
    try:
        with contextlib.suppress(OSError):  # it ended before it was told: the event says so
            send(write, _first_message(job, folder))
        reader.start()
        waiter.start()
        how, problem = _answers(job, limit, write, events, evidence, begin)
        if how == "timeout":
            tell(b"look")
            time.sleep(LOOK_SECONDS)
        tell(b"kill")
        waiter.join(5)
        drain.join(0.2)
        seconds = time.monotonic() - begin
        hung_at = _hung_at(folder / HANG_LOG, job.name) if how == "timeout" else None
        return Ran(how, tuple(evidence), len(evidence), problem, drain.text(), drain.cut, hung_at, seconds)
    finally:
        tell(b"kill")
        shutil.rmtree(folder, ignore_errors=True)


HANG_LOG = "hang.log"


def _first_message(job: Job, folder: Path) -> bytes:
    return pickle.dumps(
        {
            "source": job.source, "name": job.name, "file": job.file, "probe": job.probe, "graded": job.graded,
            "threads": job.threads, "cases": len(job.batches), "folder": str(folder),
            "hang_log": str(folder / HANG_LOG),
        }
    )  # fmt: skip


def _read(descriptor: int, events: queue.Queue[tuple[str, Any]]) -> None:
    try:
        while True:
            events.put(("message", receive(descriptor, LIMIT_BYTES)))
    except ValueError as error:
        events.put(("message", Garbage(str(error))))
    except (EOFError, OSError):
        events.put(("closed", None))


def _answers(
    job: Job, limit: Limit, write: int, events: queue.Queue[tuple[str, Any]], evidence: list[Evidence], begin: float
) -> tuple[str, dict[str, Any] | None]:
    """Follow what happens to a child until there is evidence for every case, or a reason why there is none."""
    ended: tuple[float, int] | None = None  # until when messages of an ended child may still arrive, and its exit code
    state = _Talk(job, write, evidence)
    while len(evidence) < len(job.batches):
        most, now = limit(), time.monotonic()
        if most is not None and now - begin > most:
            return "timeout", {"seconds": most}
        if ended and now > ended[0]:
            return "died", {"code": ended[1]}
        left = 0.25 if most is None else begin + most - now
        try:
            kind, value = events.get(timeout=0.05 if ended else min(max(left, 0.0), 0.25) + 0.001)
            if kind == "ended":
                ended = (now + UNREAD_SECONDS, value)
            elif kind == "closed":
                ended = ended and (now, ended[1])  # nothing more can come
            elif problem := state.hear(value):
                return str(problem["kind"]), problem
        except queue.Empty:
            continue
        except Garbage as error:
            return "garbage", {"text": str(error)}
    return "evidence", None


@dataclass
class _Talk:
    """The conversation with one child, case by case: a batch only after the code was loaded for it."""

    job: Job
    write: int
    evidence: list[Evidence]
    loaded: bool = False

    def hear(self, message: bytes | Garbage) -> dict[str, Any] | None:
        """
        Take one message; return a problem that the child reports.

        Raises:
            Garbage: If it is not what a child says at this point.
        """
        if isinstance(message, Garbage):
            raise message
        kind, data = message[:1], message[1:]
        if kind == b"C":
            return _problem(data)
        if kind == b"E" and self.loaded:
            self.loaded = False
            self.evidence.append(decode(data))
        elif kind == b"L" and not self.loaded:
            missing = _read_json(data)
            if not isinstance(missing, list) or not all(isinstance(name, str) for name in missing):
                raise Garbage("a list of missing names was due")
            if missing:
                return {"kind": "contract", "missing": missing}
            self.loaded = True
            with contextlib.suppress(OSError):  # it has just ended: the event says so
                send(self.write, pickle.dumps(self.job.batches[len(self.evidence)]))
        else:
            raise Garbage("a message out of turn")
        return None


def _problem(data: bytes) -> dict[str, Any]:
    """Read the description of a crash from bytes that nobody vouches for."""
    said = _read_json(data)
    try:
        return {
            "kind": {"unusable": "unusable", "memory": "memory"}.get(said["kind"], "crash"),
            "type": str(said["type"])[:200],
            "text": str(said["text"])[:2000],
            "plain": bool(said.get("plain")),
            "frames": [
                {"line": int(frame["line"] or 0), "function": str(frame["function"]), "code": str(frame["code"])[:500]}
                for frame in said["frames"][-50:]
            ],
            "names": {str(name): str(shape)[:60] for name, shape in list(said["names"].items())[:10]},
            "hidden": int(said.get("hidden", 0)),
        }
    except (KeyError, TypeError, ValueError, AttributeError):
        raise Garbage("a description of a crash was due") from None


def _read_json(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None


def _hung_at(log: Path, name: str) -> int | None:
    """Read the learner's line out of the traceback that the child wrote when it was asked."""
    try:
        written = log.read_text(errors="replace")
    except OSError:
        return None
    found = re.search(rf'File "{re.escape(name)}", line (\d+)', written)
    return int(found[1]) if found else None


class _Drain(threading.Thread):
    """Keep the first and the last of what a child prints; it may print without end."""

    def __init__(self, descriptor: int) -> None:
        super().__init__(daemon=True)
        self._descriptor, self._head, self._tail, self.cut = descriptor, b"", b"", 0
        self.start()

    def run(self) -> None:
        with contextlib.suppress(OSError):
            while chunk := os.read(self._descriptor, 1 << 16):
                room = OUTPUT_BYTES - len(self._head)
                self._head += chunk[:room]
                tail = self._tail + chunk[room:]
                self._tail, self.cut = tail[-8192:], self.cut + max(len(tail) - 8192, 0)
        with contextlib.suppress(OSError):
            os.close(self._descriptor)

    def text(self) -> str:
        gap = f"\n[{self.cut} bytes cut]\n".encode() if self.cut else b""
        return (self._head + gap + self._tail).decode("utf-8", "replace")
