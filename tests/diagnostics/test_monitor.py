"""The monitor: it samples, finds what a sample shows, costs nothing between, and never ends a run."""

import logging

import pytest
import torch
from torch import nn

import rerail

X = torch.randn(16, 4, generator=torch.Generator().manual_seed(1))
Y = X.sum(1, keepdim=True)


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))


def loop(iterations=50, clear=True, every=20, model=None, monitor=None, accumulate=1, rate=0.01, lose=None):
    model = model or net()
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    monitor = monitor or rerail.Monitor(model, optimizer, every=every, on_finding=lambda finding: None)
    for number in range(iterations):
        if clear and number % accumulate == 0:
            optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(X), Y)
        if lose is not None and number == lose:
            loss = loss * torch.nan
        (loss / accumulate).backward()
        if number % accumulate == accumulate - 1:
            optimizer.step()
        monitor.step(loss)
    return monitor.close(), model, optimizer


def test_a_healthy_loop_is_ok_and_has_a_row_a_sample():
    report, _, _ = loop(iterations=50, every=20)

    assert report.status == "ok", report
    assert report.facts["iterations"] == 50
    assert [row[0] for row in report.rows] == ["2", "21", "41"]
    assert report.plot().get_xlabel() == "update/weight"


def test_between_samples_no_hook_is_there():
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    monitor = rerail.Monitor(model, optimizer, every=20)
    hooked = []
    for _ in range(25):
        optimizer.zero_grad()
        model(X).mean().backward()
        optimizer.step()
        monitor.step()
        hooked.append(bool(model[0].weight._backward_hooks))
    monitor.close()

    assert sum(hooked) == 2  # after iterations 1 and 20
    assert not model[0].weight._backward_hooks


def test_gradients_that_are_never_cleared_are_found_in_the_first_sample():
    report, _, _ = loop(clear=False, rate=1e-5)

    assert report.status == "fault"
    assert "update.gradients_not_cleared" in report.causes


def test_accumulation_is_ok_however_long_the_window():
    report, _, _ = loop(iterations=80, accumulate=8, every=20)

    assert report.status == "ok", report


def test_a_loss_that_is_not_finite_between_samples_is_found_at_the_next():
    report, _, _ = loop(iterations=60, lose=30)

    assert "values.non_finite_loss" in report.causes


def test_a_finding_is_logged_once(caplog):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-5)
    with caplog.at_level(logging.WARNING, "rerail"), rerail.Monitor(model, optimizer, every=5) as monitor:
        for _ in range(30):
            model(X).mean().backward()
            optimizer.step()
            monitor.step()

    assert [record.name for record in caplog.records] == ["rerail"]


class Bad(nn.Module):
    """A model whose parameters cannot be listed."""

    def named_parameters(self, *args, **kwargs):
        raise RuntimeError("no list today")


@pytest.mark.parametrize("loss", [None, "text", [1], float("nan"), torch.zeros(3), torch.tensor(2, dtype=torch.int64)])
def test_no_loss_ends_a_run(loss):
    monitor = rerail.Monitor(
        net(), torch.optim.SGD(net().parameters(), lr=0.1), every=1, on_finding=lambda finding: None
    )

    for _ in range(5):
        monitor.step(loss)

    assert monitor.close().check == "Monitor"


@pytest.mark.parametrize("model", [Bad(), nn.Tanh(), nn.LazyLinear(3), "model"])
def test_a_monitor_that_fails_says_so_and_lets_the_run_go_on(model):
    monitor = rerail.Monitor(model, torch.optim.SGD(net().parameters(), lr=0.1), every=1)
    for _ in range(3):
        monitor.step(torch.tensor(1.0))

    report = monitor.close()

    assert report.status == "unknown"
    assert "monitor ended" in report.findings[0].says


def test_a_callback_that_fails_ends_the_monitoring_only():
    def fail(finding):
        raise OSError("no room on the disk")

    model = net()
    monitor = rerail.Monitor(model, torch.optim.SGD(model.parameters(), lr=0.1), every=1, on_finding=fail)

    monitor.step(float("nan"))
    monitor.step(1.0)

    assert "no room on the disk" in str(monitor.close())


def test_a_monitor_may_be_attached_later_and_without_anything_is_unknown():
    assert rerail.Monitor(every=20).close().status == "unknown"
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    monitor = rerail.Monitor(every=10).attach(model, optimizer)

    report, _, _ = loop(model=model, monitor=monitor)

    assert report.facts["iterations"] == 50


def test_the_training_is_the_same_with_and_without_a_monitor():
    class Silent:
        def step(self, loss): ...
        def close(self): ...

    _, watched, _ = loop()
    _, alone, _ = loop(monitor=Silent())

    for one, two in zip(watched.parameters(), alone.parameters(), strict=True):
        assert torch.equal(one, two)
