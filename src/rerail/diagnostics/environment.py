"""The environment of a run: what it ran, with what, on what; and whether a failure is the environment's."""

from __future__ import annotations

import contextlib
import difflib
import hashlib
import importlib.machinery
import importlib.metadata
import importlib.util
import json
import os
import platform
import random
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from rerail.diagnostics.finding import (
    CannotAnswer,
    Cause,
    Finding,
    Report,
    answers,
    is_library,
    not_applicable,
    unknown,
)
from rerail.diagnostics.tracebacks import own_frames

PACKAGES = ("torch", "numpy", "lightning", "pytorch_lightning", "keras", "tensorflow", "transformers")
DISTRIBUTIONS = {"tensorflow": ("tensorflow-cpu", "tensorflow-gpu", "tf-nightly"), "keras": ("keras-nightly",)}
HARMLESS = {"test", "tests", "docs", "examples", "setup", "conftest", "__main__", "__init__"}  # imported by nobody
FILES = 500  # of a folder, that are looked at
VARIABLES = (  # of the environment, that change what a run computes
    "OMP_NUM_THREADS", "MKL_NUM_THREADS", "PYTHONHASHSEED", "CUBLAS_WORKSPACE_CONFIG", "CUDA_VISIBLE_DEVICES",
    "TORCHDYNAMO_DISABLE", "TORCH_COMPILE_DISABLE", "KERAS_BACKEND", "TF_DETERMINISTIC_OPS",
)  # fmt: skip
GIT_SECONDS = 2  # for all that git is asked
MASK = "***"
WORD = (  # a name that ends so holds a secret; `tokenizer`, `max_tokens` and `key_dim` do not
    r"(?:api[_-]?key|access[_-]?key|secret[_-]?key|private[_-]?key|(?<![a-z])key|token|secret|passw(?:or)?d|pwd|passphrase"
    r"|credentials?|auth)"
)
NAMED = re.compile(rf"(?i)^(-{{0,2}}[\w.+/-]*?{WORD})(?:=(.*))?$", re.S)
ADDRESS = re.compile(r"(?i)([a-z][\w+.-]{0,20}://)[^/\s@]{1,300}@")  # user and password, or a token, ahead of the host
QUERY = re.compile(rf"(?i)([?&;][\w.-]{0, 40}?(?:{WORD}|sig|signature)=)[^&;#\s]+")
INNER = re.compile(rf"(?i)([\"']?\b[\w.-]{{0,40}}?{WORD}[\"']?\s*[:=]\s*[\"']?)[^\s\"',;}}&?#]+")  # in a quoted mapping
BARE = re.compile(  # tokens that show what they are
    r"\b(?:hf_|gh[oprsu]_|github_pat_|glpat-|sk-|xox[abpr]-|AKIA|eyJ)[\w.-]{12,}|(?i:\bbearer\s+)[\w.~+/=-]{8,}"
)
TOLD_ONLY = ("process.command", "process.revision")  # no finding: two runs that are compared differ there on purpose
COMMAND, LINE = 2000, 200  # characters of a command line, and of a line that is printed

DIFFERS = Cause(
    "process.environment_differs",
    refute="the difference does not reach the computation",
    next="make the two equal one difference at a time, the import paths first",
    wrong_fixes=("comparing losses across the difference",),
)
STATE_DIFFERS = Cause(
    "process.state_differs",
    refute="the two are meant to be at different steps",
    next="rerail.resume_check names what a checkpoint does not bring back",
    wrong_fixes=("the same seed again",),
)
SHADOWED = Cause(
    "process.library_shadowed",
    refute="the file in the working directory is meant to replace the library",
    next="rename the file, and delete its __pycache__",
)
DEPENDENCY = Cause(
    "process.dependency_failure",
    refute="the import is of your own module",
    next="print version and path of the package that is named, in the environment that failed",
    wrong_fixes=("changing the training code", "a try around the import"),
)
RESOURCE = Cause(
    "process.resource_failure",
    refute="memory grows from step to step: then it is a leak in the training code",
    next="measure memory of the first and the tenth step: if it grows, rerail.graph_growth",
    wrong_fixes=("emptying the cache every step",),
)
TRAINING = Cause(
    "process.training_failure",
    refute="the same lines run with other versions of the libraries",
    next="reduce the batch while the same failure stays, at the same place",
)
OWN_IMPORT = Cause(
    "process.own_import_failure",
    refute="a package of that name is meant to be installed",
    next="look at the working directory and at sys.path: the module is your own, or is missing",
)

