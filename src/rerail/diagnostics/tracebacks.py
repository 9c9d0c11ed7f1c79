"""Long tracebacks made short: the user's own frames, the first cause, its message, its shapes."""

from __future__ import annotations

import hashlib
import re
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field

LIMIT = 15  # lines; the result has fewer
WIDTH = 110  # characters of a source line or message line
MESSAGE = 4  # lines of a message
OWN = 7  # frames of the user's code in one traceback: the first two and the last five

HEADER = re.compile(r"Traceback \(most recent call last\)")
FRAME = re.compile(r'^\s*File "([^"\n]{1,500})", line (\d{1,9})(?:, in (.{1,300}))?\s*$')
NOTEBOOK = re.compile(r"^(?:File )?(.{1,300}?):(\d{1,9}), in (.{1,300})$")
CELL = re.compile(
    r"^(?:Input |Cell )?(In ?\[\d{1,6}\])(?:, (?:line|in <cell line:) (\d{1,9})>?(?:\(\))?)?(?:, in (.{1,300}))?:?\s*$"
)
OLD_NOTEBOOK = re.compile(r"^(<ipython-input-[^>\n]{1,80}>|[~/][^\s:]{1,300}\.py) in (.{1,300})$")
ARROW = re.compile(r"^-{1,6}> ?(\d{1,9})\s(.{0,500})$")
RAISED = re.compile(r"^([A-Za-z_][\w.]{0,150})(?:: (.*)|:?\s*)$")
RANK = re.compile(
    r"^(\[(?:default\d+:)?(?:\[?rank ?\d+\]?:?|default\d+)\]:?|\([\w-]{1,40} (?:pid|ip)=[^)\n]{1,80}\)) ?"
)
MARK = re.compile(r"^\s*[~^]{1,500}\s*$")
COLOR = re.compile(r"\x1b\[[0-9;]{0,20}m")
GROUP = re.compile(r"^\s{0,200}(?:\| ?|\+-\+-{4,}|\+-{4,})")
MEMBER = re.compile(r"\+?-{4,} \d{1,6} -{4,}")
NOISE = re.compile(  # lines of a message that help nobody who did not write the library
    r"^(?:Hint: |Developer debug context|For more details|Set TORCH|You can suppress"
    r"|Exception raised from |frame #\d|C\+\+ CapturedTraceback|#\d+ |\s*[A-Za-z]\w*: (?:registered|fallthrough) )"
)
DISPATCH = re.compile(r"^\w+: (?:registered at|fallthrough registered)")
SHAPES = re.compile(
    r"torch\.Size\(\[[^\]\n]{0,80}\]\)|shape=\([^)\n]{0,80}\)|\[\d{1,9}(?:, \d{1,9}){0,7}\]"
    r"|\b\d{1,9}x\d{1,9}(?:x\d{1,9}){0,5}\b|\bcuda:\d{1,3}\b|\btorch\.(?:float|int|bfloat|uint)\d{1,2}\b"
)
CHAINS = {
    "The above exception was the direct cause of the following exception:": "cause",
    "During handling of the above exception, another exception occurred:": "context",
    "from user code:": "user code",
}
FORWARD = "Traceback of forward call that caused the error"  # what anomaly mode prints ahead of the failure
LIBRARY = ("/site-packages/", "/dist-packages/", "/lib/python3", "/lib64/python3")
SOURCES = re.compile(  # of libraries that run from a checkout
    r"/(torch/(?:nn|_\w+|autograd|utils|optim|distributed|fx|jit|overrides|functional|multiprocessing)"
    r"|lightning/(?:pytorch|fabric)|pytorch_lightning|keras/src|tensorflow/python|torchmetrics)[/.]"
)
TYPED = ("<stdin>", "<string>", "<ipython-input", "<console>", "<cell")


@dataclass
class _Frame:
    path: str
    line: str
    function: str
    source: str = ""

    @property
    def package(self) -> str:
        """Return the library that a frame belongs to, "" for the user's own code."""
        path = self.path.replace("\\", "/")
        lower = path.lower()
        for part in LIBRARY:
            at = lower.find(part)
            if at >= 0:
                rest = path[at + len(part) :]
                return rest.partition("/")[0].removesuffix(".py") if part.endswith("packages/") else "python"
        found = SOURCES.search(path)
        if found:
            return found.group(1).partition("/")[0]
        return "python" if path.startswith("<") and not path.startswith(TYPED) else ""


