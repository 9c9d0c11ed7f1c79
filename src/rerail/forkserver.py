"""Fork one warm child a job. Reads jobs on descriptor 0; holds torch and the probes, and no secret.

A job is a word with three descriptors: the socket to talk to the judge, the pipe for what is printed, and a socket on
which the judge may ask for a kill and learns the exit code. `multiprocessing`'s fork-server was tried: it starts under
a sandbox only through a patched private function, and there its process numbers are another namespace's.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import socket
from pathlib import Path
from typing import Any

from rerail import child

DESCRIPTORS = 3
PR_SET_CHILD_SUBREAPER = 36


def serve() -> None:
    """Accept jobs until the judge closes its end."""
    control = socket.socket(fileno=os.dup(0))
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    with contextlib.suppress(OSError, AttributeError):  # orphans of a child become ours, so that they can be killed
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    child.warm()
    control.send(b"warm")
    jobs: dict[int, tuple[int, socket.socket]] = {}  # pidfd -> process, status socket
    while True:
        watched: list[Any] = [control, *jobs, *(status for _, status in jobs.values())]  # sockets and numbers mix
        ready = set(select.select(watched, [], [])[0])
        for pidfd in [pidfd for pidfd in jobs if pidfd in ready]:
            _finish(jobs, pidfd)
        for process, status in jobs.values():
            if status in ready:
                _obey(process, status)
        if control in ready and not _start(control, jobs):
            return


def _start(control: socket.socket, jobs: dict[int, tuple[int, socket.socket]]) -> bool:
    word, descriptors, _, _ = socket.recv_fds(control, 16, DESCRIPTORS)
    if not word:
        for process, _ in jobs.values():
            _kill_group(process)
        return False
    process = os.fork()
    if process == 0:
        try:
            _become_child(*descriptors)
        finally:
            os._exit(9)
    for descriptor in descriptors[:2]:
        os.close(descriptor)
    jobs[os.pidfd_open(process)] = (process, socket.socket(fileno=descriptors[2]))
    return True


def _obey(process: int, status: socket.socket) -> None:
    """Do what the judge asks: have a child write down the line it is in, or kill it; also if the judge has gone."""
    word = b""
    with contextlib.suppress(OSError):
        word = status.recv(4)
    if word == b"look":
        os.kill(process, signal.SIGUSR1)
    else:
        _kill_group(process)


def _become_child(talk: int, output: int, status: int) -> None:
    os.setsid()
    os.dup2(output, 1)
    os.dup2(output, 2)
    talk = os.dup2(talk, 100)
    os.closerange(3, 100)
    os.closerange(101, 1024)
    child.work(talk, talk)


def _finish(jobs: dict[int, tuple[int, socket.socket]], pidfd: int) -> None:
    process, status = jobs.pop(pidfd)
    _kill_group(process)  # while the zombie still holds the group's number
    _, code = os.waitpid(process, 0)
    _kill_strays({other for other, _ in jobs.values()})
    with contextlib.suppress(OSError):
        status.send(str(os.waitstatus_to_exitcode(code)).encode())
    status.close()
    os.close(pidfd)


def _kill_group(process: int) -> None:
    for kill in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            kill(process, signal.SIGKILL)


def _kill_strays(running: set[int]) -> None:
    """Kill what a child left behind in a session of its own: as our orphan it is our child, and no job."""
    with contextlib.suppress(OSError):
        me = os.getpid()
        for stray in map(int, Path(f"/proc/{me}/task/{me}/children").read_text().split()):
            if stray not in running:
                _kill_group(stray)
                os.waitpid(stray, 0)


if __name__ == "__main__":
    serve()
    os._exit(0)  # the shutdown of an interpreter that holds torch takes a second or two