DEPENDENCIES = re.compile(
    r"undefined symbol|Symbol not found:|symbol lookup error|cannot open shared object file|DLL load failed"
    r"|WinError 126|Library not loaded|incompatible architecture|GLIBC(?:XX)?_|libcud\w+\.so"
    r"|compiled using NumPy 1|numpy\.core\.multiarray failed|_ARRAY_API not found|numpy\.dtype size changed"
    r"|Numpy is not available|Descriptors cannot be created directly"
    r"|CUDA driver version is insufficient|no kernel image is available|CUDA driver initialization failed"
    r"|Found no NVIDIA driver|detected CUDA version|not compiled with CUDA|forward compatibility was attempted"
    r"|InvalidCxxCompiler|No working C\+\+ compiler|VersionConflict|DistributionNotFound|PackageNotFoundError"
    r"|requires .{1,60} but you have|incompatible with .{0,40}version"
)
RESOURCES = re.compile(
    r"[Oo]ut of memory|OutOfMemoryError|an't allocate memory|annot allocate memory|\bMemoryError\b|ALLOC_FAILED"
    r"|ResourceExhaustedError|RESOURCE_EXHAUSTED|No space left on device|Disk quota exceeded|Too many open files"
    r"|insufficient shared memory|unable to open shared memory|by signal: (?:Killed|Bus error)|oom[-_ ]kill"
    r"|^.{0,80}\bKilled\s*$|^Killed\b|exit ?code:? *-9\b|exit status 137\b|[Ss]ignal 9\b|SIGKILL|^.{0,40}Bus error"
    r"|DUE TO TIME LIMIT",
    re.M,
)
MISSING = re.compile(
    r"No module named ['\"]([\w.]+)['\"]"
    r"|cannot import name ['\"](\w+)['\"] from (?:partially initialized module )?['\"]([\w.]+)['\"]"
)
ATTRIBUTE = re.compile(r"module ['\"]([\w.]+)['\"] has no attribute ['\"](\w+)['\"]")
RELATIVE = re.compile(r"attempted relative import (?:with no known parent|beyond top-level) package|__package__ != ")
CIRCULAR = re.compile(
    r"(?:from )?partially initialized module ['\"]([\w.]+)['\"].{0,200}?circular import\)?(?: \(([^)\n]{1,300})\))?"
    r"|module ['\"]([\w.]+)['\"].{0,200}?consider renaming ['\"]([^'\"\n]{1,300})['\"]",
    re.S,
)
HEADER = re.compile(r"Traceback \(most recent call last\)")
JOINT = re.compile(r"The above exception was the direct cause|During handling of the above exception")
QUOTED = re.compile(r"^\s*(?:File \"|-+> ?\d|\d+ )|^\s*[~^]+\s*$")  # frames and source, which name errors too
ERROR = re.compile(
    r"^(?:\[[^\]\n]{1,40}\]:? ?)?([A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Iteration|Exit))\b.*", re.M
)
LAUNCHERS = ("ChildFailedError", "ProcessRaisedException", "ProcessExitedException")  # they repeat another's failure


