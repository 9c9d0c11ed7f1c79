"""What one child does: run one file on its cases, and send back what the probe recorded.

It is the only place where a learner's code runs. It is started by `forkserver` (warm, one fork a job) or as a program
of its own (`python -m rerail.child`, where forking is not safe). It is given the half of a grader that its probe
reaches, and each batch only after the learner's code was loaded for it; it sends evidence or a crash, never a verdict.
"""

from __future__ import annotations

import ast
import contextlib
import faulthandler
import json
import linecache
import os
import pickle
import signal
import struct
import sys
import tempfile
import traceback
import types
from typing import Any

LIMIT_MESSAGE = 1 << 27
MEMORY_BYTES = 6 << 30  # importing torch and taking one step needs 0.65 GB of address space
FILE_BYTES = 64 << 20
CPU_SECONDS = 3600  # the judge kills at the true limit; this one is for a child whose judge has gone


def send(descriptor: int, data: bytes) -> None:
    """Write one message: its length in 8 bytes, then its bytes."""
    view = memoryview(struct.pack("<Q", len(data)) + data)
    while view:
        view = view[os.write(descriptor, view) :]


def receive(descriptor: int, limit: int = LIMIT_MESSAGE) -> bytes:
    """
    Read one message.

    Raises:
        EOFError: If the other side has gone.
        ValueError: If the message says that it is longer than `limit` bytes.
    """
    size = struct.unpack("<Q", _exactly(descriptor, 8))[0]
    if size > limit:
        raise ValueError(f"a message may have {limit} bytes, got one of {size}")
    return _exactly(descriptor, size)


def _exactly(descriptor: int, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        chunk = os.read(descriptor, min(count - len(data), 1 << 20))
        if not chunk:
            raise EOFError
        data += chunk
    return bytes(data)


def warm() -> None:
    """
    Import what a child needs and take one throw-away step: that is what a start costs.

    One thread before the first operation: a parallel region in a process that is forked later makes every child hang.
    """
    import torch

    torch.set_num_threads(1)
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.Adam(model.parameters())  # the first optimizer imports torch._dynamo, half of the cost
    model(torch.ones(3, 2)).pow(2).mean().backward()
    optimizer.step()
    import rerail.probes  # noqa: F401

    assert torch.get_num_threads() == 1, "the process that forks must have one thread"


def work(read: int, write: int) -> None:
    """Serve one job from the judge, then end the process; nothing of it survives."""
    try:
        job = pickle.loads(receive(read))  # from the judge, who is trusted; what goes back is never pickled
        _confine(job)
        for case in range(job["cases"]):
            message = _run_case(job, case, read, write)
            for stream in (sys.stdout, sys.stderr):
                with contextlib.suppress(Exception):  # a script may have closed or replaced it
                    stream.flush()
            send(write, message)
            if message[:1] != b"E":
                break
    finally:
        os._exit(0)  # an interpreter's shutdown takes most of a second; success is a message, not an exit code


def _run_case(job: dict[str, Any], case: int, read: int, write: int) -> bytes:
    import torch

    from rerail.evidence import encode, record

    folder = os.path.join(job["folder"], f"case{case}")
    os.mkdir(folder)
    os.chdir(folder)
    tempfile.tempdir = folder
    _reset(job["threads"])
    loaded = False
    try:
        script = _module("script", job["name"], job["source"], job["file"])
        missing = [name for name in job["graded"] if not callable(getattr(script, name, None))]
        send(write, b"L" + json.dumps(missing).encode())
        batch = pickle.loads(receive(read))
        loaded = True
        grader = _module("grader", "grader", job["probe"].encode(), "grader")
        result = grader.probe(script, batch)
        with torch.no_grad():
            return b"E" + encode(record(result))
    except BaseException as error:  # SystemExit and KeyboardInterrupt too
        return b"C" + json.dumps(_crash(error, job["name"], loaded)).encode()


def _reset(threads: int) -> None:
    """Start every case from the same state: random numbers, dtype, recording, threads."""
    import random

    import numpy as np
    import torch

    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float32)
    torch.set_grad_enabled(True)
    torch.set_num_threads(threads)


