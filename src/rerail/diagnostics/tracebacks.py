"""Long tracebacks made short: the user's own frames, the first cause, its message, its shapes."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from rerail.diagnostics.trace_reader import Chain, Frame, Raised, failures, first_of, root_of, text_of

LIMIT = 15  # lines; the result has fewer
WIDTH = 220  # characters of a source line or message line: two lines of a terminal
MESSAGE = 4  # lines of a message that have a place even where many frames are own
OWN = 7  # frames of the user's code in one traceback: the first two and the last five
ENTRIES = 4  # of a chain or group, told in one line each
NATIVE = re.compile(  # lines of a message that name places in the library's own source and nothing of the run
    r"^(?:Exception raised from |frame #\d|C\+\+ CapturedTraceback|#\d+ |\s*\w+: (?:registered at|fallthrough ))"
)
ADVICE = re.compile(r"^(?:Hint: |Developer debug context|For more details|Set TORCH|You can suppress)")
LAUNCHED = re.compile(  # the empty parts of what a launcher says of its processes
    r"^(?:[=-]{10,}$|Failures:$|<NO_OTHER|time +: |error_file: |traceback : To enable|\[\d+\]:$)"
)
GENERAL = " This could be because the operator doesn't exist for this backend"  # what the dispatcher adds to every call
SHAPES = re.compile(
    r"torch\.Size\(\[[^\]\n]{0,80}\]\)|(?:shape|size)=\([^)\n]{0,80}\)|\[\d{1,9}(?:, \d{1,9}){0,7}\]"
    r"|\b\d{1,9}x\d{1,9}(?:x\d{1,9}){0,5}\b|\b(?:cuda|xpu|mps):\d{1,3}\b"
    r"|\btorch\.(?:(?:float|int|bfloat|uint|complex)\d{1,3}|bool|half|double|(?:cuda\.)?\w{1,20}Tensor)\b"
    r"|\bdtype=\w{1,20}"
)
WRAPPED = re.compile(r"got (\w{1,60}(?:Error|Exception)\(['\"].{1,300}?['\"]\))")  # what a compiler wraps
TOLD = {
    "cause": "which was the direct cause of",
    "context": "and while that was handled",
    "member": "another member of the group:",
}


def minify_traceback(trace: str | Path | BaseException, *, limit: int = LIMIT) -> str:
    """Shorten a traceback to the user's own frames, the first cause and its message.

    Read are tracebacks of Python, with chained exceptions and exception groups; of IPython and Jupyter; of Lightning,
    Keras and TensorFlow; of `torch.compile`; of loader workers and spawned processes; and of several ranks in one log.
    The first line is the exception that came first, with its message; own frames follow, each on one line; library
    frames are counted, and the call into the library is kept. Of several tracebacks in one log the first is told, the
    others have a line each; what the log says around them is left out. What is no traceback, or is short already,
    comes back unchanged.

    Args:
        trace: The text of a log or traceback, the `Path` of one, or an exception.
        limit: The result has fewer lines than this, 6 or more.

    Returns:
        The short text.

    Example:
        ```python
        try:
            trainer.fit(model, loader)
        except RuntimeError as error:
            print(rerail.minify_traceback(error))
        ```
    """
    text = text_of(trace)
    limit = max(6, limit)
    found = failures(text) if len(text.splitlines()) >= limit else []
    if not found:
        return text
    first, *others = found
    identity = _signature(first)
    different = [other for other in others if _signature(other) != identity]
    same = len(others) - len(different)
    tail = (
        [f"the same in {same} more {'process or traceback' if same == 1 else 'processes or tracebacks'}"]
        if same
        else []
    )
    tail += [_cut(f"another failure: {told_briefly(root_of(other))}") for other in different[:1] + different[1:][-1:]]
    if len(different) > 2:
        tail.insert(-1, f"... {len(different) - 2} more failure{'s' * (len(different) > 3)}")
    tail = tail[-(limit - 4) :]
    return "\n".join([*_shortened(first, limit - 1 - len(tail)), *tail]) + "\n"


def traceback_signature(trace: str | Path | BaseException) -> str:
    """Return a short identity of a failure: the same for one bug at another line, on another machine or rank.

    Args:
        trace: As in `minify_traceback`.

    Returns:
        The type of the first cause and twelve hexadecimal digits, "" where there is no traceback. The digits stand for
        the type, the names of the own functions, and the call into a library.
    """
    return next(map(_signature, failures(text_of(trace))), "")


def own_frames(trace: str | Path | BaseException) -> list[tuple[str, int, str]]:
    """Return `(path, line, function)` of the user's own frames in the first cause, the outermost first."""
    root = next(map(root_of, failures(text_of(trace))), Raised())
    return [(each.path, int(each.line or 0), each.function) for each in root.own]


