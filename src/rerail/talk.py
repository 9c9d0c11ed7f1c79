"""One run in a child: what it is given, the talk with it until it has answered or is ended, and what became of it."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import queue
import re
import shutil
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rerail.child import receive, send
from rerail.evidence import LIMIT_BYTES, Evidence, Garbage, decode

OUTPUT_BYTES = 64 << 10  # of what a script prints: the first part; the last 8 KiB of the rest
LOOK_SECONDS = 0.2  # how long a child that hangs has to write down the line it is in
UNREAD_SECONDS = 0.5  # how long messages of an ended child may still be on their way
HANG_LOG = "hang.log"

Limit = Callable[[], float | None]  # seconds from the start of a run; None: not known yet


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


def follow(
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