@dataclass(frozen=True)
class EnvRecord:
    """The environment of one run, as names and plain values; secrets in the command line are masked.

    Attributes:
        values: Groups of names and values: "process", "packages", "paths", "device", "execution", "determinism", and
            "states", digests of what a resumed run must find again.
    """

    values: Mapping[str, Mapping[str, Any]]

    @property
    def digest(self) -> str:
        """Return a hexadecimal digest, equal for records whose values are all equal."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()[:16]

    def to_dict(self) -> dict[str, Any]:
        """Return the values as built-in types, with the command at the top."""
        return {
            "command": self.values["process"]["command"],
            **{name: dict(group) for name, group in self.values.items()},
        }

    def to_json(self, *, indent: int | None = None) -> str:
        """Return the values as one JSON object."""
        return json.dumps(self.to_dict(), sort_keys=True, default=str, indent=indent)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> EnvRecord:
        """Return a record of what `to_dict` gave, also after a journey through JSON.

        Raises:
            TypeError: If it is no mapping.
        """
        if not isinstance(values, Mapping):
            raise TypeError(f"a record is made of a mapping, as `to_dict` gives it, got {type(values).__name__}")
        groups = {name: MappingProxyType(dict(group)) for name, group in values.items() if isinstance(group, Mapping)}
        return cls(MappingProxyType(groups))

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy and pickle by value: a view of a mapping can do neither."""
        return EnvRecord.from_dict, (self.to_dict(),)

    def __str__(self) -> str:
        """Return at most 15 lines, one a group."""
        lines = []
        for name, group in self.values.items():
            shown = ", ".join(f"{key} {value}" for key, value in group.items() if value not in (None, False, ""))
            lines.append(" ".join(f"{name}: {shown or 'nothing special'}".split())[:LINE])
        return "\n".join(lines[:15])


def env_record(
    *,
    extra: Mapping[str, Any] | None = None,
    model: Any = None,
    optimizer: Any = None,
    scheduler: Any = None,
    scaler: Any = None,
    loader: Any = None,
) -> EnvRecord:
    """Record what a run depends on, and change nothing of it: no number is drawn, no batch is read.

    Args:
        extra: More names and values that matter, such as the precision of a trainer.
        model: Its state goes in as a digest; so do those of the others.
        optimizer: An optimizer.
        scheduler: A scheduler of the rate.
        scaler: A gradient scaler.
        loader: A loader: the state of its generator and of its sampler, the order of the data.

    Returns:
        The record; `str()` shows it in at most 15 lines, `env_diff` compares two.

    Example:
        ```python
        record = rerail.env_record(model=model, optimizer=optimizer, loader=loader)
        Path("run.json").write_text(record.to_json(indent=2))
        ```
    """
    torch = sys.modules.get("torch")
    groups: dict[str, dict[str, Any]] = {
        "process": {
            "command": _command(),
            "revision": _revision(),
            "python": platform.python_version(),
            "platform": _platform(),
        },
        "packages": {name: version for name in PACKAGES if (version := _version(name))},
        "paths": {name: path for name in PACKAGES if (path := _path(name))} | dict(_shadowing()),
        "device": _device(torch),
        "execution": _execution(torch),
        "determinism": {name: os.environ[name] for name in VARIABLES if name in os.environ} | _determinism(torch),
        "states": dict(
            _states(torch, model=model, optimizer=optimizer, scheduler=scheduler, scaler=scaler, loader=loader)
        ),
    }
    if extra:
        groups["extra"] = {str(key): _hidden(str(key), value) for key, value in extra.items()}
    return EnvRecord.from_dict(groups)


@answers
def env_diff(one: EnvRecord | Mapping[str, Any], other: EnvRecord | Mapping[str, Any]) -> Report:
    """Compare two records; the command and the revision are facts, everything else that differs is a finding.

    Args:
        one: A record, or what its `to_dict` gave.
        other: Another.

    Returns:
        A report, ok where nothing differs that a computation depends on.
    """
    pair = [_record(each) for each in (one, other)]
    rows = []
    for group in dict.fromkeys((*pair[0].values, *pair[1].values)):
        sides = [dict(each.values.get(group, {})) for each in pair]
        rows += [
            (f"{group}.{name}", sides[0].get(name), sides[1].get(name))
            for name in dict.fromkeys((*sides[0], *sides[1]))
            if sides[0].get(name) != sides[1].get(name) and not _unloaded(group, name, sides)
        ]
    findings = []
    told = [row for row in rows if row[0] not in TOLD_ONLY]
    states = [row[0] for row in told if row[0].startswith("states.")]
    others = [row for row in told if not row[0].startswith("states.")]
    if others:
        first = others[0]
        many = "1 difference" if len(others) == 1 else f"{len(others)} differences"
        says = f"{many}; {first[0]} is {first[1]} in one and {first[2]} in the other"
        findings.append(DIFFERS.suspicious(says, where=[row[0] for row in others], differences=len(others)))
    if states:
        says = f"{len(states)} of the states differ, or stand in one record only: {', '.join(states)}"
        findings.append(STATE_DIFFERS.suspicious(says, where=states, differences=len(states)))
    for shadow in _shadows(pair):
        findings.append(shadow)
    shown = tuple((name, str(left), str(right)) for name, left, right in rows)
    facts = {"differences": len(rows)} | {name: f"{left} | {right}" for name, left, right in rows if name in TOLD_ONLY}
    return Report("env_diff", tuple(findings), facts, ("name", "one", "other"), shown)


