"""What a probe recorded, as text and as curves."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rerail.cli.settings import Problem
from rerail.files import remedy

if TYPE_CHECKING:
    from rerail.course import Exercise
    from rerail.evidence import Evidence

ROWS = 12  # of a table; the steps between are left out
WIDTH = 88
ROW_WIDTH = 6
FLAT = 0.01  # a curve that varies by less than this part of its values is drawn as flat


def described(evidence: Evidence, recorded: dict[str, str]) -> list[str]:
    """Lay evidence out as lines: what the names mean, numbers, tables of what was recorded by step, other arrays."""
    from rerail.report import shown

    numbers = {n: shown(a.item()) for n, a in evidence.arrays.items() if a.ndim == 0}
    numbers |= {n: shown(text) for n, text in evidence.texts.items()} | dict.fromkeys(evidence.absent, "absent")
    others = {n: _summary(a) for n, a in evidence.arrays.items() if a.ndim > 1 or a.shape == (0,)}
    width = max((len(label(name)) for name in [*numbers, *others]), default=0)
    lines = ["", *_legend(recorded)] if recorded else []
    if numbers:
        lines += ["", *(f"  {label(name):<{width}}  {numbers[name]}" for name in sorted(numbers))]
    for names in tables(evidence):
        lines += ["", *_table({name: evidence.arrays[name] for name in names})]
    if others:
        lines += ["", *(f"  {label(name):<{width}}  {others[name]}" for name in sorted(others))]
    return lines


def _legend(recorded: dict[str, str]) -> list[str]:
    """Say what each name stands for, in the grader's words."""
    width = max(map(len, recorded), default=0)
    lines = []
    for name, meaning in recorded.items():
        first, *more = textwrap.wrap(meaning, WIDTH - width - 4)
        lines += [f"  {name:<{width}}  {first}", *(f"  {'':<{width}}  {line}" for line in more)]
    return lines


def tables(evidence: Evidence) -> list[list[str]]:
    """Group the one-dimensional arrays into tables: of one length, and no wider than a page."""
    found: list[tuple[int, int, list[str]]] = []  # length, width so far, names
    for name, array in sorted(evidence.arrays.items()):
        if array.ndim != 1 or not len(array):
            continue
        width = 2 + _column(name)
        for i, (length, used, names) in enumerate(found):
            if length == len(array) and used + width <= WIDTH:
                found[i] = (length, used + width, [*names, name])
                break
        else:
            found.append((len(array), ROW_WIDTH + width, [name]))
    return [names for _, _, names in found]


def label(name: str) -> str:
    """Return the name as a reader wants it; an underscore before it is between a probe and its checks."""
    group, _, last = name.rpartition("/")
    return f"{group}/{last.lstrip('_')}" if group else last.lstrip("_")


def _column(name: str) -> int:
    return max(len(label(name)), 10)


def _table(columns: dict[str, Any]) -> list[str]:
    """Write arrays of one length side by side, and below which of them are not finite from where on."""
    import numpy as np

    from rerail.report import shown

    length = len(next(iter(columns.values())))
    picked = range(length) if length <= ROWS else [*range(ROWS - 4), -1, length - 3, length - 2, length - 1]
    lines = ["".join([f"{'row':>{ROW_WIDTH}}", *(f"  {label(name):>{_column(name)}}" for name in columns)])]
    for i in picked:
        cells = {name: "..." if i < 0 else shown(values[i]) for name, values in columns.items()}
        row = "..." if i < 0 else str(i)
        lines.append("".join([f"{row:>{ROW_WIDTH}}", *(f"  {cells[name]:>{_column(name)}}" for name in columns)]))
    for name, values in columns.items():
        broken = np.flatnonzero(~np.isfinite(values))
        if len(broken):
            lines.append(f"  {label(name)} is not finite in {len(broken)} of {length} rows, first in row {broken[0]}")
    return lines


def _summary(array: Any) -> str:
    import numpy as np

    finite = array[np.isfinite(array)]
    between = f"{finite.min():.4g} to {finite.max():.4g}" if finite.size else "no finite value" if array.size else ""
    broken = array.size - finite.size
    size = "x".join(map(str, array.shape))
    return f"{size:<10} {between}{f', {broken} not finite' if broken else ''}".rstrip()


def picture(target: str) -> str:
    """Return the path of the file that a plot will be written to, or refuse one that cannot be."""
    if Path(target).is_dir():
        raise Problem(f"{target} is a directory; name a file in it, such as {Path(target, 'curve.png')}")
    return target if Path(target).suffix else f"{target}.png"  # as matplotlib writes it


def drawn(exercise: Exercise, evidence: Evidence, target: str) -> str:
    """Draw what was recorded step by step, one panel a name, to a file or in a window; return where it is."""
    import matplotlib

    if target != "show":
        matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    if target == "show" and matplotlib.get_backend().lower() == "agg":
        raise Problem("there is no display to open a window on; name a file, as in --plot curve.png", 3)
    series = {n: evidence.arrays[n] for names in tables(evidence) for n in names if len(evidence.arrays[n]) > 1}
    if not series:
        raise Problem(f"{exercise.name} records nothing step by step, so there is no curve; leave --plot out")
    figure, axes = plt.subplots(
        len(series), 1, figsize=(7, 1 + 2 * len(series)), squeeze=False, sharex=False, layout="constrained"
    )
    for axis, (name, values) in zip(axes[:, 0], series.items(), strict=True):
        _draw(axis, name, values.astype(float))
    figure.suptitle(exercise.title, wrap=True)
    if target == "show":
        plt.show()
        return "a window"
    try:
        figure.savefig(target)
    except ValueError as error:
        raise Problem(f"{target} cannot be a plot: {error}; name a file such as curve.png") from None
    except OSError as error:
        what = f"the plot could not be written to {target}: {error.strerror or error}"
        raise Problem(f"{what}; {remedy(error)}", 3) from None
    return target


def _draw(axis: Any, name: str, values: Any) -> None:
    """Draw one series; what is not finite is marked at the bottom, and rounding in a flat line stays flat."""
    import numpy as np
    from matplotlib.ticker import MaxNLocator

    finite = np.isfinite(values)
    axis.plot(values, marker=".")
    axis.set(xlabel="row", ylabel=label(name), xlim=(-0.5, len(values) - 0.5))
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    if finite.any():
        low, high = values[finite].min(), values[finite].max()
        middle, room = (low + high) / 2, max((high - low) / 2, abs(high) * FLAT, 1e-300)
        axis.set_ylim(middle - 1.1 * room, middle + 1.1 * room)
    if not finite.all():
        rows = np.flatnonzero(~finite)
        axis.plot(rows, np.zeros(len(rows)), "rx", transform=axis.get_xaxis_transform(), clip_on=False)
        axis.set_title(f"x: not finite, {len(rows)} of {len(values)} rows", loc="right", fontsize="small")
