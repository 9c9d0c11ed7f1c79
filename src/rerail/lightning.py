"""The monitor as a callback of Lightning: `Trainer(callbacks=[rerail.lightning.Monitor(every=20)])`.

It needs the extra `lightning`. It knows what only the framework's loop can show: a model that `fit` trains in eval
mode, batches that give no loss, and metrics that the sanity check has already fed.
"""

from __future__ import annotations

from typing import Any

import lightning.pytorch as pl
from torch import nn

from rerail.diagnostics.finding import Cause, Report
from rerail.diagnostics.monitor import Monitor as LoopMonitor

SANITY = Cause(
    "evaluation.sanity_check_counts",
    refute="the metric is reset at the start of every validation",
    next="reset what tracks the best value in `on_train_start`",
    wrong_fixes=("num_sanity_val_steps=0: `validate` before `fit` does the same", "starting from a low value"),
)
NO_LOSS = Cause(
    "update.step_returns_nothing",
    refute="the batches are skipped on purpose",
    next="return the loss from `training_step`, or a mapping with `loss`",
    wrong_fixes=("logging the loss more often", "a larger rate"),
)


class Monitor(pl.Callback):
    """Watch a Lightning run by samples, as `rerail.Monitor` watches a loop.

    Args:
        every: Batches from one sample to the next.
        print_report: Whether the report is printed when the fit ends.

    Attributes:
        report: What was found up to now, a `rerail.Report`.

    Example:
        ```python
        monitor = rerail.lightning.Monitor(every=20)
        pl.Trainer(callbacks=[monitor]).fit(module, loader)
        print(monitor.report)
        ```
    """

    def __init__(self, every: int = 20, *, print_report: bool = False) -> None:
        super().__init__()
        self.every, self.print_report = every, print_report
        self._monitor = LoopMonitor(every=every)
        self._without_loss = 0

    @property
    def report(self) -> Report:
        """Return what was found up to now."""
        return self._monitor.report

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Begin to watch."""
        self._monitor = LoopMonitor(every=self.every)
        fed = [name for name, module in pl_module.named_modules() if _was_fed(module)]
        if fed:
            says = f"{len(fed)} metrics hold values before the first training batch: the sanity check fed them"
            self._monitor.note(SANITY.suspicious(says, where=fed))
        precision = getattr(trainer, "precision_plugin", None)
        self._monitor.attach(pl_module, list(trainer.optimizers), scaler=getattr(precision, "scaler", None))

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Mark the end of a batch."""
        loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
        self._monitor.step(loss)
        self._without_loss += loss is None and pl_module.automatic_optimization
        if self._without_loss == self.every:
            says = f"`training_step` gave no loss for {self._without_loss} batches: Lightning skips such batches"
            self._monitor.note(NO_LOSS.fault(says, batches=self._without_loss))

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Take the hooks away."""
        self._finish(pl_module)

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        """Take the hooks away."""
        self._finish(pl_module)

    def _finish(self, pl_module: pl.LightningModule) -> None:
        if self._without_loss and self._without_loss == self._monitor.iterations < self.every:
            says = f"`training_step` gave no loss for any of {self._without_loss} batches"
            self._monitor.note(NO_LOSS.fault(says, batches=self._without_loss))
        report = self._monitor.close()
        if self.print_report:
            print(report)


def _was_fed(module: nn.Module) -> bool:
    """Return whether a torchmetrics metric has seen values."""
    return bool(getattr(module, "update_count", 0)) and hasattr(module, "compute")