def _unloaded(group: str, name: str, sides: list[dict[str, Any]]) -> bool:
    """Return whether a generator is missing in one record: its library was not imported yet, and nothing was drawn."""
    return group == "states" and name.endswith("_random") and None in (sides[0].get(name), sides[1].get(name))


def _record(given: Any) -> EnvRecord:
    record = given if isinstance(given, EnvRecord) else None
    if isinstance(given, Mapping):
        record = EnvRecord.from_dict(given)
    if record is None or not any(record.values.values()):
        raise CannotAnswer(f"a record must be what `env_record` or its `to_dict` gave, got {_brief(given)}")
    return record


def _brief(given: Any) -> str:
    return f"a {type(given).__name__} without a group of values" if isinstance(given, Mapping) else type(given).__name__


@answers
def classify_failure(failure: BaseException | str) -> Report:
    """Tell a failure of the environment from a bug in the training code.

    Args:
        failure: An exception, or the text of a traceback or of a log.

    Returns:
        A report with one fault: a dependency, a resource, an import of your own, or the training code, with the line.
    """
    if not isinstance(failure, (BaseException, str)):
        raise CannotAnswer(f"a failure is an exception or the text of a log, got {type(failure).__name__}")
    text = _what_failed(failure) if isinstance(failure, str) else "\n".join(_chain(failure))
    if not text.strip():
        return unknown("classify_failure", "there is no text: give the exception, or the log with its traceback")
    if isinstance(failure, (KeyboardInterrupt, SystemExit)) or _last_error(text).startswith(
        ("KeyboardInterrupt", "SystemExit")
    ):
        return not_applicable("classify_failure", "the run was ended on purpose: nothing failed")
    frames = own_frames(failure)
    where = [f"{path}:{line}" for path, line, _ in frames[-1:]]
    finding = _import_failure(text, where) or _of_the_machine(text, where)
    if finding is None and (frames or ERROR.search(text)):
        finding = TRAINING.fault(f"no sign of the environment: {_last_error(text)}", where=where)
    if finding is None:
        return unknown("classify_failure", "the text holds no traceback and no error that is known")
    return Report("classify_failure", (finding,), {"error": _last_error(text), "own_frames": len(frames)})


def _what_failed(log: str) -> str:
    """Return the messages of the last failure of a log: neither the warnings before it, nor the quoted source lines."""
    starts = [found.start() for found in HEADER.finditer(log)]
    first = len(starts) - 1
    while first > 0 and JOINT.search(log, starts[first - 1], starts[first]):
        first -= 1
    text = log[starts[first] :] if starts else log
    if any(name in text for name in LAUNCHERS):
        text = log
    lines, kept = text.splitlines(), []
    for number, line in enumerate(lines):
        source = number > 0 and lines[number - 1].lstrip().startswith('File "') and line.startswith(" ")
        if not source and not QUOTED.match(line):
            kept.append(line)
    return "\n".join(kept)


def _of_the_machine(text: str, where: list[str]) -> Finding | None:
    for pattern, cause, says in (
        (RESOURCES, RESOURCE, "a resource ran out"),
        (DEPENDENCIES, DEPENDENCY, "a library does not fit the machine or another library"),
    ):
        found = pattern.search(text)
        if found:
            return cause.fault(f"{says}: {_line(text, found.start())}", where=where)
    attribute = ATTRIBUTE.search(text)
    if attribute and (_is_installed(attribute.group(1)) or attribute.group(1).partition(".")[0] in PACKAGES):
        module, name = attribute.groups()
        near = difflib.get_close_matches(name, dir(sys.modules.get(module)) if module in sys.modules else (), 1, 0.8)
        near = [each for each in near if each != name]
        says = f"the installed {module!r} has no {name!r}: another version is meant"
        says += f", or the name is misspelt: there is {near[0]!r}" if near else ""
        return DEPENDENCY.fault(says, where=where, module=module)
    return None


