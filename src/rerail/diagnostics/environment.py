"""The environment of a run: what it ran, with what, on what; and whether a failure is the environment's."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.machinery
import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from rerail.diagnostics import masking
from rerail.diagnostics.digests import states_of
from rerail.diagnostics.finding import (
    CannotAnswer,
    Cause,
    Finding,
    Report,
    answers,
    is_library,
)

PACKAGES = ("torch", "numpy", "lightning", "pytorch_lightning", "keras", "tensorflow", "transformers")
DISTRIBUTIONS = {"tensorflow": ("tensorflow-cpu", "tensorflow-gpu", "tf-nightly"), "keras": ("keras-nightly",)}
HARMLESS = {"test", "tests", "docs", "examples", "setup", "conftest", "__main__", "__init__"}  # imported by nobody
FILES = 500  # of a folder, that are looked at
VARIABLES = (  # of the environment, that change what a run computes
    "OMP_NUM_THREADS", "MKL_NUM_THREADS", "PYTHONHASHSEED", "CUBLAS_WORKSPACE_CONFIG", "CUDA_VISIBLE_DEVICES",
    "TORCHDYNAMO_DISABLE", "TORCH_COMPILE_DISABLE", "KERAS_BACKEND", "TF_DETERMINISTIC_OPS",
)  # fmt: skip
GIT_SECONDS = 2  # for all that git is asked
TOLD_ONLY = ("process.command", "process.revision")  # no finding: two runs that are compared differ there on purpose
LINE = 200  # characters of a line that is printed

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
            "command": masking.command(),
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
            states_of(torch, model=model, optimizer=optimizer, scheduler=scheduler, scaler=scaler, loader=loader)
        ),
    }
    if extra:
        groups["extra"] = {str(key): masking.hidden(str(key), value) for key, value in extra.items()}
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
