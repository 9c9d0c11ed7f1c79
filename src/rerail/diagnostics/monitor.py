"""A monitor for a training loop: it looks at a step or two in every `every`, and never stops the run."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from rerail.diagnostics.entries import as_list
from rerail.diagnostics.finding import Finding, Report, unknown
from rerail.diagnostics.gradient_path import NON_FINITE_LOSS
from rerail.diagnostics.update import frozen_statistics, judged
from rerail.diagnostics.watching import StepWatch

PAIRS = 5  # every fifth sample watches two steps: whether gradients are cleared shows at the second
PATIENCE = 64  # iterations without an optimizer step, after which a sample ends: the longest usual accumulation

logger = logging.getLogger("rerail")


class Monitor:
    """Watch a training loop by samples, and keep what they show.

    Call `step(loss)` at the end of every iteration. Between samples it counts, and notes without waiting for the
    device whether the loss was finite. A sample watches the iterations up to an optimizer step, in every fifth sample
    two, with the hooks of `update_report`. A finding is logged once, to the logger "rerail". A failure inside the
    monitor ends the monitoring and is told in `report`; the run goes on.

    Args:
        model: What is trained; may be given later, to `attach`.
        optimizer: Its optimizer, or all of them.
        every: Iterations from one sample to the next.
        scaler: The gradient scaler.
        on_finding: Called with each new `Finding`, in place of the log.

    Attributes:
        report: What was found up to now: a `Report` with a row a sample.

    Example:
        ```python
        monitor = rerail.Monitor(model, optimizer, every=20)
        for batch in loader:
            loss = training_step(batch)
            monitor.step(loss)
        print(monitor.close())
        ```
    """

    def __init__(
        self,
        model: nn.Module | None = None,
        optimizer: Optimizer | Sequence[Optimizer] | None = None,
        *,
        every: int = 20,
        scaler: Any = None,
        on_finding: Callable[[Finding], object] | None = None,
    ) -> None:
        self.every = max(1, int(every))
        self.iterations = 0
        self.problem = ""
        self._scaler, self._on_finding = scaler, on_finding or _log
        self._findings: dict[tuple[str, tuple[str, ...]], Finding] = {}
        self._rows: list[tuple[Any, ...]] = []
        self._watch: StepWatch | None = None
        self._statistics: dict[str, Any] = {}
        self._begun = 0
        self._broken: Tensor | None = None  # on the device: whether a loss since the last sample was not finite
        self._clipped: list[bool] = []
        self._model: nn.Module | None = None
        self._optimizers: list[Optimizer] = []
        if model is not None and optimizer is not None:
            self.attach(model, optimizer)

    def attach(self, model: nn.Module, optimizer: Optimizer | Sequence[Optimizer], *, scaler: Any = None) -> Self:
        """Say what is watched, and begin the first sample."""
        self._scaler = scaler if scaler is not None else self._scaler
        self._guarded(self._attach, model, optimizer)
        return self

    def step(self, loss: Any = None) -> None:
        """Mark the end of an iteration.

        Args:
            loss: The loss of the iteration, a tensor or a number, if it is at hand.
        """
        if not self.problem:
            self._guarded(self._step, loss)

    def close(self) -> Report:
        """End the monitoring, take every hook away, and return the report."""
        self._guarded(self._end_sample)
        return self.report

    @property
    def report(self) -> Report:
        """Return what was found up to now."""
        if self.problem:
            return unknown("Monitor", self.problem)
        if self._model is None:
            return unknown("Monitor", "nothing is watched: give a model and its optimizer")
        if not self.iterations:
            return unknown("Monitor", "no iteration has ended yet: call `step(loss)` at the end of each")
        clipped = sum(self._clipped) / len(self._clipped) if self._clipped else 0.0
        facts = {"iterations": self.iterations, "samples": len(self._rows), "clipped_fraction": clipped}
        columns = ("iteration", "loss", "unclipped norm", "norm at step", "update/weight", "rate")
        found = tuple(self._findings.values())
        return Report("Monitor", found, facts, columns, tuple(self._rows), "update/weight")

    def __enter__(self) -> Self:
        """Return the monitor; leaving the block closes it."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the monitor; an exception of the loop goes on its way."""
        self.close()

    def _attach(self, model: nn.Module, optimizer: Optimizer | Sequence[Optimizer]) -> None:
        self._end_sample()
        self._model, self._optimizers = model, as_list(optimizer)
        self._begin_sample()

    def _step(self, loss: Any) -> None:
        self.iterations += 1
        value = loss.detach() if isinstance(loss, Tensor) else loss
        if isinstance(value, Tensor):
            broken = ~torch.isfinite(value).all()
            self._broken = broken if self._broken is None else self._broken | broken
        elif isinstance(value, (int, float)) and not math.isfinite(value):
            self._note(NON_FINITE_LOSS.fault(f"the loss is {value} in iteration {self.iterations}", loss=float(value)))
        if self._watch is not None:
            waited = self.iterations - self._begun
            wanted = 2 if len(self._rows) % PAIRS == 0 else 1
            if len(self._watch.steps) >= wanted or waited >= PATIENCE or self._watch.problem:
                self._end_sample(value)
        elif self._model is not None and self.iterations % self.every == 0:
            self._begin_sample()

    def _begin_sample(self) -> None:
        assert self._model is not None
        self._watch = StepWatch(self._model, self._optimizers, scaler=self._scaler)
        self._statistics = frozen_statistics(self._model)
        self._begun = self.iterations
        self._watch.start()

    def _end_sample(self, loss: Any = None) -> None:
        watch, self._watch = self._watch, None
        if watch is None or self._model is None:
            return
        watch.stop()
        if self.iterations == self._begun:
            return  # closed before anything ran
        report = judged(self._model, self._optimizers, watch, self._statistics)
        for finding in report.findings:
            if finding.status in ("fault", "suspicious"):
                self._note(finding)
        if self._broken is not None and bool(self._broken):
            says = f"a loss was not finite, up to iteration {self.iterations}"
            self._note(NON_FINITE_LOSS.fault(says))
        self._broken = None
        if watch.steps:
            last = watch.steps[-1]
            facts = report.facts
            value = float(loss.float().mean()) if isinstance(loss, Tensor) else loss
            self._clipped.append(bool(facts.get("clipped_fraction")))
            rate = max(last.rates.values(), default=None)
            row = (str(self.iterations), value, last.unclipped_norm, last.norm, facts.get("update_to_weight"), rate)
            self._rows.append(row)

    def note(self, finding: Finding) -> None:
        """Keep a finding of somebody who watches the same loop, such as a callback; the same one is kept once."""
        self._guarded(self._note, finding)

    def _note(self, finding: Finding) -> None:
        key = (finding.cause, finding.where)
        if key not in self._findings:
            self._findings[key] = finding
            self._on_finding(finding)

    def _guarded(self, function: Callable[..., None], *args: Any) -> None:
        """Run a part of the monitor; where it fails, end the monitoring and let the run go on."""
        try:
            function(*args)
        except Exception as error:
            self.problem = f"the monitor ended: {type(error).__name__}: {error}"
            watch, self._watch = self._watch, None
            if watch is not None:
                watch.stop()


def _log(finding: Finding) -> None:
    logger.warning("%s %s: %s", finding.status, finding.cause, finding.says)