def _import_failure(text: str, where: list[str]) -> Finding | None:
    if RELATIVE.search(text):
        says = (
            "a relative import of your own package: the file was run by itself, and not as `python -m package.module`"
        )
        return OWN_IMPORT.fault(says, where=where)
    circular = CIRCULAR.search(text)
    if circular:
        return _circular(circular.group(1) or circular.group(3), circular.group(2) or circular.group(4) or "", where)
    found = MISSING.search(text)
    if not found:
        return None
    name = found.group(1) or found.group(3)
    top = name.partition(".")[0]
    folder = _own_folder(top, where)
    origin = re.match(r" \(([^)\n]+)\)", text[found.end() :])  # Python appends the file of the module
    if folder or (origin and origin.group(1) != "unknown location" and not _is_a_librarys(origin.group(1))):
        says = f"{name!r} is your own module, " + (f"{origin.group(1)}" if origin else f"in {folder}")
        says += (
            f", and has no {found.group(2)!r}" if found.group(2) else ", and was not found from where the run started"
        )
        return OWN_IMPORT.fault(says, where=where, module=name)
    if found.group(2):
        says = f"the installed {name!r} has no {found.group(2)!r}: another version is meant"
    elif "." in name and _is_installed(top):
        says = f"the installed {top!r} has no module {name!r}: another version is meant"
    else:
        says = f"the package {top!r} is not installed"
    return DEPENDENCY.fault(says, where=where, module=name)


def _circular(name: str, path: str, where: list[str]) -> Finding:
    """Tell a file that is named as a library from two modules that import each other."""
    top = name.partition(".")[0]
    if (top in sys.stdlib_module_names or top in PACKAGES or _is_installed(top)) and not (
        path and _is_a_librarys(path)
    ):
        says = f"a file of your own is called {top!r}, as the library is, and is imported in its place"
        return SHADOWED.fault(says, where=[path] if path else where, module=name)
    if path and _is_a_librarys(path):
        return DEPENDENCY.fault(f"the installed {name!r} imports itself in a circle", where=where, module=name)
    return OWN_IMPORT.fault(f"{name!r} is imported while it is being imported, in a circle", where=where, module=name)


def _is_a_librarys(path: str) -> bool:
    return is_library(path) and not path.startswith("<")


def _own_folder(name: str, where: list[str]) -> str:
    """Return the folder that holds a module of this name: the working directory, or one above the failing line."""
    places = [Path()] if not where else [Path(), *Path(where[0].rpartition(":")[0]).parents[:3]]
    for folder in places:
        with contextlib.suppress(OSError):
            if (folder / f"{name}.py").is_file() or (folder / name).is_dir():
                return "the working directory" if folder == Path() else str(folder)
    return ""


def _shadows(pair: list[EnvRecord]) -> Iterator[Finding]:
    paths = {
        name: path
        for record in pair
        for name, path in record.values.get("paths", {}).items()
        if isinstance(path, str) and path.startswith("./")
    }
    if paths:
        name, path = next(iter(paths.items()))
        says = f"{name} is imported from the working directory, {path}, and not from the installed library"
        yield SHADOWED.suspicious(says, where=paths.values(), count=len(paths))


def _command() -> str:
    """Return the command line without secrets and without the folders of the home."""
    words = [str(word)[: 2 * COMMAND] for word in sys.argv] or ["python"]  # twice: no secret is cut where it shows
    words[0] = words[0] or "python"
    shown, hidden = [], False
    for word in words:
        if hidden and not word.startswith("--"):
            shown.append(MASK)
            hidden = False
            continue
        named = NAMED.match(word)
        hidden = named is not None and named.group(2) is None and word.startswith("-")
        shown.append(_masked(word))
    return " ".join(shown).replace(str(Path.home()), "~")[:COMMAND]


def _masked(text: str) -> str:
    """Return a text without the secrets that its form gives away."""
    named = NAMED.match(text)
    if named and named.group(2) is not None:
        return f"{named.group(1)}={MASK}"
    text = BARE.sub(MASK, ADDRESS.sub(rf"\g<1>{MASK}@", text))
    return INNER.sub(rf"\g<1>{MASK}", QUERY.sub(rf"\g<1>{MASK}", text))


