"""The environment of a run: what it ran, with what, on what; and whether a failure is the environment's."""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import random
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from rerail.diagnostics.finding import Cause, Finding, Report, answers, not_applicable, unknown
from rerail.diagnostics.tracebacks import own_frames

PACKAGES = ("torch", "numpy", "lightning", "pytorch_lightning", "keras", "tensorflow", "transformers")
VARIABLES = (  # of the environment, that change what a run computes
    "OMP_NUM_THREADS", "MKL_NUM_THREADS", "PYTHONHASHSEED", "CUBLAS_WORKSPACE_CONFIG", "CUDA_VISIBLE_DEVICES",
    "TORCHDYNAMO_DISABLE", "TORCH_COMPILE_DISABLE", "KERAS_BACKEND", "TF_DETERMINISTIC_OPS",
)  # fmt: skip
STATES = ("random", "model", "optimizer", "scheduler", "scaler", "loader")  # what a resumed run must find again
SECRET = re.compile(
    r"(?i)(--?[\w-]*(?:key|token|secret|password|passwd|credential)[\w-]*)(?:=|\s)\S+|(://)[^/\s:@]+:[^/\s@]+@"
)
COMMAND = 200  # characters of a command line

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
    r"undefined symbol|cannot open shared object file|DLL load failed|compiled using NumPy 1"
    r"|numpy\.core\.multiarray failed|numpy\.dtype size changed"
    r"|CUDA driver version is insufficient|no kernel image is available|libcud\w+\.so|GLIBC"
    r"|InvalidCxxCompiler|No working C\+\+ compiler|VersionConflict|DistributionNotFound|is not compiled with CUDA"
    r"|Torch not compiled with CUDA|requires .{1,60} but you have|incompatible with .{0,40}version"
)
RESOURCES = re.compile(
    r"out of memory|OutOfMemoryError|can't allocate memory|MemoryError|No space left on device|Killed\b|exit code:? -9"
    r"|signal 9|Bus error|insufficient shared memory|Too many open files|Disk quota exceeded"
)
MISSING = re.compile(
    r"No module named ['\"]([\w.]+)['\"]"
    r"|cannot import name ['\"](\w+)['\"] from (?:partially initialized module )?['\"]([\w.]+)['\"]"
)
ATTRIBUTE = re.compile(r"module ['\"]([\w.]+)['\"] has no attribute ['\"](\w+)['\"]")


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
        """Return a record of what `to_dict` gave."""
        groups = {name: MappingProxyType(dict(group)) for name, group in values.items() if isinstance(group, Mapping)}
        return cls(MappingProxyType(groups))

    def __str__(self) -> str:
        """Return at most 15 lines, one a group."""
        lines = []
        for name, group in self.values.items():
            shown = ", ".join(f"{key} {value}" for key, value in group.items() if value not in (None, False, ""))
            lines.append(f"{name}: {shown or 'nothing special'}"[:COMMAND])
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
        "paths": {name: path for name in PACKAGES if (path := _path(name))},
        "device": _device(torch),
        "execution": _execution(torch),
        "determinism": {name: os.environ[name] for name in VARIABLES if name in os.environ} | _determinism(torch),
        "states": dict(
            _states(torch, model=model, optimizer=optimizer, scheduler=scheduler, scaler=scaler, loader=loader)
        ),
    }
    if extra:
        groups["extra"] = {str(key): _plain(value) for key, value in extra.items()}
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
    pair = [each if isinstance(each, EnvRecord) else EnvRecord.from_dict(each) for each in (one, other)]
    rows = []
    for group in dict.fromkeys((*pair[0].values, *pair[1].values)):
        sides = [dict(each.values.get(group, {})) for each in pair]
        rows += [
            (f"{group}.{name}", sides[0].get(name), sides[1].get(name))
            for name in dict.fromkeys((*sides[0], *sides[1]))
            if sides[0].get(name) != sides[1].get(name)
        ]
    findings = []
    told = [row for row in rows if row[0] not in ("process.command", "process.revision")]
    states = [row[0] for row in told if row[0].startswith("states.")]
    others = [row for row in told if not row[0].startswith("states.")]
    if others:
        first = others[0]
        says = f"{len(others)} differences; {first[0]} is {first[1]} in one and {first[2]} in the other"
        findings.append(DIFFERS.suspicious(says, where=[row[0] for row in others], differences=len(others)))
    if states:
        says = f"the digests of {len(states)} states differ"
        findings.append(STATE_DIFFERS.suspicious(says, where=states, differences=len(states)))
    for shadow in _shadows(pair):
        findings.append(shadow)
    shown = tuple((name, str(left), str(right)) for name, left, right in rows)
    return Report("env_diff", tuple(findings), {"differences": len(rows)}, ("name", "one", "other"), shown)


