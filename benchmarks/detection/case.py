"""One training step with all that belongs to it, and every check that can be asked about it."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

import rerail

LAYERS = ("process", "data", "values", "tiny batch", "gradient path", "update", "evaluation")


SYMPTOMS = ("tiny_batch.does_not_overfit", "tiny_batch.same_output_for_all_rows")


@dataclass
class Case:
    """What there is of a run; a check is asked where all that it needs is there.

    `settings` holds more arguments by the name of the check, such as `{"check_loss_contract": {"kind": "next token"}}`.
    """

    model: nn.Module | None = None
    optimizer: Any = None
    loss_fn: Callable[..., Any] | None = None
    batch: Any = None
    forward: Callable[..., Any] | None = None
    step: Callable[[], Any] | None = None
    scaler: Any = None
    evaluate: Callable[[], Any] | None = None
    splits: tuple[Any, ...] | None = None
    fit: tuple[Any, ...] | None = None  # fit_transform, train, test
    loaders: tuple[Any, ...] | None = None
    contract: tuple[Any, ...] | None = None  # loss_fn, output, target
    metric: tuple[Any, ...] | None = None  # evaluate, output, target
    accumulate: tuple[Any, ...] | None = None  # accumulate, full
    resume: tuple[Any, ...] | None = None  # make, save, load
    load: tuple[Any, ...] | None = None  # load, checkpoint
    snapshot: Any = None
    growth: Callable[[], Any] | None = None
    history: Any = None
    replicas: bool | None = None  # whether the forward pass goes around the wrapper, in two processes
    monitored: Callable[[], Any] | None = None  # one iteration of a loop, returns the loss
    settings: dict[str, dict[str, Any]] = field(default_factory=dict)


def reports(case: Case) -> Iterator[rerail.Report]:
    """Ask every check that can be asked about a case; nothing of it is changed by the asking."""
    more = case.settings
    model, batch, forward = case.model, case.batch, {"forward": case.forward}

    def given(name: str) -> dict[str, Any]:
        return more.get(name, {})

    if case.splits is not None:
        yield rerail.split_audit(*case.splits, **given("split_audit"))
    if case.fit is not None:
        yield rerail.fit_leak_test(*case.fit)
    if case.loaders is not None:
        yield rerail.reads_audit(*case.loaders, **given("reads_audit"))
    if case.history is not None:
        yield rerail.diagnose_history(case.history, **given("diagnose_history"))
    if case.contract is not None:
        yield rerail.check_loss_contract(*case.contract, **given("check_loss_contract"))
    if case.metric is not None:
        yield rerail.metric_check(*case.metric, **given("metric_check"))
    if case.resume is not None:
        yield rerail.resume_check(*case.resume)
    if case.growth is not None:
        yield rerail.graph_growth(case.growth, model=model, optimizer=case.optimizer)
    if case.replicas is not None:
        yield from _replicas(case.replicas)
    if model is None:
        return
    if case.load is not None:
        yield rerail.load_report(model, *case.load)
    if case.snapshot is not None:
        yield rerail.snapshot_check(case.snapshot, model)
    if case.accumulate is not None:
        yield rerail.accumulation_check(model, *case.accumulate, optimizer=case.optimizer)
    if case.evaluate is not None:
        yield rerail.evaluation_report(case.evaluate, model)
    if batch is not None:
        yield rerail.check_values(model, batch, **forward, **given("check_values"))
        yield rerail.gradient_report(
            model,
            case.loss_fn,
            batch,
            optimizer=None if isinstance(case.optimizer, list) else case.optimizer,
            **forward,
        )
        if more.get("overfit_batch", {}) is not None:  # None: this model cannot, or this loss has no known floor
            yield rerail.overfit_batch(model, case.loss_fn, batch, **forward, **given("overfit_batch"))
    if case.optimizer is not None:
        yield rerail.optimizer_audit(model, case.optimizer)
    if case.step is not None:
        yield _updated(case)
        yield rerail.first_nonfinite(case.step, model, case.optimizer, scaler=case.scaler)
    if case.monitored is not None:
        yield _monitored(case)


def primary(found: list[rerail.Report]) -> rerail.Finding | None:
    """Return the verdict of all reports: the first fault in the order of the layers, else the first question."""
    findings = [finding for report in found for finding in report.findings]
    for status in ("fault", "suspicious"):
        these = [finding for finding in findings if finding.status == status]
        if these:  # that a batch is not learned is a symptom: what names its cause comes before it
            return min(these, key=lambda finding: (finding.cause in SYMPTOMS, LAYERS.index(finding.layer)))
    return None


def _updated(case: Case) -> rerail.Report:
    assert case.model is not None and case.step is not None
    optimizers = case.optimizer if isinstance(case.optimizer, list) else [case.optimizer]
    with (
        rerail.untouched(case.model, *optimizers, case.scaler),
        rerail.update_report(case.model, case.optimizer, scaler=case.scaler) as update,
        contextlib.suppress(RuntimeError),
    ):
        for _ in range(3):
            case.step()
    return update.report


def _monitored(case: Case) -> rerail.Report:
    assert case.model is not None and case.monitored is not None
    optimizers = case.optimizer if isinstance(case.optimizer, list) else [case.optimizer]
    with rerail.untouched(case.model, *optimizers, case.scaler):
        monitor = rerail.Monitor(
            case.model, case.optimizer, every=10, scaler=case.scaler, on_finding=lambda finding: None
        )
        for _ in range(25):
            monitor.step(case.monitored())
        return monitor.close()


def _replicas(around: bool) -> list[rerail.Report]:
    from detection.processes import replica_reports

    return replica_reports(around)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Run without what torch warns about on the way: the checks say it themselves."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            yield
        finally:
            torch.set_num_threads(threads)
            logging.disable(logging.NOTSET)
