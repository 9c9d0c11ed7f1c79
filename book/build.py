"""
Build the book: `python book/build.py` writes the site to `_build/html`.

Every warning is an error, and so is an error in any cell that is not tagged as wanted. Settings are those of
`_config.yml`; the site's address may be given here, because it differs between a preview and the real place.
"""

from __future__ import annotations

import argparse
import filecmp
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "_build"
SITE = BUILD / "html"
LOG = BUILD / "build.log"
BASE_URL = "BOOK_BASE_URL"  # read by coursesite.pages
MATRIX = ROOT / "benchmarks/detection/matrix.py"  # the page about detection shows its stored result
LIMIT_SECONDS = 900  # a cell has its own limit in _config.yml; this one is for a build that hangs


class BuildError(Exception):
    """The book could not be built; the message is the sentence that is printed."""


def main(arguments: list[str] | None = None) -> int:
    """Build, check what came out, and tell it in one sentence."""
    options = parser().parse_args(arguments)
    start = time.monotonic()
    try:
        if options.twice:
            twice(options.base_url)
        else:
            build(options.base_url, cold=options.cold)
        if options.check:
            check()
    except BuildError as error:
        print(f"book: {error}", file=sys.stderr)
        return 1
    pages = len(list(SITE.rglob("*.html")))
    print(f"book: {pages} pages in {SITE.relative_to(ROOT)} after {time.monotonic() - start:.0f} s")
    return 0


def parser() -> argparse.ArgumentParser:
    """Return the options."""
    options = argparse.ArgumentParser(description="Build the book into _build/html.")
    options.add_argument(
        "--base-url",
        default=os.environ.get(BASE_URL, ""),
        metavar="URL",
        help="where the site will stand, as in https://example.org/course/ (default: $BOOK_BASE_URL)",
    )
    options.add_argument("--cold", action="store_true", help="execute every page anew, without the cache")
    options.add_argument("--check", action="store_true", help="run the tests of the built site afterwards")
    options.add_argument("--twice", action="store_true", help="build cold two times and compare every byte (slow)")
    return options  # fmt: skip


def build(base_url: str = "", *, cold: bool = False) -> None:
    """
    Build the site.

    Raises:
        BuildError: If a page has a warning, a cell fails, or no page comes out.
    """
    if cold:
        shutil.rmtree(BUILD, ignore_errors=True)
    # -W -n --keep-going: warnings are errors, broken references are warnings, and all of them are told at once
    program = Path(sys.executable).parent / "jupyter-book"
    if not program.exists():
        raise BuildError(f"there is no {program.name} beside this Python; install the extra: pip install -e '.[book]'")
    command = [str(program), "build", "book", "--config", "_config.yml"]
    command += ["--path-output", ".", "-W", "-n", "--keep-going", "--quiet"]
    BUILD.mkdir(exist_ok=True)
    subprocess.run([sys.executable, str(MATRIX)], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)  # if src/ changed
    with LOG.open("w+", encoding="utf-8") as log:
        try:
            done = subprocess.run(command, cwd=ROOT, env=environment(base_url), timeout=LIMIT_SECONDS, check=False,
                                  stdout=log, stderr=subprocess.STDOUT)  # fmt: skip
        except subprocess.TimeoutExpired:
            raise BuildError(f"the build did not end within {LIMIT_SECONDS} s; look for a cell that waits") from None
    if done.returncode != 0:
        shutil.rmtree(BUILD / ".doctrees", ignore_errors=True)  # else the next build skips the pages warned of
        print(first_cause(LOG.read_text("utf-8")), file=sys.stderr)
        raise BuildError(f"the build failed; the lines above say where, {LOG.relative_to(ROOT)} has all of them")
    if not (SITE / "index.html").exists():
        raise BuildError("the build ended without an index.html; look at `root` in book/_toc.yml")
    tidy()


def first_cause(log: str) -> str:
    """Return what the tools said up to the first error, without the layers of tools that passed it on."""
    noise = ("Kernel is running over TCP", "Running Jupyter-Book", "Source Folder:", "Config Path:", "Output Path:")
    head = log.partition("\nThe above exception was the direct cause")[0]
    return "\n".join(line for line in head.splitlines() if line.strip() and not any(word in line for word in noise))


def environment(base_url: str) -> dict[str, str]:
    """Return the variables of the build: the address, and none of the caller's that changes what a page shows."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("IPYTHON")}
    path = os.pathsep.join([str(Path(sys.executable).parent), inherited.get("PATH", "")])  # kernels are found by name
    return {**inherited, "PATH": path, BASE_URL: base_url, "PYTHONUTF8": "1", "TZ": "UTC"}


def tidy() -> None:
    """Delete what no reader needs: the source maps of the theme's scripts, a third of the whole site."""
    for path in SITE.rglob("*.map"):
        path.unlink()


def twice(base_url: str) -> None:
    """
    Build cold two times.

    Raises:
        BuildError: If the two sites differ in a name or a byte.
    """
    build(base_url, cold=True)
    with tempfile.TemporaryDirectory() as folder:
        first = Path(shutil.copytree(SITE, Path(folder) / "first"))
        build(base_url, cold=True)
        found = differences(first, SITE)
    if found:
        raise BuildError(f"two builds of one state differ in {len(found)} files, the first is {found[0]}")


def differences(one: Path, other: Path) -> list[str]:
    """Return the files that only one of two folders has, or that differ in a byte."""
    names = [{path.relative_to(top) for path in top.rglob("*") if path.is_file()} for top in (one, other)]
    changed = {name for name in names[0] & names[1] if not filecmp.cmp(one / name, other / name, shallow=False)}
    return sorted(str(name) for name in (names[0] ^ names[1]) | changed)


def check() -> None:
    """
    Test the built site.

    Raises:
        BuildError: If a test fails.
    """
    done = subprocess.run([sys.executable, "-m", "pytest", "-q", "tests/site"], cwd=ROOT, check=False)
    if done.returncode != 0:
        raise BuildError("the site was built, and its tests fail; the lines above say which")


if __name__ == "__main__":
    sys.exit(main())