@answers
def classify_failure(failure: BaseException | str) -> Report:
    """Tell a failure of the environment from a bug in the training code.

    Args:
        failure: An exception, or the text of a traceback or of a log.

    Returns:
        A report with one fault: a dependency, a resource, an import of your own, or the training code, with the line.
    """
    if isinstance(failure, (KeyboardInterrupt, SystemExit)) or (
        isinstance(failure, str) and "KeyboardInterrupt" in failure
    ):
        return not_applicable("classify_failure", "the run was interrupted: nothing failed")
    text = failure if isinstance(failure, str) else "\n".join(_chain(failure))
    if not text.strip():
        return unknown("classify_failure", "there is no text: give the exception, or the log with its traceback")
    frames = own_frames(failure)
    where = [f"{path}:{line}" for path, line, _ in frames[-1:]]
    for pattern, cause, says in (
        (RESOURCES, RESOURCE, "a resource ran out"),
        (DEPENDENCIES, DEPENDENCY, "a library does not fit the machine or another library"),
    ):
        found = pattern.search(text)
        if found:
            return Report("classify_failure", (cause.fault(f"{says}: {_line(text, found.start())}", where=where),))
    module = MISSING.search(text)
    if module:
        return Report("classify_failure", (_import_failure(module, where),))
    attribute = ATTRIBUTE.search(text)
    if attribute and _is_installed(attribute.group(1)):
        says = f"the installed {attribute.group(1)!r} has no {attribute.group(2)!r}: another version is meant"
        return Report("classify_failure", (DEPENDENCY.fault(says, where=where),))
    if frames or re.search(r"^\S*(?:Error|Exception)\b", text, re.M):
        says = f"no sign of the environment: {_last_error(text)}"
        return Report("classify_failure", (TRAINING.fault(says, where=where),))
    return unknown("classify_failure", "the text holds no traceback and no error that is known")


def _import_failure(found: re.Match[str], where: list[str]) -> Finding:
    name = found.group(1) or found.group(3)
    top = name.partition(".")[0]
    if Path(f"{top}.py").exists() or Path(top).is_dir():
        says = f"{name!r} was not imported, although the working directory holds {top!r}"
        return OWN_IMPORT.fault(says, where=where, module=name)
    if found.group(2):
        says = f"the installed {name!r} has no {found.group(2)!r}: another version is meant"
        return DEPENDENCY.fault(says, where=where, module=name)
    if "." in name and _is_installed(top):
        says = f"the installed {top!r} has no module {name!r}: another version is meant"
        return DEPENDENCY.fault(says, where=where, module=name)
    return DEPENDENCY.fault(f"the package {top!r} is not installed", where=where, module=name)


def _shadows(pair: list[EnvRecord]) -> Iterator[Finding]:
    for record in pair:
        for name, path in record.values.get("paths", {}).items():
            if isinstance(path, str) and path.startswith("./"):
                says = f"{name} is imported from the working directory, {path}, and not from the installed library"
                yield SHADOWED.suspicious(says, where=(path,))
                return


def _command() -> str:
    """Return the command line without secrets and without the folders of the home."""
    words = [sys.argv[0] or "python", *sys.argv[1:]] if sys.argv else ["python"]
    text = SECRET.sub(lambda found: f"{found.group(1)}=***" if found.group(1) else "://***@", " ".join(map(str, words)))
    return text.replace(str(Path.home()), "~")[:COMMAND]


def _revision() -> str | None:
    """Return the commit of the working directory, with "+changes" where files differ; None outside a repository."""

    def git(*words: str) -> str | None:
        try:
            done = subprocess.run(["git", *words], capture_output=True, text=True, timeout=2, check=False)
        except (OSError, subprocess.SubprocessError):
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    commit = git("rev-parse", "--short=12", "HEAD")
    if not commit:
        return None
    return commit + ("+changes" if git("status", "--porcelain", "--untracked-files=no") else "")


def _platform() -> str:
    return f"{platform.system()} {platform.machine()}"


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name.replace("_", "-"))
    except importlib.metadata.PackageNotFoundError:
        module = sys.modules.get(name)
        return str(getattr(module, "__version__", "")) or None if module is not None else None