@dataclass
class _Raised:
    """One exception of a trace: its frames, its type, its message, and how it follows the one before."""

    relation: str = ""
    frames: list[_Frame] = field(default_factory=list)
    kind: str = ""
    message: list[str] = field(default_factory=list)

    @property
    def own(self) -> list[_Frame]:
        return [frame for frame in self.frames if not frame.package]


def minify_traceback(trace: str | BaseException, *, limit: int = LIMIT) -> str:
    """Shorten a traceback to the user's own frames, the first cause and its message.

    Read are tracebacks of Python, with chained exceptions and exception groups; of IPython and Jupyter; of Lightning,
    Keras and TensorFlow; of `torch.compile`; of loader workers and spawned processes; and of several ranks in one log.
    The first line is the exception that came first, with its message; own frames follow, each on one line; library
    frames are counted, and the call into the library is kept. What is no traceback, or is short already, comes back
    unchanged.

    Args:
        trace: The text of a log or traceback, or an exception.
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
    text = trace if isinstance(trace, str) else "".join(traceback.format_exception(trace))
    lines = text.splitlines()
    limit = max(6, limit)
    if len(lines) < limit or not _holds_a_traceback(text):
        return text
    streams = [_parsed(stream) for stream in _streams(lines)]
    streams = [raised for raised in streams if any(each.frames or each.kind for each in raised)]
    if not streams:
        return text
    first, *others = streams
    same = [other for other in others if _signature(other) == _signature(first)]
    different = [other for other in others if _signature(other) != _signature(first)]
    room = limit - 1 - bool(same) - min(len(different), 2)
    short = _shortened(first, room)
    if same:
        short.append(f"the same in {len(same)} more process{'es' if len(same) > 1 else ''}")
    short += [f"another failure: {_headline(_root(other), 1)[0]}" for other in different[:2]]
    return "\n".join(short[: limit - 1]) + "\n"


def traceback_signature(trace: str | BaseException) -> str:
    """Return a short identity of a failure: the same for one bug at another line, on another machine or rank.

    Args:
        trace: As in `minify_traceback`.

    Returns:
        The type of the first cause and twelve hexadecimal digits, "" where there is no traceback.
    """
    text = trace if isinstance(trace, str) else "".join(traceback.format_exception(trace))
    if not _holds_a_traceback(text):
        return ""
    streams = [_parsed(stream) for stream in _streams(text.splitlines())]
    return next((_signature(raised) for raised in streams if any(each.frames or each.kind for each in raised)), "")


def own_frames(trace: str | BaseException) -> list[tuple[str, int, str]]:
    """Return `(path, line, function)` of the user's own frames in the first cause, the outermost first."""
    text = trace if isinstance(trace, str) else "".join(traceback.format_exception(trace))
    if not _holds_a_traceback(text):
        return []
    streams = [_parsed(stream) for stream in _streams(text.splitlines())]
    root = next((_root(raised) for raised in streams if raised), None)
    return [] if root is None else [(each.path, int(each.line or 0), each.function) for each in root.own]


def _holds_a_traceback(text: str) -> bool:
    if HEADER.search(text) is not None:
        return True
    lines = text.splitlines()
    return any(FRAME.match(line) for line in lines) and any(
        re.match(r"^\s*\w*(?:Error|Warning):", line) for line in lines
    )


def _streams(lines: list[str]) -> list[list[str]]:
    """Part the lines of several processes, and take away colours and prefixes."""
    streams: dict[str, list[str]] = {}
    groups = any("Exception Group Traceback" in line for line in lines)
    for raw in lines:
        line = COLOR.sub("", raw)
        found = RANK.match(line)
        key = found.group(1) if found else ""
        line = line[found.end() :] if found else line
        if groups:
            cut = GROUP.match(line)
            if cut and MEMBER.search(line):
                line = "---- member ----"
            elif cut:
                line = line[cut.end() :]
        streams.setdefault(key, []).append(line)
    ranked = [stream for key, stream in streams.items() if key]
    plain = streams.get("", [])
    if any(HEADER.search(line) for stream in ranked for line in stream):
        return [*ranked, plain] if any(HEADER.search(line) for line in plain) else ranked
    return [plain, *ranked]