def _revision() -> str | None:
    """Return the commit of the working directory, with "+changes" where files differ; None outside a repository.

    "+unknown" stands where git took too long to compare the files.
    """
    end = time.monotonic() + GIT_SECONDS

    def git(*words: str) -> str | None:
        command = ["git", "--no-optional-locks", *words]  # without that, `status` rewrites the index
        try:
            left = max(0.01, end - time.monotonic())
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=left,
                check=False,
                stdin=subprocess.DEVNULL,
            )
        except (OSError, subprocess.SubprocessError):
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    commit = git("rev-parse", "--short=12", "HEAD")
    if not commit:
        return None
    changes = git("status", "--porcelain", "--untracked-files=no")
    return commit + ("+unknown" if changes is None else "+changes" if changes else "")


def _platform() -> str:
    return f"{platform.system()} {platform.machine()}"


def _version(name: str) -> str | None:
    """Return the version of a package that can be imported, from its metadata: the package is not imported."""
    if _spec(name) is None and name not in sys.modules:
        return None
    for distribution in (name.replace("_", "-"), *DISTRIBUTIONS.get(name, ())):
        try:
            return importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            continue
    return str(getattr(sys.modules.get(name), "__version__", "")) or None


def _spec(name: str) -> importlib.machinery.ModuleSpec | None:
    try:
        return importlib.util.find_spec(name)
    except (ImportError, ValueError, AttributeError):
        return None


def _path(name: str) -> str | None:
    """Return where a package is imported from, without importing it; "./..." in the working directory."""
    spec = _spec(name)
    if spec is None or not spec.origin:
        return None
    path = Path(spec.origin)
    try:
        inside = path.relative_to(Path.cwd())
    except ValueError:
        return str(path.parent).replace(str(Path.home()), "~")
    installed = {"site-packages", "dist-packages"} & set(inside.parts)
    return str(path.parent).replace(str(Path.home()), "~") if installed else f"./{inside}"


def _shadowing() -> Iterator[tuple[str, str]]:
    """Give the files beside the script, or in the working directory, that are imported in place of a library."""
    own = {str(Path(entry).resolve()) for entry in [*sys.path[:1], ""] if entry in sys.path}
    rest = [entry for entry in sys.path if str(Path(entry).resolve()) not in own]
    for folder in own:
        try:
            names = sorted(os.listdir(folder))[:FILES] if not is_library(f"{folder}/") else []
        except OSError:
            continue
        for file in names:
            name = file.removesuffix(".py")
            package = Path(folder, file, "__init__.py").is_file()
            if not name.isidentifier() or name in HARMLESS or not (package or file.endswith(".py")):
                continue
            spec, other = _spec(name), importlib.machinery.PathFinder.find_spec(name, rest)
            mine = spec is not None and spec.origin is not None and Path(spec.origin).resolve().is_relative_to(folder)
            if mine and other is not None and other.origin and other.origin not in (spec and spec.origin, "namespace"):
                yield name, f"./{file}"


def _device(torch: Any) -> dict[str, Any]:
    if torch is None:
        return {"cpus": os.cpu_count()}
    there = torch.version.cuda is not None and torch.cuda.device_count() > 0  # a count, read without starting CUDA
    kind = "cuda" if there else "cpu"
    return {
        "device": _cuda_name(torch) if there else "mps" if torch.backends.mps.is_available() else "cpu",
        "devices": torch.cuda.device_count() if there else None,
        "cuda": torch.version.cuda if there else None,
        "default_dtype": str(torch.get_default_dtype()).removeprefix("torch."),
        "matmul_precision": _asked(torch.get_float32_matmul_precision),
        "fp32_precision": _asked(lambda: str(torch.backends.cuda.matmul.fp32_precision)),
        "allow_tf32": _asked(lambda: bool(torch.backends.cuda.matmul.allow_tf32)),
        "cudnn_allow_tf32": _asked(lambda: bool(torch.backends.cudnn.allow_tf32)),
        "autocast": bool(torch.is_autocast_enabled(kind)),
        "autocast_dtype": str(torch.get_autocast_dtype(kind)).removeprefix("torch."),
        "threads": torch.get_num_threads(),
        "interop_threads": torch.get_num_interop_threads(),
    }