def _path(name: str) -> str | None:
    """Return where a package is imported from, without importing it; "./..." in the working directory."""
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError, AttributeError):
        return None
    if spec is None or not spec.origin:
        return None
    path = Path(spec.origin)
    try:
        inside = path.relative_to(Path.cwd())
    except ValueError:
        return str(path.parent).replace(str(Path.home()), "~")
    return str(path.parent).replace(str(Path.home()), "~") if "site-packages" in inside.parts else f"./{inside}"


def _device(torch: Any) -> dict[str, Any]:
    if torch is None:
        return {"cpus": os.cpu_count()}
    there = bool(torch.cuda.is_available())
    return {
        "device": torch.cuda.get_device_name() if there else "cpu",
        "cuda": torch.version.cuda if there else None,
        "default_dtype": str(torch.get_default_dtype()).removeprefix("torch."),
        "matmul_precision": torch.get_float32_matmul_precision(),
        "autocast": bool(torch.is_autocast_enabled("cuda" if there else "cpu")),
        "threads": torch.get_num_threads(),
        "interop_threads": torch.get_num_interop_threads(),
    }


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
        "compiler": "loaded" if "torch._dynamo" in sys.modules else None,
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
            yield "cuda_random", _hash(b"".join(state.numpy().tobytes() for state in torch.cuda.get_rng_state_all()))
    for name, thing in things.items():
        if thing is None:
            continue
        if name == "loader":
            yield "data_order", _loader(thing)
        elif hasattr(thing, "state_dict"):
            yield name, _hash(b"".join(_bytes(thing.state_dict())))


def _loader(loader: Any) -> str:
    """Digest what decides the order of the data: generators and their states, sampler, epoch, sizes."""
    parts: list[Any] = [getattr(loader, "batch_size", None), getattr(loader, "num_workers", None)]
    for thing in (loader, getattr(loader, "sampler", None), getattr(loader, "batch_sampler", None)):
        if thing is None:
            continue
        parts += [type(thing).__name__, getattr(thing, "epoch", None), getattr(thing, "seed", None)]
        generator = getattr(thing, "generator", None)
        if generator is not None and hasattr(generator, "get_state"):
            parts.append(generator.get_state().numpy().tobytes())
    return _hash(repr(parts).encode())


def _bytes(state: Any) -> Iterator[bytes]:
    """Give every value of a nested state as bytes: of a tensor dtype, shape and content, and never its text."""
    if hasattr(state, "untyped_storage") or (hasattr(state, "dtype") and hasattr(state, "shape")):
        yield f"{state.dtype}{tuple(state.shape)}".encode()
        plain = state.detach().cpu() if hasattr(state, "detach") else state
        if hasattr(plain, "is_sparse") and plain.is_sparse:
            plain = plain.coalesce().values()
        if hasattr(plain, "is_quantized") and plain.is_quantized:
            plain = plain.int_repr()
        if hasattr(plain, "untyped_storage"):
            flat = plain.contiguous().reshape(-1)
            yield flat.view(sys.modules["torch"].uint8).numpy().tobytes() if flat.numel() else b""
        else:
            yield plain.tobytes()
    elif isinstance(state, Mapping):
        for key, value in state.items():
            yield repr(key).encode()
            yield from _bytes(value)
    elif isinstance(state, (list, tuple)):
        yield f"{len(state)}".encode()
        for value in state:
            yield from _bytes(value)
    else:
        yield (
            repr(state).encode()
            if isinstance(state, (bool, int, float, str, type(None)))
            else type(state).__name__.encode()
        )


def _hash(held: bytes) -> str:
    return hashlib.sha256(held).hexdigest()[:12]


def _plain(value: Any) -> Any:
    return value if isinstance(value, (bool, int, float, str, type(None))) else str(value)


def _chain(error: BaseException) -> list[str]:
    said: list[str] = []
    seen: set[int] = set()
    each: BaseException | None = error
    while each is not None and id(each) not in seen:
        seen.add(id(each))
        said.append(f"{type(each).__name__}: {each}")
        each = each.__cause__ or (None if each.__suppress_context__ else each.__context__)
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
    found = [line.strip() for line in text.splitlines() if re.match(r"^\S*(?:Error|Exception)\b", line)]
    return (found[-1] if found else text.strip().splitlines()[-1])[:160]
