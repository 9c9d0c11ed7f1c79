"""Long tracebacks made short: the user's own frames, the first cause, its message, its shapes."""

from __future__ import annotations

import hashlib
import re
import traceback
from dataclasses import dataclass, field
from pathlib import Path

LIMIT = 15  # lines; the result has fewer
WIDTH = 220  # characters of a source line or message line: two lines of a terminal
MESSAGE = 4  # lines of a message that have a place even where many frames are own
OWN = 7  # frames of the user's code in one traceback: the first two and the last five
HELD = 1000  # lines of a message that are read; a dispatcher's list has about 90
ENTRIES = 4  # of a chain or group, told in one line each

HEADER = re.compile(r"Traceback \(most recent call last\)")
HEADING = re.compile(r"^([A-Za-z_][\w.]{0,150})\s{2,200}Traceback \(most recent call last\)")  # of a notebook
FRAME = re.compile(r'^\s*File "([^"\n]{1,500})", line (\d{1,9})(?:, in (.{1,300}))?\s*$')
NOTEBOOK = re.compile(r"^File (.{1,300}?):(\d{1,9})(?:, in (.{1,300}))?$")
CELL = re.compile(
    r"^(?:Input |Cell )?(In ?\[\d{1,6}\])(?:, (?:line|in <cell line:) (\d{1,9})>?(?:\(\))?)?(?:, in (.{1,300}))?:?\s*$"
)
OLD_NOTEBOOK = re.compile(r"^(<ipython-input-[^>\n]{1,80}>|[~/][^\s:]{1,300}\.py) in (.{1,300})$")
ARROW = re.compile(r"^-{1,6}> ?(\d{1,9})\s(.{0,500})$")
REPEATED = re.compile(r"^\[Previous line repeated (\d{1,9}) more times?\]$")
RAISED = re.compile(r"^([A-Za-z_][\w.]{0,150})(?:: (.*)|:?\s*)$")
RANK = re.compile(
    r"^(\[(?:default\d+:)?(?:\[?rank ?\d+\]?:?|default\d+)\]:?|\([\w-]{1,40} (?:pid|ip)=[^)\n]{1,80}\)) ?"
)
STAMP = re.compile(r"^\[?\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d[.,\d]{0,12}(?:Z|[+-]\d\d:?\d\d)?\]? ")
LABEL = re.compile(r"^( {0,4}\d{1,5}: )")  # of `srun --label`
MARK = re.compile(r"^[ ~^]{1,500}$")
COLOR = re.compile(r"\x1b\[[0-9;]{0,20}m")
GROUP = re.compile(r"^\s{0,200}(?:\| ?|\+-\+-{4,}|\+-{4,})")
MEMBER = re.compile(r"^\s{0,200}(?:\+-)?\+-{4,40} (?:\d{1,6}|\.\.\.) -{4,40}\s{0,9}$")
SPLIT = "---- member ----"  # stands for the line above a member of a group
LOG = re.compile(  # what a program says between its tracebacks: it ends a message
    r"^\[?\d{4}-\d\d-\d\d[ T]|^\[?\d\d:\d\d:\d\d|^[IWEF]\d{4} \d\d:\d\d|^(?:DEBUG|INFO|WARNING|ERROR|CRITICAL)\b[ :\[]"
    r"|^(?:wandb|srun|slurmstepd)(?:\[\d{1,9}\])?: |^Exception (?:in thread|ignored in)"
    r"|^(?:[Ee]poch|[Ss]tep)[ :=]{1,2}\d|^\s{0,3}\d{1,3}%\||^\S{1,300}\.py:\d{1,9}: \w{0,40}Warning: "
)
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
CHAINS = {
    "The above exception was the direct cause of the following exception:": "cause",
    "During handling of the above exception, another exception occurred:": "context",
    "from user code:": "user code",
}
TOLD = {
    "cause": "which was the direct cause of",
    "context": "and while that was handled",
    "member": "another member of the group:",
}
FORWARD = "Traceback of forward call that caused the error"  # what anomaly mode prints ahead of the failure
QUOTED = "terminated with the following error:"  # torch.multiprocessing, above the traceback of a process
DEFINED = "defined at (most recent call last):"  # TensorFlow, above the stack that built a graph
LIBRARY = ("/site-packages/", "/dist-packages/", "/lib/python3", "/lib64/python3")
PYTHON = re.compile(r"/(?:python3?\d*|(?:ana|mini)(?:conda|forge)3?)/lib/", re.IGNORECASE)  # on Windows
SOURCES = re.compile(  # of libraries that run from a checkout, and of code that they write
    r"/(torch/(?:nn|_\w+|autograd|utils|optim|distributed|fx|jit|overrides|functional|multiprocessing)"
    r"|lightning/(?:pytorch|fabric)|pytorch_lightning|keras/src|tensorflow/python|torchmetrics)[/.]"
    r"|/(torch)inductor_[^/]{1,80}/|/__(autograph)_generated_file"
)
SCRIPT = re.compile(r"/bin/([^/.]{1,80})$")  # `torchrun`, `accelerate`
TYPED = ("<stdin>", "<string>", "<ipython-input", "<console>", "<cell")


