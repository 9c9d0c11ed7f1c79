"""What is read of a machine for the record of a run: packages and their paths, device, execution, determinism."""

from __future__ import annotations

import contextlib
import importlib.machinery
import importlib.metadata
import importlib.util
import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rerail.diagnostics.finding import is_library

PACKAGES = ("torch", "numpy", "lightning", "pytorch_lightning", "keras", "tensorflow", "transformers")
DISTRIBUTIONS = {"tensorflow": ("tensorflow-cpu", "tensorflow-gpu", "tf-nightly"), "keras": ("keras-nightly",)}
HARMLESS = {"test", "tests", "docs", "examples", "setup", "conftest", "__main__", "__init__"}  # imported by nobody
FILES = 500  # of a folder, that are looked at
VARIABLES = (  # of the environment, that change what a run computes
    "OMP_NUM_THREADS", "MKL_NUM_THREADS", "PYTHONHASHSEED", "CUBLAS_WORKSPACE_CONFIG", "CUDA_VISIBLE_DEVICES",
    "TORCHDYNAMO_DISABLE", "TORCH_COMPILE_DISABLE", "KERAS_BACKEND", "TF_DETERMINISTIC_OPS",
)  # fmt: skip
GIT_SECONDS = 2  # for all that git is asked


def revision() -> str | None:
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


def kind() -> str:
    """Return system and processor."""
    return f"{platform.system()} {platform.machine()}"


def version(name: str) -> str | None:
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


def path(name: str) -> str | None:
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


def shadowing() -> Iterator[tuple[str, str]]:
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


def device(torch: Any) -> dict[str, Any]:
    """Return the device with what decides its numbers: dtype, precisions, threads; `torch` is None if not imported."""
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


def execution(torch: Any) -> dict[str, Any]:
    """Return how the run is executed: script or notebook, with gradients or without, on how many processes."""
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


def determinism(torch: Any) -> dict[str, Any]:
    """Return the variables and settings that decide whether a run repeats itself."""
    variables = {name: os.environ[name] for name in VARIABLES if name in os.environ}
    if torch is None:
        return variables
    return variables | {
        "deterministic_algorithms": bool(torch.are_deterministic_algorithms_enabled()),
        "cudnn_benchmark": bool(torch.backends.cudnn.benchmark),
        "cudnn_deterministic": bool(torch.backends.cudnn.deterministic),
    }
