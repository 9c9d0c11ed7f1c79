"""Follow the tensor: one batch through a model, one row a module, from real forward hooks. For cells of the book."""

from __future__ import annotations

import html
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

HEADER = ("Module", "Shape", "Type", "Min", "Max", "Std", "Not finite")
MARK = "first"  # the word in the row where values stop being finite: colour alone would not reach everyone


@dataclass(frozen=True)
class Row:
    """What came out of one module; min, max and std are those of the finite values, nan where there is none."""

    name: str
    kind: str
    shape: tuple[int, ...]
    dtype: str
    low: float
    high: float
    std: float
    nonfinite: int
    size: int


class FollowTheTensor:
    """
    A table of what every module of a model gives for one batch, shown by a notebook as HTML.

    One forward pass, without gradients, in the model's present mode. The random state and the buffers (the running
    statistics of batch norm) are put back, so that looking changes nothing.

    Args:
        model: A torch module.
        inputs: Its input, or a tuple of inputs.
        caption: What is shown, in one sentence; becomes the caption of the table.
    """

    def __init__(self, model: Any, inputs: Any, *, caption: str = "One batch on its way through the model") -> None:
        self.caption = caption
        arguments = tuple(inputs) if isinstance(inputs, list | tuple) else (inputs,)
        self.rows = [measured(f"input {i}" if len(arguments) > 1 else "input", "", x) for i, x in enumerate(arguments)]
        with _untouched(model), _watched(model, self.rows):
            model(*arguments)

    @property
    def first_nonfinite(self) -> str | None:
        """The name of the first row with a value that is not finite."""
        return next((row.name for row in self.rows if row.nonfinite), None)

    def __repr__(self) -> str:
        """Return the table as text, for terminals."""
        cells = [HEADER, *(_cells(row, row is self._first()) for row in self.rows)]
        widths = [max(len(line[column]) for line in cells) for column in range(len(HEADER))]
        return "\n".join("  ".join(f"{c:<{w}}" for c, w in zip(line, widths, strict=True)).rstrip() for line in cells)

    def _first(self) -> Row | None:
        return next((row for row in self.rows if row.nonfinite), None)

    def _repr_html_(self) -> str:
        """Return the table; `course.js` adds the buttons that step through it."""
        head = "".join(f'<th scope="col">{name}</th>' for name in HEADER)
        body = "".join(_html(row, row is self._first()) for row in self.rows)
        return (
            '<div class="follow-the-tensor"><div class="table-scroll" tabindex="0"><table class="table">'
            f"<caption>{html.escape(self.caption)}</caption>"
            f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div></div>"
        )


def measured(name: str, kind: str, value: Any) -> Row:
    """Measure one tensor; of several (a recurrent layer gives a tuple) the first."""
    import torch

    while isinstance(value, Sequence) and value:
        value = value[0]
    values = value.detach()
    finite = values[torch.isfinite(values)].double() if values.is_floating_point() else values.double().flatten()
    low, high = (float(finite.min()), float(finite.max())) if finite.numel() else (math.nan, math.nan)
    std = float(finite.std(correction=0)) if finite.numel() else math.nan
    dtype = str(values.dtype).removeprefix("torch.")
    broken = values.numel() - finite.numel()
    return Row(name, kind, tuple(values.shape), dtype, low, high, std, broken, values.numel())


@contextmanager
def _watched(model: Any, rows: list[Row]) -> Iterator[None]:
    """Record the output of every module that holds no other, in the order in which they run."""

    def hook(name: str) -> Any:
        return lambda module, _, output: rows.append(measured(name, type(module).__name__, output))

    leaves = [(name, module) for name, module in model.named_modules() if not any(module.children())]
    handles = [module.register_forward_hook(hook(name or "model")) for name, module in leaves]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def _untouched(model: Any) -> Iterator[None]:
    """Put back what a forward pass in training mode changes."""
    import torch

    before = [(buffer, buffer.clone()) for buffer in model.buffers()]
    with torch.no_grad(), torch.random.fork_rng():
        yield
        for buffer, old in before:
            buffer.copy_(old)


def _cells(row: Row, first: bool) -> tuple[str, ...]:
    name = f"{row.name} ({row.kind})" if row.kind else row.name
    broken = f"{row.nonfinite} of {row.size}" + (f" ({MARK})" if first else "") if row.nonfinite else "0"
    shape = " x ".join(map(str, row.shape)) or "scalar"
    return (name, shape, row.dtype, *(f"{value:.4g}" for value in (row.low, row.high, row.std)), broken)


def _html(row: Row, first: bool) -> str:
    name, *cells = _cells(row, first)
    state = ' class="first-nonfinite"' if first else ' class="nonfinite"' if row.nonfinite else ""
    body = "".join(f"<td>{html.escape(cell)}</td>" for cell in cells)
    return f'<tr{state}><th scope="row"><code>{html.escape(name)}</code></th>{body}</tr>'