@dataclass
class _Frame:
    path: str
    line: str
    function: str
    source: str = ""
    repeated: int = 0  # times more

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
        found = SOURCES.search(path) or SCRIPT.search(path)
        if found:
            return next(part for part in found.groups() if part).partition("/")[0]
        foreign = path.startswith("<") and not path.startswith(TYPED)
        return "python" if foreign or PYTHON.search(path) else ""


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


Chain = list[_Raised]


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
    text = _text(trace)
    limit = max(6, limit)
    failures = _failures(text) if len(text.splitlines()) >= limit else []
    if not failures:
        return text
    first, *others = failures
    identity = _signature(first)
    different = [other for other in others if _signature(other) != identity]
    same = len(others) - len(different)
    tail = (
        [f"the same in {same} more {'process or traceback' if same == 1 else 'processes or tracebacks'}"]
        if same
        else []
    )
    tail += [_cut(f"another failure: {_told_briefly(_root(other))}") for other in different[:1] + different[1:][-1:]]
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
    return next(map(_signature, _failures(_text(trace))), "")


def own_frames(trace: str | Path | BaseException) -> list[tuple[str, int, str]]:
    """Return `(path, line, function)` of the user's own frames in the first cause, the outermost first."""
    root = next(map(_root, _failures(_text(trace))), _Raised())
    return [(each.path, int(each.line or 0), each.function) for each in root.own]


def _text(trace: str | Path | BaseException) -> str:
    if isinstance(trace, Path):
        return trace.read_text("utf-8", errors="replace")
    return trace if isinstance(trace, str) else "".join(traceback.format_exception(trace))


def _failures(text: str) -> list[Chain]:
    """Return the failures of a text, each as the exceptions that hang together; none where it is no traceback."""
    lines = text.splitlines()
    if HEADER.search(text) is None and not (
        any(map(FRAME.match, lines)) and any(re.match(r"^\s*\w*(?:Error|Warning):", line) for line in lines)
    ):
        return []
    return [chain for stream in _streams(lines) for chain in _chains(_Reader().read(stream))]


def _streams(lines: list[str]) -> list[list[str]]:
    """Part the lines of several processes, and take away colours and prefixes."""
    lines = [COLOR.sub("", line) for line in lines]
    stamped, labelled = (
        any((found := prefix.match(line)) and HEADER.match(line, found.end()) for line in lines)
        for prefix in (STAMP, LABEL)
    )
    streams: dict[str, list[str]] = {}
    groups = any("Exception Group Traceback" in line for line in lines)
    for line in lines:
        line = STAMP.sub("", line, count=1) if stamped else line
        found = RANK.match(line) or (LABEL.match(line) if labelled else None)
        line = line[found.end() :] if found else line
        if groups:
            line = SPLIT if MEMBER.match(line) else GROUP.sub("", line, count=1)
        streams.setdefault(found.group(1) if found else "", []).append(line)
    plain = streams.pop("", [])
    if any(HEADER.search(line) for stream in streams.values() for line in stream):
        return [*streams.values(), plain]
    return [plain, *streams.values()]


