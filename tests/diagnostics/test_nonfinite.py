"""The first non-finite value: the origin of planted ones is named, what is not finite on purpose is not blamed."""

import inspect

import pytest
import torch
from torch import nn

import rerail

X = torch.randn(8, 3, generator=torch.Generator().manual_seed(0))


def mlp() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))


def replayed(loss_of, kind=torch.optim.Adam, model=None, **settings):
    model = model or mlp()
    optimizer = kind(model.parameters(), lr=0.1, **settings)

    def step():
        optimizer.zero_grad()
        loss = loss_of(model)
        loss.backward()
        optimizer.step()
        return loss

    before = rerail.digest(model, optimizer)
    report = rerail.first_nonfinite(step, model, optimizer)
    assert rerail.digest(model, optimizer) == before
    return report


def log_of_zero(model):
    return torch.log(model(X) * 0).mean()


def overflowing_exp(model):
    return torch.exp(model(X) * 1e4).mean()


def zero_by_zero(model):
    out = model(X) * 0
    return (out / out).mean()


def saturated_sigmoid(model):
    return -torch.log(torch.sigmoid(model(X) - 1e4)).mean()


def all_masked_row(model):
    mask = torch.tensor([[True] * 4, [True, False, False, False]])
    return model(X).reshape(2, 4).masked_fill(mask, -torch.inf).softmax(-1).square().sum()


def inf_minus_inf(model):
    big = model(X).exp() * 1e38 * 1e38
    return (big - big).mean()


def far_from_the_loss(model):
    bad = (model(X) * 0 - 1).log()
    return (bad.tanh().relu() + 1).mean()


def hidden_by_where(model):
    out = model(X).relu() * 0
    return (torch.where(out > 1, torch.sqrt(out), torch.zeros(())) + model(X)).sum()


def root_of_a_sum(model):
    return (model(X) * 0).pow(2).sum().sqrt()


def power_at_zero(model):
    return (model(X) * 0).abs().pow(0.5).sum()


def x_log_x_hidden(model):
    out = model(X).relu() * 0
    return torch.where(out > 0, out * out.log(), out).sum() + model(X).sum()


def deviation_of_a_constant(model):
    return (model(X) * 0).std()


FORWARD = {
    log_of_zero: "log", overflowing_exp: "exp", zero_by_zero: "__truediv__", saturated_sigmoid: "log",
    all_masked_row: "softmax", inf_minus_inf: "__mul__", far_from_the_loss: "log",
    x_log_x_hidden: "log",
}  # fmt: skip
BACKWARD = {hidden_by_where: "sqrt", root_of_a_sum: "sqrt", power_at_zero: "pow"}


@pytest.mark.parametrize(("loss_of", "operation"), FORWARD.items(), ids=lambda value: getattr(value, "__name__", value))
def test_the_origin_in_forward_is_named_with_its_line(loss_of, operation):
    report = replayed(loss_of)

    finding = report.findings[0]
    assert finding.cause == "gradient_path.non_finite_forward", report
    assert finding.evidence["operation"].strip("_") in (operation.strip("_"), operation.strip("_").removeprefix("true"))
    assert is_inside(finding.where[0], loss_of)


@pytest.mark.parametrize(
    ("loss_of", "operation"), BACKWARD.items(), ids=lambda value: getattr(value, "__name__", value)
)
def test_the_origin_in_backward_is_named_with_the_line_of_its_forward(loss_of, operation):
    report = replayed(loss_of)

    finding = report.findings[0]
    assert finding.cause == "gradient_path.non_finite_backward", report
    assert finding.evidence["operation"] == operation
    assert is_inside(finding.where[0], loss_of)


def is_inside(place: str, function) -> bool:
    lines, first = inspect.getsourcelines(function)
    path, _, line = place.rpartition(":")
    return path == inspect.getsourcefile(function) and first <= int(line) < first + len(lines)


def test_the_deviation_of_a_constant_is_finite_or_named():
    report = replayed(deviation_of_a_constant)

    assert report.status == "ok" or is_inside(report.findings[0].where[0], deviation_of_a_constant)


def mask_of_infinities(model):
    mask = torch.tensor([[True, False, False, False]] * 2)
    return model(X).reshape(2, 4).masked_fill(mask, -torch.inf).softmax(-1).square().sum()


def additive_mask(model):
    mask = torch.triu(torch.full((4, 4), -torch.inf), 1)
    scores = model(X[:4]) @ model(X[4:]).T
    return (scores + mask).softmax(-1).square().sum()


def square(model):
    return model(X).square().mean()


@pytest.mark.parametrize("loss_of", [mask_of_infinities, additive_mask, square], ids=lambda value: value.__name__)
def test_what_does_no_harm_is_ok(loss_of):
    report = replayed(loss_of)

    assert report.status == "ok", report
    assert report.facts["operations"] > 10


