"""Values: what goes into a model, and whether rows and padded positions reach into each other."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from rerail.diagnostics.calling import TARGETS, tensors
from rerail.diagnostics.finding import CannotAnswer, Cause, Finding, Report, answers
from rerail.diagnostics.state import untouched

ROWS_MIX = Cause(
    "values.rows_mix",
    refute="rows are meant to see each other (attention over the batch, a graph)",
    next="change one row and see which other rows move: softmax over the batch, or batch and time exchanged",
    wrong_fixes=("serving with the training batch size", "drop_last", "no shuffling"),
)
READS_PADDING = Cause(
    "values.model_reads_padding",
    refute="the padding carries meaning",
    next="change the padded positions: the outputs at the real ones must not move",
    wrong_fixes=("-1e4 instead of -inf", "nan_to_num after softmax", "padding to one length"),
)
NOT_FINITE = Cause(
    "values.non_finite_input",
    refute="missing values are coded as nan and masked later",
    next="find the rows in the raw data",
    wrong_fixes=("nan_to_num",),
)
LEADING = Cause(
    "values.rows_do_not_agree",
    refute="a field of the batch belongs to all rows together",
    next="print the shape of every field of the batch",
    wrong_fixes=("repeating the single row",),
)


@answers
def check_values(
    model: nn.Module,
    batch: Any,
    *,
    forward: Callable[[nn.Module, Any], Any] | None = None,
    padding: Tensor | None = None,
) -> Report:
    """Check what goes into a model, and that rows and padded positions do not reach into each other.

    The model is asked in eval mode: where one row is changed, the outputs of the other rows must stay.

    Args:
        model: The model.
        batch: Its inputs: a tensor, `(inputs..., target)`, or a mapping.
        forward: `forward(model, inputs)` gives the output as a tensor, shape (rows, ...).
        padding: True at the padded positions of the first input, shape (rows, positions).

    Returns:
        A report with shape, dtype and range of every input.
    """
    fields = list(tensors(batch))
    if not fields:
        raise CannotAnswer("the batch holds no tensor")
    columns = ("input", "shape", "dtype", "smallest", "largest")
    rows = tuple(
        (name, str(tuple(each.shape)), str(each.dtype).removeprefix("torch."), *_span(each)) for name, each in fields
    )
    findings: list[Finding] = []
    broken = [name for name, each in fields if each.is_floating_point() and not bool(each.isfinite().all())]
    if broken:
        findings.append(NOT_FINITE.fault(f"{len(broken)} inputs hold values that are not finite", where=broken))
    leading = {name: each.shape[0] for name, each in fields if each.ndim}
    most = max(leading.values(), default=0)
    if any(
        most % count or count == 1 < most for count in leading.values() if count
    ):  # a flattened target has a multiple
        says = f"the fields of the batch have {sorted(set(leading.values()))} rows"
        findings.append(LEADING.suspicious(says, where=list(leading)))
    facts: dict[str, Any] = {"rows": next(iter(leading.values()), None)}
    if not broken:
        with untouched(model), torch.no_grad():
            model.eval()
            findings += _mixing(model, batch, forward, facts)
            if padding is not None:
                findings += _padded(model, batch, forward, padding, facts)
    return Report("check_values", tuple(findings), facts, columns, rows)


def _mixing(
    model: nn.Module, batch: Any, forward: Callable[[nn.Module, Any], Any] | None, facts: dict[str, Any]
) -> list[Finding]:
    """Change the first row, then the last, of the first floating point input; the outputs of the others must stay."""
    first = _inputs(batch)
    before, again = _run(model, first, forward), _run(model, first, forward)
    if before is None or again is None or not torch.equal(before, again):
        return []  # random in eval mode: not a question of rows
    facts["rows_moved_by_another"] = 0
    for row in (0, -1):
        changed, rows = _changed(first, functools.partial(_other_row, row=row))
        if changed is None or rows < 2 or before.shape[0] != rows:
            return []
        after = _run(model, changed, forward)
        if after is None or after.shape != before.shape:
            return []
        near = torch.isclose(before, after, rtol=1e-4, atol=1e-5, equal_nan=True).reshape(rows, -1).all(1)
        moved = [each for each in range(rows) if not near[each] and each != row % rows]
        near_by = row == 0 and moved == list(range(1, len(moved) + 1))  # a recurrence that runs over the rows
        if len(moved) == rows - 1 or (near_by and len(moved) > 1):  # a graph moves some, and is meant to
            facts["rows_moved_by_another"] = len(moved)
            says = (
                f"a change of row {row % rows} moves the outputs of {len(moved)} of the {rows - 1} others, in eval mode"
            )
            return [ROWS_MIX.suspicious(says, rows=tuple(moved[:8]))]
    return []


def _padded(
    model: nn.Module,
    batch: Any,
    forward: Callable[[nn.Module, Any], Any] | None,
    padding: Tensor,
    facts: dict[str, Any],
) -> list[Finding]:
    first = _inputs(batch)
    changed, _ = _changed(first, lambda tensor: _elsewhere(tensor, padding), integers=True)
    before, after = _run(model, first, forward), _run(model, changed, forward)
    if changed is None or before is None or after is None or not bool(padding.any()):
        raise CannotAnswer("no padded position could be changed: `padding` is True where the first input is padding")
    real = ~padding if before.shape[: padding.ndim] == padding.shape else torch.ones(before.shape[0], dtype=torch.bool)
    difference = float((before - after)[real].abs().max())
    facts["moved_by_padding"] = difference
    if difference > 1e-5 * max(1.0, float(before[real].abs().max())):
        says = f"other values at the padded positions move the outputs at the real ones by up to {difference:.4g}"
        return [READS_PADDING.fault(says, moved=difference)]
    return []


def _inputs(batch: Any) -> Any:
    return batch[:-1] if isinstance(batch, (list, tuple)) and len(batch) > 1 else batch


def _run(model: nn.Module, inputs: Any, forward: Callable[[nn.Module, Any], Any] | None) -> Tensor | None:
    if forward is not None:
        output = forward(model, inputs)
    elif isinstance(inputs, dict):
        rest = {key: value for key, value in inputs.items() if key not in TARGETS}
        output = model(**rest)
    else:
        output = model(*inputs) if isinstance(inputs, (list, tuple)) else model(inputs)
    found = [each for _, each in tensors(output) if each.is_floating_point() and each.ndim]
    return found[0] if found else None


def _changed(inputs: Any, change: Callable[[Tensor], Tensor], *, integers: bool = False) -> tuple[Any, int]:
    """Return the inputs with the first tensor that can be changed, and its number of rows."""
    if isinstance(inputs, Tensor):
        fits = inputs.ndim > 0 and (integers or inputs.is_floating_point())
        return (change(inputs), inputs.shape[0]) if fits else (None, 0)
    items = list(inputs.items()) if isinstance(inputs, dict) else list(enumerate(inputs))
    for key, value in items:
        if isinstance(value, Tensor):
            changed, rows = _changed(value, change, integers=integers)
            if changed is not None:
                copy: Any = dict(inputs) if isinstance(inputs, dict) else list(inputs)
                copy[key] = changed
                return copy, rows
    return None, 0


def _other_row(tensor: Tensor, row: int) -> Tensor:
    changed = tensor.clone()
    changed[row] = tensor[row] + 1 + tensor.float().std(unbiased=False).to(tensor)
    return changed


def _elsewhere(tensor: Tensor, where: Tensor) -> Tensor:
    """Put other values of the same tensor at some positions: another token, or a shifted number."""
    while where.ndim < tensor.ndim:
        where = where.unsqueeze(-1)
    other = tensor.flatten().roll(1).reshape(tensor.shape) if not tensor.is_floating_point() else tensor + 3.0
    if not tensor.is_floating_point():
        real = tensor[~where.expand_as(tensor)]
        other = real[:1].expand_as(tensor) if real.numel() else other
    return torch.where(where, other, tensor)


def _span(tensor: Tensor) -> tuple[float | None, float | None]:
    if not tensor.numel() or tensor.is_complex() or tensor.is_quantized:
        return None, None
    low, high = tensor.double().aminmax()
    return float(low), float(high)