class _Reader:
    """Reads the exceptions of one process line by line, in the order of the text."""

    def __init__(self) -> None:
        self.found: list[_Raised] = []
        self.current: _Raised | None = None
        self.relation = ""  # of the exception that comes next
        self.heading = ""  # the type that a notebook writes above the frames
        self.in_notebook = False  # its source lines are numbered, and only the exception begins a line
        self.ended = False  # the message
        self.skipping = False  # the stack that built a graph, inside a message
        self.before = ""  # the last line that is not empty

    def read(self, lines: list[str]) -> list[_Raised]:
        for line in lines:
            stripped = line.strip()
            if not (self._joins(line, stripped) or self._begins(line) or self._enters(line)):
                if self.current is None:
                    self._bare(stripped)
                elif LOG.match(line):
                    self.ended = bool(self.current.kind)
                elif self.current.kind:
                    self._says(self.current, line, stripped)
                else:
                    self._shows(self.current, line, stripped)
            self.before = stripped or self.before
        return [each for each in self.found if each.frames or each.kind]

    def _start(self, relation: str) -> _Raised:
        self.current = _Raised(relation)
        self.found.append(self.current)
        self.relation, self.in_notebook, self.ended, self.skipping = "", False, False, False
        return self.current

    def _joins(self, line: str, stripped: str) -> bool:
        """Read a line between two exceptions."""
        if FORWARD in line:
            self._start("forward")
        elif stripped == "from user code:":
            self._start("user code")
        elif stripped in CHAINS or line == SPLIT:
            if stripped in CHAINS and self.current is None:
                self.relation = self.relation or "bare"
                self._bare(self.before)  # an exception that was named as a cause and never raised has no frames
            self.relation, self.current = CHAINS.get(stripped, "member"), None
        else:
            return False
        return True

    def _begins(self, line: str) -> bool:
        """Read the line above the frames."""
        if not HEADER.search(line):
            return False
        outer = self.current.kind if self.current is not None else ""
        quoted = "Original" in line or self.before.endswith((QUOTED, '"""')) or outer.startswith("tensorflow.")
        heading = HEADING.match(line)
        self._start(self.relation or ("original" if outer and quoted else ""))
        self.heading = heading.group(1) if heading else ""
        return True

    def _enters(self, line: str) -> bool:
        """Read a frame."""
        frame = _frame(line)
        if frame is None:
            return False
        current = self.current
        if not self.skipping:
            if current is None or current.kind:
                current = self._start(self.relation)
            current.frames.append(frame)
            self.in_notebook = not FRAME.match(line)
        return True

    def _bare(self, stripped: str) -> None:
        """Read an exception that has no frames; only a group or a chain shows one."""
        raised = RAISED.match(stripped) if self.relation else None
        if raised is not None and _is_exception(raised.group(1)):
            current = self._start("" if self.relation == "bare" else self.relation)
            current.kind, current.message = raised.group(1), [raised.group(2)] if raised.group(2) else []

    def _shows(self, current: _Raised, line: str, stripped: str) -> None:
        """Read a line below a frame: its source, an arrow, or the exception that ends the frames."""
        frame = current.frames[-1] if current.frames else None
        arrow, repeated = ARROW.match(line), REPEATED.match(stripped)
        raised = RAISED.match(stripped)
        indented = line.startswith((" ", "\t"))
        if frame is not None and arrow:
            frame.line, frame.source = frame.line or arrow.group(1), arrow.group(2).strip()
        elif frame is not None and repeated:
            frame.repeated += int(repeated.group(1))
        elif frame is not None and (indented or not stripped):
            if stripped and not MARK.match(line) and not frame.source and not self.in_notebook:
                frame.source = stripped
        elif raised is not None and (
            _is_exception(raised.group(1))
            or raised.group(1) == self.heading
            or (frame is not None and not self.in_notebook)
        ):
            current.kind, current.message = raised.group(1), [raised.group(2)] if raised.group(2) else []

    def _says(self, current: _Raised, line: str, stripped: str) -> None:
        """Read a line of a message."""
        if self.skipping and stripped and not line.startswith((" ", "\t")):
            self.skipping = False
        if stripped.endswith(DEFINED):
            self.skipping = True
        elif stripped == '"""':
            self.ended = True  # of a traceback that another process sent
        elif not self.skipping and not self.ended and len(current.message) < HELD:
            current.message.append(stripped)


def _frame(line: str) -> _Frame | None:
    found = FRAME.match(line)
    if found:
        return _Frame(found.group(1), found.group(2), found.group(3) or "")
    line = line.strip() if line.startswith((" ", "\t")) and line.lstrip().startswith("Cell In") else line
    if line.startswith(("File ", "Cell", "Input", "In [", "In[", "~", "/", "<")):
        found = NOTEBOOK.match(line) or CELL.match(line)
        if found:
            path = found.group(1) if line.startswith("File ") else f"Cell {found.group(1)}"
            return _Frame(path, found.group(2) or "", (found.group(3) or "").partition("(")[0])
        found = OLD_NOTEBOOK.match(line)
    return _Frame(found.group(1), "", found.group(2).partition("(")[0]) if found else None


def _is_exception(name: str) -> bool:
    last = name.rpartition(".")[2]
    return last.endswith(("Error", "Exception", "Warning", "Interrupt", "Exit", "Group", "Iteration")) or (
        "." in name and last[:1].isupper()
    )