def _cuda_name(torch: Any) -> str:
    """Return the name of the device; where CUDA has not started, from the driver: a record must not start it."""
    if torch.cuda.is_initialized():
        return str(torch.cuda.get_device_name())
    for path in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information")):
        with contextlib.suppress(OSError):
            found = re.search(r"^Model:\s*(.+)$", path.read_text(errors="replace"), re.M)
            if found:
                return found.group(1).strip()
    return "cuda"


def _asked(setting: Callable[[], Any]) -> Any:
    """Return a setting, or what torch says where its old and its new name contradict each other."""
    try:
        return setting()
    except RuntimeError as error:
        return f"not readable: {str(error).partition('.')[0][:80]}"


def _execution(torch: Any) -> dict[str, Any]:
    shell = sys.modules.get("IPython")
    inside = shell is not None and shell.get_ipython() is not None
    mode = (
        "notebook"
        if inside
        else "interactive"
        if hasattr(sys, "ps1")
        else "command"
        if sys.argv[:1] == ["-c"]
        else "script"
    )
    if torch is None:
        return {"mode": mode}
    return {
        "mode": mode,
        "gradients": bool(torch.is_grad_enabled()),
        "inference_mode": bool(torch.is_inference_mode_enabled()),
        "anomaly_mode": bool(torch.is_anomaly_enabled()),
        "both_lightnings": sys.modules.keys() >= {"lightning", "pytorch_lightning"},  # two trees of the same classes
        "distributed": _world(torch),
    }


def _world(torch: Any) -> int | None:
    there = torch.distributed.is_available() and torch.distributed.is_initialized()
    return int(torch.distributed.get_world_size()) if there else None


def _determinism(torch: Any) -> dict[str, Any]:
    if torch is None:
        return {}
    return {
        "deterministic_algorithms": bool(torch.are_deterministic_algorithms_enabled()),
        "cudnn_benchmark": bool(torch.backends.cudnn.benchmark),
        "cudnn_deterministic": bool(torch.backends.cudnn.deterministic),
    }


def _states(torch: Any, **things: Any) -> Iterator[tuple[str, str]]:
    """Give name and digest of every state, read without drawing from a generator."""
    yield "python_random", _hash(repr(random.getstate()).encode())
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        yield "numpy_random", _hash(repr(numpy_random.get_state(legacy=False)).encode())
    if torch is not None:
        yield "torch_random", _hash(torch.get_rng_state().numpy().tobytes())
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            yield "cuda_random", _hash(*(state.numpy().tobytes() for state in torch.cuda.get_rng_state_all()))
    for name, thing in things.items():
        if thing is None:
            continue
        if name == "loader":
            yield "data_order", _loader(thing)
        else:
            yield name, _state(thing)


def _state(thing: Any) -> str:
    """Return the digest of a state, or why there is none: a record never fails for what it was given."""
    read = getattr(thing, "state_dict", None) or getattr(thing, "get_weights", None)  # of torch, of Keras
    if not callable(read):
        return f"not read: {type(thing).__name__} has no state_dict"
    try:
        return _hash(*_bytes(read()))
    except Exception as error:  # a state of somebody's own class
        return f"not read: {type(error).__name__}"


def _loader(loader: Any) -> str:
    """Digest what decides the order of the data: generators and their states, samplers, epoch, sizes."""
    batches = getattr(loader, "batch_sampler", None)
    parts: list[Any] = [getattr(loader, name, None) for name in ("batch_size", "num_workers", "drop_last")]
    seen: list[Any] = []
    for thing in (loader, getattr(loader, "sampler", None), batches, getattr(batches, "sampler", None)):
        if thing is None or any(thing is each for each in seen):
            continue
        seen.append(thing)
        parts += [type(thing).__name__, *(repr(getattr(thing, name, None)) for name in ("epoch", "seed", "batch_size"))]
        parts += [getattr(thing, name, None) for name in ("indices", "weights")]
        generator = getattr(thing, "generator", None)
        if generator is not None and hasattr(generator, "get_state"):
            parts.append(generator.get_state())
    with contextlib.suppress(TypeError, NotImplementedError):
        parts.append(len(loader.dataset) if hasattr(loader, "dataset") else None)
    return _hash(*_bytes(parts))