def _confine(job: dict[str, Any]) -> None:
    """Limit what the process may use, and have the line where it hangs written down."""
    with contextlib.suppress(ImportError):  # Windows has no `resource`; there the wall clock is all
        import resource

        for what, value in (
            (resource.RLIMIT_AS, MEMORY_BYTES),
            (resource.RLIMIT_FSIZE, FILE_BYTES),
            (resource.RLIMIT_CPU, CPU_SECONDS),
            (resource.RLIMIT_CORE, 0),
        ):
            hard = resource.getrlimit(what)[1]
            value = value if hard == resource.RLIM_INFINITY else min(value, hard)
            resource.setrlimit(what, (value, value))
    if hasattr(faulthandler, "register"):  # a watchdog thread that looks at running frames can crash the process
        log = open(job["hang_log"], "w")  # noqa: SIM115  (stays open for the life of the process)
        faulthandler.register(signal.SIGUSR1, log, all_threads=False)


def _module(name: str, shown: str, source: bytes, file: str) -> types.ModuleType:
    """Execute frozen source as a module; `shown` is the file name in tracebacks, `file` the module's `__file__`."""
    module = types.ModuleType(name)
    module.__file__ = file
    text = source.decode("utf-8", "replace")
    linecache.cache[shown] = (len(text), None, text.splitlines(keepends=True), shown)
    sys.modules[name] = module
    try:
        code = compile(source, shown, "exec")  # bytes, not text: a byte-order mark is no syntax error
    except ValueError as error:  # of null bytes, until Python 3.11.4
        raise SyntaxError(str(error)) from None
    exec(code, module.__dict__)
    return module


def _crash(error: BaseException, shown: str, loaded: bool) -> dict[str, Any]:
    """Describe an exception in plain data: its own words, the learner's frames, and whose line raised it."""
    from rerail.probes import Unusable

    if isinstance(error, SyntaxError) and error.filename == shown:
        frames = [{"line": error.lineno, "function": "", "code": (error.text or "").rstrip()}]
        return {"kind": "crash", "type": type(error).__name__, "text": error.msg or "", "frames": frames, "names": {}}
    walked = list(traceback.walk_tb(error.__traceback__))
    theirs = [(frame, line) for frame, line in walked if frame.f_code.co_filename == shown]
    files = [frame.f_code.co_filename for frame, _ in walked]
    ours = [
        i
        for i, file in enumerate(files)
        if file == "grader" or file.endswith(("rerail/probes.py", "rerail\\probes.py"))
    ]
    last_of_theirs = max((i for i, file in enumerate(files) if file == shown), default=-1)
    unusable = isinstance(error, Unusable) or (loaded and (last_of_theirs < max(ours, default=0)))
    return {
        "kind": "unusable" if unusable else "memory" if _is_memory(error) else "crash",
        "type": type(error).__name__,
        "text": str(error)[:2000],
        "plain": isinstance(error, Unusable),
        "frames": [
            {"line": line, "function": frame.f_code.co_name, "code": linecache.getline(shown, line).rstrip()}
            for frame, line in theirs
        ],
        "names": _shapes(*theirs[-1], shown) if theirs else {},
        "hidden": len(walked) - 1 - last_of_theirs,
    }


def _is_memory(error: BaseException) -> bool:
    return isinstance(error, MemoryError) or "can't allocate memory" in str(error)


def _shapes(frame: types.FrameType, line: int, shown: str) -> dict[str, str]:
    """Tell the shapes of the arrays that the line names."""
    with contextlib.suppress(Exception):  # half a statement, an odd object: then without shapes
        tree = ast.parse(linecache.getline(shown, line).strip().rstrip(":"))
        names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        values = {name: frame.f_locals[name] for name in sorted(names) if name in frame.f_locals}
        return {
            name: f"{type(value).__name__} {tuple(value.shape)}"
            for name, value in values.items()
            if hasattr(value, "shape")
        }
    return {}


def main() -> None:
    """Serve one job on standard input and output, for systems where a warm process must not be forked."""
    read, write = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(2, 1)  # what the learner's code prints goes where errors go
    warm()
    send(write, b"warm")
    with contextlib.suppress(EOFError):
        work(read, write)


if __name__ == "__main__":
    main()