def _shortened(chain: Chain, room: int) -> list[str]:
    """Return what came first with its message and frames, and what followed."""
    root, at = root_of(chain), first_of(chain)
    others = [
        each
        for each in (*chain[at + 1 :], *reversed(chain[:at]))
        if each.kind and each.relation != "forward"
        and (each.own or each.message != root.message or each.relation == "member")
    ]  # fmt: skip
    follow = [_cut(_follows(each)) for each in others[:ENTRIES]]
    if len(others) > ENTRIES:
        part = "group" if any(each.relation == "member" for each in others) else "chain"
        left_out = f"... {len(others) - ENTRIES + 1} more exceptions of this {part}"
        follow = [*follow[: ENTRIES - 2], left_out, _cut(_follows(others[-1]))]
    forward = [frame for each in chain[:at] if each.relation == "forward" for frame in each.own][-2:]
    follow = [*(_cut(f"  the forward call behind it: {_told(frame).strip()}") for frame in forward), *follow]
    follow = follow[: max(0, room - 3)]
    needed = min(OWN, len(root.own) or 1) + 1
    head = _headline(root, max(1, min(room - 2 - len(follow), max(MESSAGE, room - len(follow) - needed))))
    return [*head, *_frames(root, room - len(head) - len(follow)), *follow]


def _headline(root: Raised, lines: int) -> list[str]:
    """Return the type and at most so many lines of the message, and all shapes that other lines name."""
    launched = root.kind.endswith("ChildFailedError")
    said = [line for line in root.message if line and not NATIVE.match(line)]
    said = [line for line in said if not (launched and LAUNCHED.match(line))]
    main = [line for line in said if not ADVICE.match(line)]
    kept = [_sentences(main[0]), *(_cut(line) for line in main[1:])] if main else []
    shown = [f"{root.kind or 'the trace ends without an exception'}{': ' + kept[0] if kept else ''}"]
    shown += [f"  {line}" for line in kept[1:]]
    inside = WRAPPED.search("\n".join(said)[:20_000])
    if inside and not any(inside.group(1) in line for line in shown):
        shown.insert(1, f"  {inside.group(1)}")
    complete = len(shown) <= lines and kept == said
    shown = shown if len(shown) <= lines else shown[: max(1, lines - 1)]
    if complete or lines < 2:
        return shown
    text = "\n".join(shown)
    named = [each for each in dict.fromkeys(SHAPES.findall("\n".join(said))) if each not in text]
    return [*shown, _cut("  also named: " + ", ".join(named))][: lines if named else len(shown)]


def _sentences(text: str) -> str:
    """Return as many whole sentences of a long line as fit, the first in any case."""
    text = text.partition(GENERAL)[0]
    if len(text) <= WIDTH:
        return text
    end = text.rfind(". ", 0, WIDTH)
    return text[: end + 1] if end > 0 else _cut(text)


