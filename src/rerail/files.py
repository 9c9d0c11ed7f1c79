"""Files: written whole or not at all, and what helps against an error."""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
from pathlib import Path


def write_whole(path: Path, content: bytes) -> None:
    """Write a file whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise


def remedy(error: OSError) -> str:
    """Say what helps against an error of the file system, and name the file."""
    named = Path(error.filename2 or error.filename or "it")
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "make room on the disk"
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return f"set the permissions of {named}"
    if error.errno in (errno.EISDIR, errno.ENOTDIR, errno.EEXIST):
        in_the_way = next((path for path in (named, *named.parents) if path.exists()), named)
        return f"move {in_the_way} away"
    if error.errno == errno.ENOENT:
        return "name another place"
    return f"make room, or set the permissions of {named}"
