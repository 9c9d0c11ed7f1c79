"""The layered checklist in one call: each layer in its order, until the first that fails."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from rerail.diagnostics.calling import call, named_parameters
from rerail.diagnostics.data import split_audit
from rerail.diagnostics.entries import as_list
from rerail.diagnostics.evaluation import evaluation_report
from rerail.diagnostics.finding import Finding, Report, answers, renamed, unknown
from rerail.diagnostics.gradient_path import gradient_report
from rerail.diagnostics.loss_contract import Kind, check_loss_contract
from rerail.diagnostics.nonfinite import first_nonfinite
from rerail.diagnostics.state import untouched
from rerail.diagnostics.tiny_batch import overfit_batch
from rerail.diagnostics.update import update_report
from rerail.diagnostics.values import check_values

NOT_TRUSTED = "not trusted"  # a layer above one that fails is not asked: its answer would mean nothing


@answers
def checkup(
    model: nn.Module,
    optimizer: Optimizer | Sequence[Optimizer],
    loss_fn: Callable[..., Any] | None,
    batch: Any,
    *,
    forward: Callable[[nn.Module, Any], Any] | None = None,
    step: Callable[[], Any] | None = None,
    evaluate: Callable[[], Any] | None = None,
    splits: Sequence[Any] | None = None,
    kind: Kind | None = None,
    ignore: int | None = None,
    scaler: Any = None,
    overfit_steps: int = 200,
) -> Report:
    """Ask every layer of the checklist about one training step, in order, and stop at the first that fails.

    Nothing that it was given is changed. Without `step`, a plain step is made: clear, forward, loss, backward, step;
    then the order in which your loop does that was not looked at.

    Args:
        model: The model, in the mode in which it trains.
        optimizer: Its optimizer, or all that train parts of it.
        loss_fn: `loss_fn(output, target)`, or None where the model gives its loss.
        batch: One batch, `(inputs..., target)` or a mapping.
        forward: `forward(model, batch)` gives the output, where the habits of PyTorch do not fit.
        step: Makes one step of your loop on this batch.
        evaluate: Evaluates the model as your loop does, and returns a number.
        splits: `(train, validation[, test])` for `split_audit`.
        kind: What the target is, for `check_loss_contract`.
        ignore: The class index that must not count, for `check_loss_contract`.
        scaler: The gradient scaler that `step` uses.
        overfit_steps: Steps of the tiny-batch test; 0 leaves it out.

    Returns:
        A report whose table has a row a layer: ok, fault, suspicious, unknown, not applicable, or not trusted.

    Example:
        ```python
        print(rerail.checkup(model, optimizer, nn.functional.cross_entropy, (x, y)))
        ```
    """
    optimizers = as_list(optimizer)
    named_parameters(model)
    asked: list[tuple[str, Callable[[], Report]]] = []
    if splits is not None:
        asked.append(("data", lambda: split_audit(*splits)))
    asked += [
        ("values", lambda: check_values(model, batch, forward=forward)),
        ("values", lambda: _contract(model, loss_fn, batch, forward, kind, ignore)),
    ]
    if overfit_steps:
        asked.append(("tiny batch", lambda: overfit_batch(model, loss_fn, batch, steps=overfit_steps, forward=forward)))
    asked += [
        (
            "gradient path",
            lambda: gradient_report(model, loss_fn, batch, optimizer=_joined(optimizers), forward=forward),
        ),
        ("update", lambda: _update(model, optimizers, loss_fn, batch, forward, step, scaler)),
    ]
    if evaluate is not None:
        asked.append(("evaluation", lambda: evaluation_report(evaluate, model)))
    return _in_order(asked)


def _in_order(asked: list[tuple[str, Callable[[], Report]]]) -> Report:
    findings: list[Finding] = []
    rows: list[tuple[str, str, str]] = []
    facts: dict[str, Any] = {}
    failed = ""
    for layer, ask in asked:
        if failed and layer != failed:
            rows.append((layer, "", NOT_TRUSTED))
            continue
        report = ask()
        rows.append((layer, report.check, report.status))
        findings += report.findings
        facts |= {f"{report.check}.{name}": value for name, value in report.facts.items()}
        failed = layer if report.status == "fault" else failed
    summary = ", ".join(f"{layer} {status}" for layer, status in _worst(rows).items())
    return Report("checkup", tuple(findings), facts, ("layer", "check", "status"), tuple(rows), summary=summary)


def _worst(rows: list[tuple[str, str, str]]) -> dict[str, str]:
    order = ("fault", "suspicious", "unknown", NOT_TRUSTED, "not_applicable", "ok")
    worst: dict[str, str] = {}
    for layer, _, status in rows:
        worst[layer] = min(worst.get(layer, "ok"), status, key=order.index)
    return worst


def _contract(
    model: nn.Module,
    loss_fn: Callable[..., Any] | None,
    batch: Any,
    forward: Callable[[nn.Module, Any], Any] | None,
    kind: Kind | None,
    ignore: int | None,
) -> Report:
    with untouched(model), torch.enable_grad():
        called = call(model, loss_fn, batch, forward)
    if loss_fn is None or not isinstance(called.output, Tensor) or not isinstance(called.target, Tensor):
        if bool(torch.isfinite(called.loss).all()):
            return Report("check_loss_contract", (), {"loss": float(called.loss.detach())})
        return unknown("check_loss_contract", "the loss is not finite, and its arguments could not be looked at")
    return check_loss_contract(loss_fn, called.output, called.target, kind=kind, ignore=ignore)


def _update(
    model: nn.Module,
    optimizers: list[Optimizer],
    loss_fn: Callable[..., Any] | None,
    batch: Any,
    forward: Callable[[nn.Module, Any], Any] | None,
    step: Callable[[], Any] | None,
    scaler: Any,
) -> Report:
    def plain() -> None:
        for optimizer in optimizers:
            optimizer.zero_grad()
        torch.autograd.backward(call(model, loss_fn, batch, forward).loss.sum())
        for optimizer in optimizers:
            optimizer.step()

    run = step if step is not None else plain
    with untouched(model, *optimizers, scaler), torch.enable_grad():
        with update_report(model, optimizers, scaler=scaler) as update:
            for _ in range(3):  # the third shows what the second left
                run()
        finite = all(bool(torch.isfinite(parameter).all()) for parameter in model.parameters() if parameter.numel())
    if not finite:
        return first_nonfinite(run, model, optimizers, scaler=scaler, batch=batch)
    return renamed(update.report, "update_report")


def _joined(optimizers: list[Optimizer]) -> Optimizer | None:
    return optimizers[0] if len(optimizers) == 1 else None
