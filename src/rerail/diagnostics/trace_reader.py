"""Tracebacks read: exceptions and their frames, as Python, notebooks, compilers and launchers print them."""

from __future__ import annotations

import re
import traceback
from dataclasses import dataclass, field
from pathlib import Path

HELD = 1000  # lines of a message that are read; a dispatcher's list has about 90
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
CHAINS = {
    "The above exception was the direct cause of the following exception:": "cause",
    "During handling of the above exception, another exception occurred:": "context",
    "from user code:": "user code",
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
class Frame:
    """One line of a stack: where it is, and what stands there."""

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
class Raised:
    """One exception of a trace: its frames, its type, its message, and how it follows the one before."""

    relation: str = ""
    frames: list[Frame] = field(default_factory=list)
    kind: str = ""
    message: list[str] = field(default_factory=list)

    @property
    def own(self) -> list[Frame]:
        """Return the frames of the user's own code."""
        return [frame for frame in self.frames if not frame.package]


Chain = list[Raised]


def text_of(trace: str | Path | BaseException) -> str:
    """Return the text of a file or an exception; a text stays as it is."""
    if isinstance(trace, Path):
        return trace.read_text("utf-8", errors="replace")
    return trace if isinstance(trace, str) else "".join(traceback.format_exception(trace))


def failures(text: str) -> list[Chain]:
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
        self.found: list[Raised] = []
        self.current: Raised | None = None
        self.relation = ""  # of the exception that comes next
        self.heading = ""  # the type that a notebook writes above the frames
        self.in_notebook = False  # its source lines are numbered, and only the exception begins a line
        self.ended = False  # the message
        self.skipping = False  # the stack that built a graph, inside a message
        self.before = ""  # the last line that is not empty

    def read(self, lines: list[str]) -> list[Raised]:
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

    def _start(self, relation: str) -> Raised:
        self.current = Raised(relation)
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

    def _shows(self, current: Raised, line: str, stripped: str) -> None:
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

    def _says(self, current: Raised, line: str, stripped: str) -> None:
        """Read a line of a message."""
        if self.skipping and stripped and not line.startswith((" ", "\t")):
            self.skipping = False
        if stripped.endswith(DEFINED):
            self.skipping = True
        elif stripped == '"""':
            self.ended = True  # of a traceback that another process sent
        elif not self.skipping and not self.ended and len(current.message) < HELD:
            current.message.append(stripped)


def _frame(line: str) -> Frame | None:
    found = FRAME.match(line)
    if found:
        return Frame(found.group(1), found.group(2), found.group(3) or "")
    line = line.strip() if line.startswith((" ", "\t")) and line.lstrip().startswith("Cell In") else line
    if line.startswith(("File ", "Cell", "Input", "In [", "In[", "~", "/", "<")):
        found = NOTEBOOK.match(line) or CELL.match(line)
        if found:
            path = found.group(1) if line.startswith("File ") else f"Cell {found.group(1)}"
            return Frame(path, found.group(2) or "", (found.group(3) or "").partition("(")[0])
        found = OLD_NOTEBOOK.match(line)
    return Frame(found.group(1), "", found.group(2).partition("(")[0]) if found else None


def _is_exception(name: str) -> bool:
    last = name.rpartition(".")[2]
    return last.endswith(("Error", "Exception", "Warning", "Interrupt", "Exit", "Group", "Iteration")) or (
        "." in name and last[:1].isupper()
    )


def _chains(raised: list[Raised]) -> list[Chain]:
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


def first_of(chain: Chain) -> int:
    """Return where the exception is that came first: a cause before its consequence, a worker's before its report."""
    positions = {relation: index for index, relation in reversed([*enumerate(each.relation for each in chain)])}
    if "original" in positions:
        return max(index for index, each in enumerate(chain) if each.relation == "original")
    leaves = [index for index, each in enumerate(chain) if each.relation == "member" and each.kind[-5:] != "Group"]
    return leaves[0] if leaves else next((i for i, each in enumerate(chain) if each.relation != "forward"), 0)


def root_of(chain: Chain) -> Raised:
    """Return the exception that came first, with the frames of a compiled function below those that called it."""
    root = chain[first_of(chain)]
    user = next((each.frames for each in chain if each.relation == "user code"), [])
    return Raised(root.relation, [*root.frames, *user], root.kind, root.message)