def _parsed(lines: list[str]) -> list[_Raised]:
    """Read the exceptions of one process, in the order of the text."""
    found: list[_Raised] = []
    current: _Raised | None = None
    relation = ""
    arrow_wanted = False
    for line in lines:
        stripped = line.strip()
        if stripped in CHAINS:
            relation = CHAINS[stripped]
            if relation == "user code":
                current = _Raised(relation)
                found.append(current)
            else:
                current = None
            continue
        if FORWARD in line:
            current = _Raised("forward")
            found.append(current)
            continue
        if line == "---- member ----":
            relation, current = "member", None
            continue
        if HEADER.search(line):
            inside = current is not None and bool(current.kind)
            current = _Raised(relation or ("original" if inside and "Original" in line else "nested" if inside else ""))
            found.append(current)
            relation = ""
            continue
        frame = _frame(line)
        if frame is not None:
            if current is None or (current.kind and current.relation != "user code"):
                if current is not None and not stripped.startswith(("File", "Cell", "In", "~", "/", "<")):
                    current.message.append(stripped)
                    continue
                current = _Raised(relation)
                found.append(current)
                relation = ""
            current.frames.append(frame)
            arrow_wanted = not line.lstrip().startswith('File "')
            continue
        if current is None:
            continue
        arrow = ARROW.match(line)
        if current.frames and arrow and not current.kind:
            frame = current.frames[-1]
            frame.line, frame.source = frame.line or arrow.group(1), arrow.group(2).strip()
            continue
        if current.frames and not current.kind and (line.startswith((" ", "\t")) or not stripped or arrow_wanted):
            raised = RAISED.match(line) if not line.startswith((" ", "\t")) else None
            if raised is None or not _is_exception(raised.group(1)):
                if stripped and not MARK.match(line) and not current.frames[-1].source and not arrow_wanted:
                    current.frames[-1].source = stripped
                continue
        if not current.kind:
            raised = RAISED.match(stripped)
            if raised is not None and (current.frames or _is_exception(raised.group(1))):
                current.kind = raised.group(1)
                if raised.group(2):
                    current.message.append(raised.group(2))
        elif stripped or (current.message and len(current.message) < 200):
            current.message.append(stripped)
    return [each for each in found if each.frames or each.kind]


def _frame(line: str) -> _Frame | None:
    found = FRAME.match(line)
    if found:
        return _Frame(found.group(1), found.group(2), found.group(3) or "")
    if line.startswith(("File ", "~", "/")):
        found = NOTEBOOK.match(line)
        if found:
            return _Frame(found.group(1), found.group(2), found.group(3).partition("(")[0])
    if line.startswith(("Cell", "Input", "In [", "In[")):
        found = CELL.match(line.strip())
        if found:
            return _Frame(f"Cell {found.group(1)}", found.group(2) or "", (found.group(3) or "").partition("(")[0])
    found = OLD_NOTEBOOK.match(line)
    return _Frame(found.group(1), "", found.group(2).partition("(")[0]) if found else None


def _is_exception(name: str) -> bool:
    last = name.rpartition(".")[2]
    return last.endswith(("Error", "Exception", "Warning", "Interrupt", "Exit", "Group", "Iteration")) or (
        "." in name and last[:1].isupper()
    )


def _root(raised: list[_Raised]) -> _Raised:
    """Return the exception that came first: a cause before its consequence, a worker's before its report."""
    chain = _last_chain(raised)
    inner = [each for each in chain if each.relation in ("original", "nested") and (each.kind or each.frames)]
    if inner:
        return inner[-1]
    members = [each for each in chain if each.relation == "member" and each.kind]
    root = members[0] if members else chain[0]
    user = [each for each in chain if each.relation == "user code"]
    return _Raised(root.relation, [*root.frames, *user[0].frames], root.kind, root.message) if user else root


def _last_chain(raised: list[_Raised]) -> list[_Raised]:
    """Return the exceptions that hang together; of several tracebacks in one text the first."""
    failures = [each for each in raised if each.relation != "forward"] or raised
    chain = [failures[0]]
    for each in failures[1:]:
        if each.relation == "":
            break
        chain.append(each)
    return chain


def _shortened(raised: list[_Raised], room: int) -> list[str]:
    chain = _last_chain(raised)
    root = _root(raised)
    at = next((index for index, each in enumerate(chain) if each.kind == root.kind and each.message == root.message), 0)
    later = [each for each in (*chain[at + 1 :], *reversed(chain[:at])) if each.kind and each.message != root.message][
        :3
    ]
    forward = [frame for each in raised if each.relation == "forward" for frame in each.own][-2:]
    head = _headline(root, MESSAGE)
    space = room - len(head) - len(later) - len(forward)
    called = [f"  the forward call behind it: {_told(frame).strip()}" for frame in forward]
    return [*head, *_frames(root, max(3, space)), *called, *(_follows(each) for each in later)]