def _chains(raised: list[_Raised]) -> list[Chain]:
    """Part the exceptions of one process into failures; a forward call belongs to the failure after it."""
    chains: list[Chain] = []
    forward: Chain = []
    for each in raised:
        if each.relation == "forward":
            forward.append(each)
        elif each.relation and chains:
            chains[-1].append(each)
        else:
            chains.append([*forward, each])
            forward = []
    return chains or [forward] * bool(forward)


def _first(chain: Chain) -> int:
    """Return where the exception is that came first: a cause before its consequence, a worker's before its report."""
    positions = {relation: index for index, relation in reversed([*enumerate(each.relation for each in chain)])}
    if "original" in positions:
        return max(index for index, each in enumerate(chain) if each.relation == "original")
    leaves = [index for index, each in enumerate(chain) if each.relation == "member" and each.kind[-5:] != "Group"]
    return leaves[0] if leaves else next((i for i, each in enumerate(chain) if each.relation != "forward"), 0)


def _root(chain: Chain) -> _Raised:
    """Return the exception that came first, with the frames of a compiled function below those that called it."""
    root = chain[_first(chain)]
    user = next((each.frames for each in chain if each.relation == "user code"), [])
    return _Raised(root.relation, [*root.frames, *user], root.kind, root.message)


def _shortened(chain: Chain, room: int) -> list[str]:
    """Return what came first with its message and frames, and what followed."""
    root, at = _root(chain), _first(chain)
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


def _headline(root: _Raised, lines: int) -> list[str]:
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


def _frames(root: _Raised, room: int) -> list[str]:
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


def _unrepeated(frames: list[_Frame]) -> list[_Frame]:
    """Join the frames of a function that calls itself."""
    joined: list[_Frame] = []
    for frame in frames:
        last = joined[-1] if joined else None
        if last and (last.path, last.line, last.function) == (frame.path, frame.line, frame.function):
            times = last.repeated + 1 + frame.repeated
            joined[-1] = _Frame(last.path, last.line, last.function, last.source or frame.source, times)
        else:
            joined.append(frame)
    return joined


def _counted(library: list[_Frame]) -> str:
    count = sum(1 + frame.repeated for frame in library)
    return f"{count} library frame{'' if count == 1 else 's'}"


def _told(frame: _Frame) -> str:
    function = f" in {frame.function}" if frame.function else ""
    again = f" ({frame.repeated} times more)" if frame.repeated else ""
    return _cut(f"  {_place(frame)}{function}{again}" + (f": {frame.source}" if frame.source else ""))


def _place(frame: _Frame) -> str:
    path = frame.path
    if frame.package:
        parts = path.replace("\\", "/").split("/")
        at = next((index for index in range(len(parts) - 1, 0, -1) if parts[index - 1].endswith("packages")), None)
        path = "/".join(parts[at:]) if at is not None else "/".join(parts[-3:])
    return f"{path}:{frame.line}" if frame.line else path


def _follows(each: _Raised) -> str:
    relation = "" if each.kind.endswith("Group") else each.relation
    return f"{TOLD.get(relation, 'reported by')} {_told_briefly(each)}"


def _told_briefly(each: _Raised) -> str:
    place = f" ({_place(each.own[-1])})" if each.own else ""
    return _cut(_headline(each, 1)[0], WIDTH - 40 - len(place)) + place


def _packages(library: list[_Frame]) -> str:
    return ", ".join(list(dict.fromkeys(frame.package for frame in library))[:4])


def _cut(text: str, width: int = WIDTH) -> str:
    return text if len(text) <= width else text[: max(0, width - 3)] + "..."


def _signature(chain: Chain) -> str:
    root = _root(chain)
    last = max((index for index, frame in enumerate(root.frames) if not frame.package), default=-1)
    entered = root.frames[last + 1] if last + 1 < len(root.frames) else _Frame("", "", "")
    call = "" if entered.function.startswith("_") else entered.function  # private names change with the release
    names = [frame.function.rpartition(".")[2] for frame in root.own]  # a notebook writes the class before a method
    names = ["<module>" if not name or name.startswith("<cell line") else name for name in names]
    names = [name for name in names if name not in ("<listcomp>", "<dictcomp>", "<setcomp>")]  # gone since Python 3.12
    parts = [root.kind, entered.package, call, *dict.fromkeys(names)]  # once each: a recursion ends at any depth
    digits = hashlib.sha256("|".join(parts).encode("utf-8", "backslashreplace")).hexdigest()
    return f"{root.kind or 'none'}-{digits[:12]}"