def _frames(root: Raised, room: int) -> list[str]:
    """Return one line for each own frame, and one for the library frames between and after them."""
    own = _unrepeated(root.own)
    library = [frame for frame in root.frames if frame.package]
    if not own:
        last = library[max(0, len(library) - max(0, min(2, room - 1))) :]
        counted = [f"  ... {_counted(library)} ({_packages(library)})"] if len(library) > len(last) else []
        return [*counted, *map(_told, last)]
    keep = max(1, room - bool(library))
    shown = [*map(_told, own)]
    if len(own) > min(OWN, keep):
        end = max(1, min(OWN - 2, keep - 2))
        start = max(0, min(2, keep - 1 - end))
        left_out = sum(1 + frame.repeated for frame in own[start:-end])
        told = f"  ... {left_out} more own frame{'s' if left_out > 1 else ''}"
        shown = [*shown[:start], *([told] if keep > 1 else []), *shown[-end:]]
    if library:
        position = max(index for index, frame in enumerate(root.frames) if not frame.package)
        said = f"  ... {_counted(library)} ({_packages(library)})"
        below = root.frames[position + 1 :]
        said += f"; entered by {_place(below[0])} in {below[0].function}" if below else ""
        said += (
            f", raised in {_place(below[-1])} in {below[-1].function}"
            if below and _place(below[-1]) != _place(below[0])
            else ""
        )
        shown.append(_cut(said))
    return shown[-max(1, room) :]


def _unrepeated(frames: list[Frame]) -> list[Frame]:
    """Join the frames of a function that calls itself."""
    joined: list[Frame] = []
    for frame in frames:
        last = joined[-1] if joined else None
        if last and (last.path, last.line, last.function) == (frame.path, frame.line, frame.function):
            times = last.repeated + 1 + frame.repeated
            joined[-1] = Frame(last.path, last.line, last.function, last.source or frame.source, times)
        else:
            joined.append(frame)
    return joined


def _counted(library: list[Frame]) -> str:
    count = sum(1 + frame.repeated for frame in library)
    return f"{count} library frame{'' if count == 1 else 's'}"


def _told(frame: Frame) -> str:
    function = f" in {frame.function}" if frame.function else ""
    again = f" ({frame.repeated} times more)" if frame.repeated else ""
    return _cut(f"  {_place(frame)}{function}{again}" + (f": {frame.source}" if frame.source else ""))


def _place(frame: Frame) -> str:
    path = frame.path
    if frame.package:
        parts = path.replace("\\", "/").split("/")
        at = next((index for index in range(len(parts) - 1, 0, -1) if parts[index - 1].endswith("packages")), None)
        path = "/".join(parts[at:]) if at is not None else "/".join(parts[-3:])
    return f"{path}:{frame.line}" if frame.line else path


def _follows(each: Raised) -> str:
    relation = "" if each.kind.endswith("Group") else each.relation
    return f"{TOLD.get(relation, 'reported by')} {told_briefly(each)}"


def told_briefly(each: Raised) -> str:
    """Return type, message and own line of an exception in one line."""
    place = f" ({_place(each.own[-1])})" if each.own else ""
    return _cut(_headline(each, 1)[0], WIDTH - 40 - len(place)) + place


def _packages(library: list[Frame]) -> str:
    return ", ".join(list(dict.fromkeys(frame.package for frame in library))[:4])


def _cut(text: str, width: int = WIDTH) -> str:
    return text if len(text) <= width else text[: max(0, width - 3)] + "..."


def _signature(chain: Chain) -> str:
    root = root_of(chain)
    last = max((index for index, frame in enumerate(root.frames) if not frame.package), default=-1)
    entered = root.frames[last + 1] if last + 1 < len(root.frames) else Frame("", "", "")
    call = "" if entered.function.startswith("_") else entered.function  # private names change with the release
    names = [frame.function.rpartition(".")[2] for frame in root.own]  # a notebook writes the class before a method
    names = ["<module>" if not name or name.startswith("<cell line") else name for name in names]
    names = [name for name in names if name not in ("<listcomp>", "<dictcomp>", "<setcomp>")]  # gone since Python 3.12
    parts = [root.kind, entered.package, call, *dict.fromkeys(names)]  # once each: a recursion ends at any depth
    digits = hashlib.sha256("|".join(parts).encode("utf-8", "backslashreplace")).hexdigest()
    return f"{root.kind or 'none'}-{digits[:12]}"