def _headline(root: _Raised, lines: int) -> list[str]:
    """Return the type and the message, without lists that the dispatcher adds, with all shapes."""
    kept: list[str] = []
    dropped: list[str] = []
    for line in root.message:
        noise = NOISE.match(line) or DISPATCH.match(line) or (kept and not line)
        (dropped if noise or len(kept) >= lines else kept).append(line)
    first = kept[0] if kept else ""
    if len(first) > 2 * WIDTH:
        sentence = first.find(". ")
        cut = sentence + 1 if 0 < sentence < 4 * WIDTH else 2 * WIDTH
        dropped.append(first[cut:])
        first = first[:cut]
    shown = [f"{root.kind or 'the trace ends without an exception'}{': ' + first if first else ''}"]
    shown += [f"  {_cut(line, 2 * WIDTH)}" for line in kept[1:] if line]
    inside = re.search(r"got (\w{1,60}(?:Error|Exception)\(['\"].{1,300}?['\"]\))", "\n".join(root.message))
    if inside and lines > 1 and inside.group(1) not in "\n".join(shown):  # what a compiler wraps
        shown.insert(1, f"  {inside.group(1)}")
    text = "\n".join(shown)
    extra = [shape for shape in dict.fromkeys(SHAPES.findall("\n".join(dropped))) if shape not in text][:6]
    if extra and lines > 1:
        shown.append("  also named: " + ", ".join(extra))
    return shown


def _frames(root: _Raised, room: int) -> list[str]:
    """Return one line for each own frame, and one for the library frames between and after them."""
    own = root.own
    library = [frame for frame in root.frames if frame.package]
    if not own:
        last = library[-2:]
        shown = [_told(frame) for frame in last]
        rest = len(library) - len(last)
        return [*([f"  ... {rest} library frames ({_packages(library)})"] if rest else []), *shown]
    keep = min(OWN, max(1, room - 2))
    shown_own = (
        own if len(own) <= keep else [*own[: max(1, keep - 5)], *own[-min(5, keep - 1) :]] if keep > 1 else own[-1:]
    )
    shown = [_told(frame) for frame in shown_own]
    if len(shown_own) < len(own):
        shown.insert(
            len(shown_own) - min(5, keep - 1) if keep > 1 else 0, f"  ... {len(own) - len(shown_own)} more own frames"
        )
    if library:
        position = max(index for index, frame in enumerate(root.frames) if not frame.package)
        entered = root.frames[position + 1] if position + 1 < len(root.frames) else None
        said = f"  ... {len(library)} library frames ({_packages(library)})"
        if entered is not None:
            said += f"; entered by {_place(entered)} in {entered.function}"
        shown.append(said)
    return shown


def _told(frame: _Frame) -> str:
    function = f" in {frame.function}" if frame.function else ""
    return _cut(f"  {_place(frame)}{function}" + (f": {frame.source}" if frame.source else ""), 2 * WIDTH)


def _place(frame: _Frame) -> str:
    path = frame.path
    if frame.package:
        parts = path.replace("\\", "/").split("/")
        at = next((index for index in range(len(parts) - 1, 0, -1) if parts[index - 1].endswith("packages")), None)
        path = "/".join(parts[at:]) if at is not None else "/".join(parts[-3:])
    return f"{path}:{frame.line}" if frame.line else path


def _follows(each: _Raised) -> str:
    words = {
        "cause": "which was the direct cause of",
        "context": "and while that was handled",
        "member": "another member of the group:",
    }
    last = each.own[-1] if each.own else None
    place = f" ({_place(last)})" if last is not None else ""
    return _cut(f"{words.get(each.relation, 'reported by')} {_headline(each, 1)[0]}{place}", 2 * WIDTH)


def _packages(library: list[_Frame]) -> str:
    return ", ".join(list(dict.fromkeys(frame.package for frame in library))[:4])


def _cut(text: str, width: int = WIDTH) -> str:
    return text if len(text) <= width else text[: width - 3] + "..."


def _signature(raised: list[_Raised]) -> str:
    root = _root(raised)
    entered = next((frame.package for frame in root.frames if frame.package), "")
    names: Iterator[str] = (frame.function for frame in root.own)
    return f"{root.kind or 'none'}-{hashlib.sha256('|'.join([root.kind, entered, *names]).encode()).hexdigest()[:12]}"