def _bytes(state: Any) -> Iterator[bytes]:
    """Give every value of a nested state as bytes: of a tensor dtype, shape and content, and never its text."""
    if hasattr(state, "untyped_storage"):
        yield from _tensor_bytes(state)
    elif hasattr(state, "dtype") and hasattr(state, "tobytes"):  # of NumPy; an array of objects holds their addresses
        yield f"{state.dtype}{state.shape}".encode()
        yield repr(state.tolist()).encode() if state.dtype.hasobject else state.tobytes()
    elif isinstance(state, Mapping):
        for key, value in state.items():
            yield repr(key).encode()
            yield from _bytes(value)
    elif isinstance(state, (list, tuple)) and all(type(value) in (int, float, str) for value in state):
        yield repr(state).encode()  # such as the indices of a sampler, in one go
    elif isinstance(state, (list, tuple)):
        yield f"{len(state)}".encode()
        for value in state:
            yield from _bytes(value)
    elif isinstance(state, (bytes, bytearray)):
        yield bytes(state)
    else:
        text = repr(state)
        yield (text if " at 0x" not in text else type(state).__name__).encode()  # an address is of one process


def _tensor_bytes(tensor: Any) -> Iterator[bytes]:
    """Give dtype, shape and content of a tensor; of a lazy one or one on the meta device, that it has no content."""
    if "Uninitialized" in type(tensor).__name__ or tensor.device.type == "meta":
        yield f"{type(tensor).__name__} without values".encode()
        return
    plain = tensor.detach().cpu()
    yield f"{plain.dtype}{tuple(plain.shape)}".encode()
    if plain.is_sparse:
        plain = plain.coalesce()
        yield from _tensor_bytes(plain.indices())
        plain = plain.values()
    elif plain.is_quantized:
        yield repr(plain.qscheme()).encode()
        plain = plain.int_repr()
    elif str(plain.layout) != "torch.strided":
        plain = plain.to_dense()
    flat = plain.resolve_conj().resolve_neg().contiguous().reshape(-1)
    yield flat.view(sys.modules["torch"].uint8).numpy().tobytes() if flat.numel() else b""


def _hash(*parts: bytes) -> str:
    hashed = hashlib.sha256()
    for part in parts:
        hashed.update(f"{len(part)}:".encode())  # so that no two states run into one another
        hashed.update(part)
    return hashed.hexdigest()[:12]


def _hidden(name: str, value: Any) -> Any:
    """Return a value that JSON can hold; a secret, by its name or its form, is masked."""
    if isinstance(value, (bool, int, float)) or value is None:
        return value
    return MASK if NAMED.match(name) else _masked(str(value))


def _chain(error: BaseException) -> list[str]:
    """Return type and message of an exception, of those in a group, and of those that it came from."""
    said: list[str] = []
    seen: set[int] = set()
    todo: list[BaseException | None] = [error]
    while todo:
        each = todo.pop(0)
        if each is None or id(each) in seen:
            continue
        seen.add(id(each))
        said.insert(0, f"{type(each).__name__}: {each}")  # the last stands last, as in a traceback
        todo += list(each.exceptions) if isinstance(each, BaseExceptionGroup) else []
        todo.append(each.__cause__ or (None if each.__suppress_context__ else each.__context__))
    return said


def _is_installed(name: str) -> bool:
    try:
        spec = importlib.util.find_spec(name.partition(".")[0])
    except (ImportError, ValueError):
        return False
    return spec is not None and "site-packages" in str(spec.origin or spec.submodule_search_locations or "")


def _line(text: str, position: int) -> str:
    begin = text.rfind("\n", 0, position) + 1
    end = text.find("\n", position)
    return text[begin : end if end >= 0 else len(text)].strip()[:160]


def _last_error(text: str) -> str:
    found = [each.group(0)[each.start(1) - each.start() :] for each in ERROR.finditer(text)]
    return (found[-1] if found else text.strip().splitlines()[-1]).strip()[:160]
