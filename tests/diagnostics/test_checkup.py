"""The checkup: layers in order, and no verdict above the first that fails."""

import pytest
import torch
from torch import nn
from torch.nn import functional

import rerail

GENERATOR = torch.Generator().manual_seed(1)
X = torch.randn(16, 6, generator=GENERATOR)
LABELS = torch.arange(16) % 3
CE = functional.cross_entropy


def net(*last: nn.Module) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Dropout(0.1), nn.Linear(32, 3), *last)


def asked(model, loss_fn=CE, batch=(X, LABELS), **settings):
    optimizer = settings.pop("optimizer", None) or torch.optim.Adam(model.parameters(), lr=1e-3)
    before = rerail.digest(model, optimizer)
    report = rerail.checkup(model, optimizer, loss_fn, batch, **settings)
    assert rerail.digest(model, optimizer) == before
    assert str(report).count("\n") < 15
    return report


def layers(report):
    return {row[0]: row[2] for row in report.rows}


def test_a_healthy_step_is_ok_in_every_layer():
    model = net()

    def evaluate():
        modes = {module: module.training for module in model.modules()}
        model.eval()
        with torch.no_grad():
            loss = CE(model(X), LABELS).item()
        for module, training in modes.items():
            module.training = training
        return loss

    report = asked(model, evaluate=evaluate, splits=(X[:10], X[10:]))

    assert report.status == "ok", report
    assert list(layers(report)) == ["data", "values", "tiny batch", "gradient path", "update", "evaluation"]


def test_a_fault_in_the_values_leaves_the_rest_untrusted():
    report = asked(net(nn.Softmax(1)))

    assert report.causes == ("values.softmax_before_cross_entropy",)
    assert layers(report)["gradient path"] == "not trusted"
    assert "update not trusted" in str(report)


def test_a_cut_is_found_although_the_tiny_batch_fails_before():
    class Cut(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.body, self.head = nn.Linear(6, 2), nn.Linear(2, 3)

        def forward(self, x):
            return self.head(torch.tanh(self.body(x)).detach())

    assert "gradient_path.cut" in asked(Cut()).causes


def test_the_own_step_is_what_is_watched():
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    def step():
        loss = CE(model(X), LABELS)
        loss.backward()
        optimizer.step()

    assert "update.gradients_not_cleared" in asked(model, optimizer=optimizer, step=step).causes


def test_a_step_that_destroys_the_parameters_is_traced():
    model = net()

    def loss_fn(output, target):
        return CE(output, target) + (output * 0).pow(2).sum().sqrt()

    report = asked(model, loss_fn, overfit_steps=0)

    assert "gradient_path.non_finite_gradient" in report.causes


def test_mappings_and_models_with_their_own_loss_are_asked():
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = net()

        def forward(self, x, labels=None):
            output = self.net(x)
            return {"loss": CE(output, labels), "logits": output}

    report = asked(Own(), None, {"x": X, "labels": LABELS}, forward=lambda model, batch: model(**batch))

    assert report.status == "ok", report


@pytest.mark.parametrize(
    ("model", "batch"),
    [
        (nn.Tanh(), (X, LABELS)), (nn.LazyLinear(3), (X, LABELS)), (net(), None), (net(), ()), (net(), {}), ("model", 3),
        (nn.Linear(6, 3, device="meta"), (X, LABELS)), (net(), (X[:, :2], LABELS)),
    ],
)  # fmt: skip
def test_garbage_gets_an_answer(model, batch):
    report = rerail.checkup(model, torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1), CE, batch)

    assert report.status in ("unknown", "suspicious", "fault")
    assert "rerail/diagnostics" not in str(report)


def test_a_report_raises_in_a_build():
    with pytest.raises(rerail.FaultFound, match="softmax_before_cross_entropy"):
        asked(net(nn.Softmax(1))).raise_if_fault()
