"""Odd models, optimizers and batches get an answer or one sentence from every check, and nothing of them changes."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

import rerail

GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(8, 6, generator=GENERATOR)
LABELS = torch.arange(8) % 3
CE = nn.functional.cross_entropy


def net(*last):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3), *last)


class Output(nn.Module):
    """Returns an object with loss and logits, as libraries of pretrained models do."""

    def __init__(self):
        super().__init__()
        self.net = net()

    def forward(self, x, labels=None):
        logits = self.net(x)
        return SimpleNamespace(loss=CE(logits, labels), logits=logits)


class Checkpointed(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(6, 16), nn.Linear(16, 3)

    def forward(self, x):
        return checkpoint(lambda y: self.second(torch.tanh(self.first(y))), x, use_reentrant=False)


class Straight(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        return x.round()

    @staticmethod
    def backward(context, gradient):
        return gradient


class StraightThrough(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = net()

    def forward(self, x):
        return self.net(x) + Straight.apply(self.net(x)) * 0.1


class Shared(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.head = nn.Linear(6, 6), nn.Linear(6, 3)
        self.again = self.layer

    def forward(self, x):
        return self.head(torch.tanh(self.again(torch.tanh(self.layer(x)))))


class Phase(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 3, dtype=torch.complex64, generator=GENERATOR))

    def forward(self, x):
        return (x.to(torch.complex64) @ self.weight).abs()


class Sparse(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(20, 8, sparse=True), nn.Linear(8, 3)

    def forward(self, x):
        return self.head(self.embedding((x[:, 0].abs() * 5).long()))


HEALTHY = {
    "gradient checkpointing": Checkpointed(),
    "a straight-through estimator": StraightThrough(),
    "shared layers": Shared(),
    "complex weights": Phase(),
    "weight norm": nn.Sequential(parametrizations.weight_norm(nn.Linear(6, 16)), nn.Tanh(), nn.Linear(16, 3)),
    "spectral norm": nn.Sequential(parametrizations.spectral_norm(nn.Linear(6, 16)), nn.Tanh(), nn.Linear(16, 3)),
    "mixed precision of parameters": nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3)),
    "one parameter": nn.Sequential(nn.Linear(6, 3, bias=False)),
    "compiled": torch.compile(net(), backend="eager"),
}


@pytest.mark.parametrize("name", HEALTHY)
def test_odd_models_that_train_have_no_fault(name):
    model = HEALTHY[name]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    before = rerail.digest(model, optimizer)

    report = rerail.checkup(model, optimizer, CE, (X, LABELS))

    assert report.status in ("ok", "suspicious"), report
    assert not [finding for finding in report.findings if finding.status == "unknown"], report
    assert rerail.digest(model, optimizer) == before


def test_sparse_gradients_are_followed_with_an_optimizer_that_takes_them():
    model = Sparse()

    for report in (
        rerail.gradient_report(model, CE, (X, LABELS)),
        rerail.optimizer_audit(model, torch.optim.SparseAdam(model.embedding.parameters())),
    ):
        assert report.status in ("ok", "suspicious"), report


def test_an_output_object_with_its_own_loss_is_understood():
    model = Output()
    batch = {"x": X, "labels": LABELS}
    forward = lambda module, rows: module(**rows)  # noqa: E731

    report = rerail.checkup(model, torch.optim.Adam(model.parameters(), lr=1e-3), None, batch, forward=forward)

    assert report.status == "ok", report


def test_an_optimizer_with_a_closure_is_watched():
    model = net()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1)

    def step():
        def closure():
            optimizer.zero_grad()
            loss = CE(model(X), LABELS)
            loss.backward()
            return loss

        optimizer.step(closure)

    report = rerail.checkup(model, optimizer, CE, (X, LABELS), step=step)

    assert report.status in ("ok", "suspicious"), report


@pytest.mark.filterwarnings("ignore")  # torch says that this way of quantizing moves to another package
def test_a_quantized_model_gets_an_answer():
    quantized = torch.ao.quantization.quantize_dynamic(net(), {nn.Linear}, dtype=torch.qint8)

    report = rerail.gradient_report(quantized, CE, (X, LABELS))

    assert report.status in ("unknown", "not_applicable")


ODD = [
    None,
    0,
    "text",
    [],
    {},
    (),
    object(),
    np.zeros(3),
    torch.zeros(0),
    torch.zeros(3),
    nn.Tanh(),
    nn.LazyLinear(2),
    lambda: 1 / 0,
]
ASKED = {
    "checkup": lambda odd: rerail.checkup(odd, odd, odd, odd),
    "gradient_report": lambda odd: rerail.gradient_report(odd, odd, odd),
    "gradient_check": lambda odd: rerail.gradient_check(odd, odd, odd),
    "graph_growth": lambda odd: rerail.graph_growth(odd),
    "first_nonfinite": lambda odd: rerail.first_nonfinite(odd, odd, odd),
    "optimizer_audit": lambda odd: rerail.optimizer_audit(odd, odd),
    "accumulation_check": lambda odd: rerail.accumulation_check(odd, odd, odd),
    "check_loss_contract": lambda odd: rerail.check_loss_contract(odd, odd, odd),
    "check_values": lambda odd: rerail.check_values(odd, odd),
    "overfit_batch": lambda odd: rerail.overfit_batch(odd, odd, odd),
    "evaluation_report": lambda odd: rerail.evaluation_report(odd, odd),
    "metric_check": lambda odd: rerail.metric_check(odd, odd, odd),
    "reduction_check": lambda odd: rerail.reduction_check(odd, odd, odd, odd),
    "split_audit": lambda odd: rerail.split_audit(odd, odd),
    "fit_leak_test": lambda odd: rerail.fit_leak_test(odd, odd, odd),
    "reads_audit": lambda odd: rerail.reads_audit(odd),
    "load_report": lambda odd: rerail.load_report(odd, odd),
    "snapshot_check": lambda odd: rerail.snapshot_check(odd, odd),
    "resume_check": lambda odd: rerail.resume_check(odd, odd, odd),
    "compare_steps": lambda odd: rerail.compare_steps(odd, odd),
    "replica_report": lambda odd: rerail.replica_report(odd),
    "diagnose_history": lambda odd: rerail.diagnose_history(odd),
    "env_diff": lambda odd: rerail.env_diff(odd, odd),
    "classify_failure": lambda odd: rerail.classify_failure(odd),
}


@pytest.mark.parametrize("name", ASKED)
@pytest.mark.parametrize("odd", ODD, ids=lambda odd: type(odd).__name__)
def test_every_check_answers_whatever_it_is_given(name, odd):
    report = ASKED[name](odd)

    assert report.status in ("unknown", "not_applicable", "suspicious", "ok", "fault")
    assert str(report).count("\n") < 15
    assert report.to_json()


def test_every_public_name_is_there_and_documented():
    for name in dir(rerail):
        if name != "__version__":
            assert (getattr(rerail, name).__doc__ or "").strip().split("\n")[0].endswith((".", ":")), name


def test_no_import_of_the_package_needs_torch(tmp_path):
    import subprocess
    import sys

    done = subprocess.run(
        [sys.executable, "-c", "import sys, rerail; rerail.minify_traceback('x'); print('torch' in sys.modules)"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip

    assert done.stdout.strip() == "False"
