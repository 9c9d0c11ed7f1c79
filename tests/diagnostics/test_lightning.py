"""The Lightning callback: what only the framework's loop shows, and a run that it never disturbs."""

import warnings

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

pl = pytest.importorskip("lightning.pytorch")
torchmetrics = pytest.importorskip("torchmetrics")
lightning_monitor = pytest.importorskip("rerail.lightning")

pytestmark = pytest.mark.filterwarnings("ignore")  # of the framework, about loaders and logging

X = torch.randn(64, 4, generator=torch.Generator().manual_seed(0))


class Module(pl.LightningModule):
    def __init__(self, returns=True, clips=False, best=None):
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, 1))
        self.returns, self.clips, self.best = returns, clips, best

    def training_step(self, batch, number):
        if self.clips:
            nn.utils.clip_grad_norm_(self.parameters(), 0.1)
        loss = self.net(batch[0]).square().mean()
        return loss if self.returns else None

    def validation_step(self, batch, number):
        if self.best is not None:
            self.best.update(torch.tensor(1.0))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


def fitted(module, *, validate=False, **settings):
    monitor = lightning_monitor.Monitor(every=4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = pl.Trainer(
            max_epochs=2, logger=False, enable_checkpointing=False, enable_progress_bar=False, accelerator="cpu",
            enable_model_summary=False, callbacks=[monitor], **settings,
        )  # fmt: skip
        loader = DataLoader(TensorDataset(X), batch_size=8)
        trainer.fit(module, loader, loader if validate else None)
    return monitor.report


def test_a_healthy_fit_is_ok():
    report = fitted(Module(), validate=True, gradient_clip_val=1.0)

    assert report.status == "ok", report
    assert report.facts["iterations"] == 16


def test_clipping_inside_the_training_step_is_named():
    assert "update.clip_before_backward" in fitted(Module(clips=True)).causes


def test_a_model_that_fit_trains_in_eval_mode_is_named():
    module = Module()
    module.eval()

    assert "tiny_batch.trains_in_eval_mode" in fitted(module).causes
    module.train()
    assert fitted(module).status == "ok"


def test_a_training_step_without_loss_is_named():
    assert "update.step_returns_nothing" in fitted(Module(returns=False)).causes


def test_a_metric_that_the_sanity_check_has_fed_is_named():
    report = fitted(Module(best=torchmetrics.MaxMetric()), validate=True)

    assert report.causes == ("evaluation.sanity_check_counts",)
    assert report.findings[0].where == ("best",)
