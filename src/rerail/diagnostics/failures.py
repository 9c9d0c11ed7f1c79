"""A failure, told by whose it is: a dependency, a resource, an import of your own, or the training code."""

from __future__ import annotations

import contextlib
import difflib
import importlib.machinery
import importlib.metadata
import importlib.util
import re
import sys
from pathlib import Path

from rerail.diagnostics.environment import SHADOWED
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
from rerail.diagnostics.machine import PACKAGES
from rerail.diagnostics.trace_reader import failures, root_of, text_of
from rerail.diagnostics.tracebacks import own_frames, told_briefly

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
        finding = TRAINING.fault(f"no sign of the environment: {_told(failure, text)}", where=where)
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


def _told(failure: BaseException | str, text: str) -> str:
    """Return the last error of a chain, and the first where that is another: which of them counts, a reader tells."""
    last = _last_error(text)
    first = next((told_briefly(root_of(chain)) for chain in failures(text_of(failure))), "")
    return last if not first or first[:40] in last else f"{first} came first, and last {last}"


def _last_error(text: str) -> str:
    found = [each.group(0)[each.start(1) - each.start() :] for each in ERROR.finditer(text)]
    return (found[-1] if found else text.strip().splitlines()[-1]).strip()[:160]
