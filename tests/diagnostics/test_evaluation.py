"""Evaluation: modes, traces and repetition."""

import pytest
import torch
from torch import nn
from torch.nn import functional

import rerail

X = torch.randn(12, 5, generator=torch.Generator().manual_seed(3)) + 2.0


class Net(nn.Module):
    def __init__(self, functional_dropout: bool = False, follows_mode: bool = True, p: float = 0.5):
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.norm, self.dropout, self.head = (
            nn.Linear(5, 8),
            nn.BatchNorm1d(8),
            nn.Dropout(p),
            nn.Linear(8, 2),
        )
        self.functional_dropout, self.follows_mode = functional_dropout, follows_mode

    def forward(self, x):
        x = self.dropout(torch.relu(self.norm(self.layer(x))))
        if self.functional_dropout:
            x = functional.dropout(x, 0.5, self.training) if self.follows_mode else functional.dropout(x, 0.5)
        return self.head(x)


def restored(model):
    modes = {module: module.training for module in model.modules()}
    model.eval()
    with torch.no_grad():
        loss = model(X).square().mean().item()
    for module, training in modes.items():
        module.training = training
    return loss


def left_in_eval(model):
    model.eval()
    with torch.inference_mode():
        return model(X).square().mean().item()


def only_no_grad(model):
    with torch.no_grad():
        return model(X).square().mean().item()


def mean_of_passes(model):
    with torch.no_grad():
        return torch.stack([model(X).square().mean() for _ in range(3)]).mean()


def asked(evaluate, model=None):
    model = model or Net()
    before = rerail.digest(model)
    report = rerail.evaluation_report(lambda: evaluate(model), model)
    assert rerail.digest(model) == before
    return report


def test_an_evaluation_that_restores_every_mode_is_ok():
    report = asked(restored)

    assert report.status == "ok", report
    assert report.facts["repeats"] is True
    assert report.facts["train_mode"] is False
    assert report.facts["gradients_recorded"] is False


@pytest.mark.parametrize("evaluate", [only_no_grad, mean_of_passes])
def test_evaluation_in_train_mode_is_named(evaluate):
    report = asked(evaluate)

    assert report.causes == ("evaluation.train_mode",)
    assert report.findings[0].where == ("norm", "dropout")


def test_mode_and_recording_are_two_facts():
    def eval_with_graph(model):
        model.eval()
        loss = model(X).square().mean()
        model.train()
        return loss

    facts = asked(eval_with_graph).facts

    assert (facts["train_mode"], facts["gradients_recorded"]) == (False, True)


def test_modes_that_are_not_restored_are_named():
    assert asked(left_in_eval).causes == ("evaluation.modes_not_restored",)


def test_waking_what_was_frozen_in_eval_is_named():
    def wakes_all(model):
        loss = left_in_eval(model)
        model.train()
        return loss

    model = Net()
    model.norm.eval()

    report = asked(wakes_all, model)

    assert report.findings[0].where == ("norm",)
    assert asked(restored, model).status == "ok"


def test_a_model_without_dropout_or_statistics_may_be_in_any_mode():
    model = nn.Sequential(nn.Linear(5, 3), nn.LayerNorm(3))

    assert asked(left_in_eval, model).status == "ok"
    assert asked(only_no_grad, model).status == "ok"


def test_functional_dropout_that_ignores_eval_is_named_with_its_line():
    report = asked(restored, Net(functional_dropout=True, follows_mode=False))

    assert report.causes == ("evaluation.dropout_ignores_eval",)
    assert "test_evaluation.py" in report.findings[0].where[0]
    assert asked(restored, Net(functional_dropout=True)).status == "ok"


def test_attention_that_keeps_dropout_in_eval_is_named():
    class Attention(nn.Module):
        def __init__(self, follows_mode: bool):
            super().__init__()
            self.layer, self.follows_mode = nn.Linear(5, 5), follows_mode

        def forward(self, x):
            q = self.layer(x)[None, None]
            p = 0.5 if self.training or not self.follows_mode else 0.0
            return functional.scaled_dot_product_attention(q, q, q, dropout_p=p)

    assert asked(restored, Attention(follows_mode=False)).causes == ("evaluation.dropout_ignores_eval",)
    assert asked(restored, Attention(follows_mode=True)).status == "ok"


def test_sampling_with_dropout_on_purpose_is_a_question_not_a_fault():
    def sampled(model):
        model.eval()
        model.dropout.train()
        with torch.no_grad():
            loss = model(X).square().mean().item()
        model.train()
        return loss

    report = asked(sampled)

    assert report.status == "suspicious"
    assert report.causes == ("evaluation.not_repeatable",)


def test_parameters_that_an_evaluation_changes_are_a_fault():
    def swaps_and_forgets(model):
        loss = restored(model)
        with torch.no_grad():
            model.head.weight.mul_(0.99)
        return loss

    assert asked(swaps_and_forgets).status == "fault"


def test_the_guard_says_the_same_around_a_block():
    model = Net()

    with rerail.evaluation_guard(model) as guard:
        only_no_grad(model)

    assert guard.report.causes == ("evaluation.train_mode",)
    assert not model._forward_pre_hooks


def test_the_guard_lets_an_exception_pass():
    with pytest.raises(ZeroDivisionError), rerail.evaluation_guard(Net()):
        1 / 0  # noqa: B018


@pytest.mark.parametrize("evaluate", [lambda: None, lambda: "text", lambda: 1 / 0, lambda: 1.0])
def test_what_cannot_be_measured_is_unknown(evaluate):
    assert rerail.evaluation_report(evaluate, Net()).status == "unknown"
