"""
How cells are executed: a cache that notices changed code, and a kernel profile, so that pages need no boilerplate.

The cache of jupyter-cache looks at a page's own cells only: a changed `src/` left old numbers on the pages
(myst-nb #299 and #621). So its folder is named after a digest of everything that cells can reach.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sphinx.application import Sphinx
    from sphinx.config import Config

ROOT = Path(__file__).resolve().parents[3]
EXECUTED = ("src", "exercises", "solutions", "graders", "constraints.txt", "book/_ext/coursesite")
PACKAGES = ("torch", "numpy", "matplotlib", "ipykernel", "myst-nb")
KEEP = {".py", ".csv", ".json", ".jsonl", ".npz", ".npy", ".txt", ".safetensors", ".log", ".md", ".toml", ".gz"}
PROFILE = """\
import sys
sys.path.insert(0, {ext!r})
c = get_config()
c.InteractiveShellApp.extensions = ["coursesite.kernel"]
c.HistoryManager.enabled = False
c.InlineBackend.figure_formats = {{"svg"}}
c.InlineBackend.print_figure_kwargs = {{"bbox_inches": None, "metadata": {{"Date": None}}}}
"""


def setup(app: Sphinx) -> None:
    """Connect before myst-nb reads its settings."""
    app.connect("config-inited", prepare)


def prepare(app: Sphinx, config: Config) -> None:
    """Choose the cache of this state of the code, drop older ones, and write the kernel's profile."""
    build = Path(config.nb_execution_cache_path or ROOT / "_build" / "cache")
    build = build if build.is_absolute() else ROOT / build
    current = digest()
    for old in build.glob("*"):
        if old.name != current and old.is_dir():
            shutil.rmtree(old)
    config.nb_execution_cache_path = str(build / current)
    write_profile(build.parent / "ipython")


def digest(root: Path = ROOT) -> str:
    """Return a name for the state of all that cells can run: the course's files and the versions beneath them."""
    state = hashlib.sha256(platform.python_version().encode())
    for package in PACKAGES:
        state.update(f"{package} {version(package)}\n".encode())
    for path in _files(root):
        state.update(f"{path.relative_to(root).as_posix()}\n".encode())
        state.update(hashlib.sha256(path.read_bytes()).digest())
    return state.hexdigest()[:16]


def version(package: str) -> str:
    """Return the version of an installed package without its local part, or "none"."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "none"


def _files(root: Path) -> list[Path]:
    found = []
    for name in EXECUTED:
        place = root / name
        found += [place] if place.is_file() else [path for path in place.rglob("*") if path.suffix in KEEP]
    return sorted(path for path in found if path.is_file() and "__pycache__" not in path.parts)


def write_profile(folder: Path) -> None:
    """Write the IPython profile of the book's kernels, and let the kernels that this process starts find it."""
    profile = folder / "profile_default"
    profile.mkdir(parents=True, exist_ok=True)
    text = PROFILE.format(ext=str(Path(__file__).resolve().parents[1]))
    (profile / "ipython_kernel_config.py").write_text(text, encoding="utf-8")
    os.environ["IPYTHONDIR"] = str(folder)
    os.environ["PYTHONHASHSEED"] = "0"  # sets print in the same order in every build
    # Read when torch starts: numbers on the pages do not depend on the machine's cores; nothing imports torch early.
    for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[variable] = "1"
