"""The tiny batch: what learns it is ok, what stops is told apart by where it stops."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional

import rerail

GENERATOR = torch.Generator().manual_seed(6)
X = torch.randn(12, 6, generator=GENERATOR)
LABELS = torch.arange(12) % 4
NUMBERS = torch.randn(12, 1, generator=GENERATOR)
CE = functional.cross_entropy


def mlp(last: nn.Module | None = None, out: int = 4, p: float = 0.0) -> nn.Sequential:
    torch.manual_seed(0)
    layers = [nn.Linear(6, 32), nn.Tanh(), nn.Dropout(p), nn.Linear(32, out)]
    return nn.Sequential(*layers, last) if last is not None else nn.Sequential(*layers)


def asked(model, loss_fn=CE, batch=(X, LABELS), **settings):
    before = rerail.digest(model)
    report = rerail.overfit_batch(model, loss_fn, batch, **settings)
    assert rerail.digest(model) == before
    return report


class Images(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.LazyLinear(4))

    def forward(self, x):
        return self.net(x)


def test_a_healthy_model_learns_the_batch():
    for model in (mlp(), mlp(p=0.5), nn.Sequential(nn.Linear(6, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 4))):
        report = asked(model)
        assert report.status == "ok", report
        assert report.facts["last"] < 0.1
        assert "generalisation" in report.facts["not_proved"]


def test_other_losses_are_learned_too():
    assert asked(mlp(out=1), functional.mse_loss, (X, NUMBERS)).status == "ok"
    assert asked(mlp(out=1), functional.binary_cross_entropy_with_logits, (X, (NUMBERS > 0).float())).status == "ok"
    assert asked(mlp(), lambda o, t: CE(o, t, label_smoothing=0.1)).status == "ok"
    assert asked(mlp(), lambda o, t: CE(o, t, reduction="sum")).status == "ok"


def test_softmax_before_cross_entropy_stops_at_its_floor():
    report = asked(mlp(nn.Softmax(1)))

    assert report.causes == ("tiny_batch.stops_at_known_floor",)
    assert report.findings[0].evidence["floor"] == pytest.approx(math.log(math.e + 3) - 1)


def test_a_sigmoid_before_the_logits_loss_stops_at_its_floor():
    bits = (NUMBERS > 0).float()

    report = asked(mlp(nn.Sigmoid(), out=1), functional.binary_cross_entropy_with_logits, (X, bits))

    assert report.causes == ("tiny_batch.stops_at_known_floor",)


@pytest.mark.parametrize("loss_fn", [lambda o, t: (o - t).square().mean(), lambda o, t: (o - t).square().sum()])
def test_a_broadcast_residual_gives_all_rows_one_output(loss_fn):
    report = asked(mlp(out=1), loss_fn, (X, NUMBERS[:, 0]))

    assert report.causes == ("tiny_batch.same_output_for_all_rows",)


def test_a_dead_network_gives_all_rows_one_output():
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4))
    nn.init.constant_(model[0].bias, -100.0)

    assert asked(model).causes == ("tiny_batch.same_output_for_all_rows",)


def test_a_model_that_cannot_express_the_batch_is_only_suspicious():
    report = asked(nn.Linear(1, 4), CE, (X[:, :1], LABELS))

    assert report.status == "suspicious"
    assert report.causes == ("tiny_batch.does_not_overfit",)


def test_rows_that_contradict_each_other_set_the_floor():
    x, labels = torch.cat([X, X]), torch.cat([LABELS, (LABELS + 1) % 4])

    report = asked(mlp(), CE, (x, labels))

    assert report.status == "ok", report
    assert report.facts["floor"] == pytest.approx(math.log(2))


class Loop:
    """A loop that evaluates in the middle of an epoch, and may forget what that does to the mode."""

    def __init__(self, back: bool, no_eval: bool = False):
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(6, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 4))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-2)
        self.back, self.no_eval = back, no_eval
        self.model.train()

    def __call__(self):
        self.optimizer.zero_grad()
        loss = CE(self.model(X), LABELS)
        loss.backward()
        self.optimizer.step()
        if not self.no_eval:
            self.model.eval()
        with torch.no_grad():
            self.model(X + 1)
        if self.back:
            self.model.train()
        return loss.item()


def test_a_loop_that_stays_in_eval_mode_is_named():
    loop = Loop(back=False)

    report = asked(loop.model, step=loop, optimizer=loop.optimizer, steps=20)

    assert report.causes == ("tiny_batch.trains_in_eval_mode",)
    assert report.findings[0].evidence == {"in_eval": 19, "steps": 20, "batches_tracked": 1}
    loop = Loop(back=True)
    assert asked(loop.model, step=loop, optimizer=loop.optimizer, steps=100).status == "ok"


def test_a_loss_without_graph_is_unknown_and_told_where_to_look():
    assert "gradient_report" in str(asked(mlp(), lambda o, t: (o.argmax(1) != t).float().mean()))


@pytest.mark.parametrize(
    ("model", "batch", "settings"),
    [
        pytest.param(nn.Tanh(), (X, LABELS), {}, id="no parameters"),
        pytest.param(nn.LazyLinear(4), (X, LABELS), {}, id="lazy"),
        pytest.param(mlp(), None, {}, id="no batch"),
        pytest.param(mlp(), (X * torch.nan, LABELS), {}, id="not finite"),
        pytest.param(mlp(), (X, LABELS), {"steps": 0}, id="no steps"),
        pytest.param(mlp(), (X, LABELS), {"step": lambda: None}, id="a step without a loss"),
    ],
)
def test_what_cannot_be_learned_is_unknown(model, batch, settings):
    assert rerail.overfit_batch(model, CE, batch, **settings).status == "unknown"


def test_a_frozen_model_is_not_applicable():
    assert rerail.overfit_batch(mlp().requires_grad_(False), CE, (X, LABELS)).status == "not_applicable"