def test_an_optimizer_that_divides_by_zero_is_named():
    report = replayed(lambda model: (model(X) * 0).sum(), eps=0.0)

    assert report.causes == ("update.non_finite_update",)


def test_a_rate_that_overflows_is_named_in_the_optimizer():
    model = mlp()
    with torch.no_grad():
        model[2].weight.fill_(100.0)

    report = replayed(square, torch.optim.SGD, model=model, weight_decay=1e38)

    assert report.causes == ("update.non_finite_update",), report


def test_parameters_that_were_broken_before_are_told():
    model = mlp()
    with torch.no_grad():
        model[0].weight[0, 0] = torch.nan

    report = replayed(square, model=model)

    assert report.causes == ("update.non_finite_parameter",)
    assert report.findings[0].where == ("0.weight",)


def test_averages_of_adam_that_were_broken_before_are_told():
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters())
    square(model).backward()
    optimizer.step()
    optimizer.state[model[0].weight]["exp_avg"].fill_(torch.nan)

    report = rerail.first_nonfinite(lambda: square(model), model, optimizer)

    assert report.findings[0].where == ("0.weight (exp_avg)",)


def test_a_batch_that_is_not_finite_is_named():
    x = X.clone()
    x[2, 1] = torch.nan
    model = mlp()

    report = rerail.first_nonfinite(lambda: model(x).mean().backward(), model, batch={"x": x})

    assert report.findings[0].cause == "values.non_finite_input"
    assert report.findings[0].where == ("batch['x']",)


def test_a_guard_in_the_step_does_not_hide_the_origin():
    model = mlp()

    def step():
        loss = log_of_zero(model)
        rerail.finite_guard(loss=loss)
        loss.backward()

    report = rerail.first_nonfinite(step, model)

    assert report.findings[0].evidence["operation"] == "log"


def test_a_backward_pass_by_function_is_seen():
    model = mlp()

    report = rerail.first_nonfinite(lambda: torch.autograd.backward([log_of_zero(model)]), model)

    assert report.findings[0].evidence["operation"] == "log"
    assert torch.autograd.backward.__module__ == "torch.autograd"


def scaled(loss_of, scaler):
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step():
        optimizer.zero_grad()
        scaler.scale(loss_of(model)).backward()
        scaler.step(optimizer)
        scaler.update()

    return rerail.first_nonfinite(step, model, optimizer, scaler=scaler)


def test_a_scale_that_overflows_and_is_skipped_is_ok():
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127)

    report = scaled(lambda model: model(X).square().mean() * 1e5, scaler)

    assert report.status == "ok", report
    assert report.facts["skipped_by_scaler"]
    assert scaler.get_scale() == 2.0**127


def test_a_fault_behind_a_scaler_is_named():
    report = scaled(hidden_by_where, torch.amp.GradScaler("cpu"))

    assert report.findings[0].evidence["operation"] == "sqrt"


def test_an_exception_of_the_step_is_told_in_one_sentence():
    report = rerail.first_nonfinite(lambda: 1 / 0, mlp())

    assert report.status == "unknown"
    assert "ZeroDivisionError" in str(report)


def test_a_healthy_compiled_model_is_ok():
    model = mlp()
    compiled = torch.compile(model, backend="eager")

    report = rerail.first_nonfinite(lambda: compiled(X).mean().backward(), model)

    assert report.status == "ok", report


def broken_gradient():
    model = mlp()
    model(X).mean().backward()
    model[0].weight.grad[0, 0] = torch.inf
    return {"model": model}


def broken_buffer():
    model = nn.BatchNorm1d(3)
    model.running_var.fill_(torch.nan)
    return {"model": model}


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"loss": torch.tensor([1.0, torch.nan])}, "loss"),
        (broken_gradient(), "0.weight.grad"),
        (broken_buffer(), "running_var"),
    ],
)
def test_the_guard_names_what_is_not_finite(given, named):
    with pytest.raises(FloatingPointError, match=f"at step 7: {named}"):
        rerail.finite_guard(**given, step=7)


def test_the_guard_lets_everything_finite_pass():
    model = nn.Sequential(nn.Embedding(5, 3, sparse=True), nn.LazyLinear(2), nn.BatchNorm1d(2))
    model[0](torch.arange(3)).sum().backward()
    big = torch.tensor([1e300, -1e300], dtype=torch.float64)

    rerail.finite_guard(model, loss=big)
    rerail.finite_guard()
    rerail.finite_guard(nn.Tanh(), loss=torch.zeros(0))
    rerail.finite_guard(loss=torch.full((70000,), 60000.0, dtype=torch.float16))
