"""Baseline and candidate: what counts as a reproduction, as a repair, and as the first difference."""

import math

import pytest
import torch
from torch import nn

import rerail
from rerail import Setup

X = torch.randn(8, 3, generator=torch.Generator().manual_seed(0))


def side(loss_of, rate=0.1, kind=torch.optim.SGD, dropout=0.0, width=4):
    def make():
        model = nn.Sequential(nn.Linear(3, width), nn.Tanh(), nn.Dropout(dropout), nn.Linear(width, 1))
        optimizer = kind(model.parameters(), lr=rate)

        def step():
            optimizer.zero_grad()
            loss = loss_of(model)
            loss.backward()
            optimizer.step()
            return loss

        return Setup(model, optimizer, step)

    return make


def mean(model):
    return model(X).square().mean()


def root(model):
    return (model(X) * 0).pow(2).sum().sqrt()


def safe_root(model):
    return ((model(X) * 0).pow(2).sum() + 1e-12).sqrt()


def crash(model):
    raise RuntimeError("shape '[2]' is invalid")


def broken_update(trial):
    return any(not math.isfinite(norm) for norm in trial.updates.values())


def test_a_repair_of_the_symptom_is_ok():
    report = rerail.compare_steps(side(root), side(safe_root), symptom=broken_update, repeats=2)

    assert report.status == "ok", report
    assert (report.facts["baseline_shown"], report.facts["candidate_shown"]) == (2, 0)


def test_the_same_code_on_both_sides_is_no_repair():
    assert rerail.compare_steps(side(root), side(root), symptom=broken_update).causes == (
        "process.candidate_still_fails",
    )


@pytest.mark.parametrize("baseline", [mean, crash])
def test_a_baseline_without_the_symptom_is_no_reproduction(baseline):
    report = rerail.compare_steps(side(baseline), side(safe_root), symptom=broken_update)

    assert report.causes == ("process.not_reproduced",)
    assert ("failed otherwise" in report.findings[0].says) is (baseline is crash)


def test_a_candidate_that_fails_otherwise_is_no_repair():
    report = rerail.compare_steps(side(root), side(crash), symptom=broken_update)

    assert report.causes == ("process.candidate_fails_otherwise",)


@pytest.mark.parametrize("symptom", [RuntimeError, "is invalid", lambda trial: "invalid" in (trial.error or "")])
def test_a_symptom_may_be_an_exception_or_a_part_of_its_text(symptom):
    assert rerail.compare_steps(side(crash), side(mean), symptom=symptom).status == "ok"


def test_a_set_up_that_fails_is_an_outcome_of_its_own():
    def make():
        raise ImportError("no module")

    assert rerail.compare_steps(make, side(mean), symptom=ImportError).causes == ("process.setup_failed",)


def test_equal_code_from_equal_states_agrees_with_dropout_and_adam_too():
    report = rerail.compare_steps(side(mean, dropout=0.5), side(mean, dropout=0.5), steps=3)
    assert report.status == "ok", report
    assert report.facts["random"]

    adam = side(mean, kind=torch.optim.Adam)
    assert rerail.compare_steps(adam, adam, steps=3).status == "ok"


@pytest.mark.parametrize(
    ("candidate", "named"),
    [
        (side(lambda model: model(X + 0.1).square().mean()), "the output of 0"),
        (side(lambda model: model(X).square().sum()), "the gradient of"),
        (side(mean, rate=0.2), "the update of"),
        (side(lambda model: model(X).square().mean() + 1), "the loss of step 1"),
    ],
)
def test_the_first_result_that_differs_is_named(candidate, named):
    report = rerail.compare_steps(side(mean), candidate)

    assert report.causes == ("process.steps_differ",)
    assert named in report.findings[0].says


def test_models_that_do_not_fit_are_told():
    report = rerail.compare_steps(side(mean), side(mean, width=5))

    assert "process.states_differ" in report.causes


def test_a_comparison_draws_nothing_from_the_generators_around_it():
    before = rerail.digest()

    rerail.compare_steps(side(mean, dropout=0.5), side(mean))

    assert rerail.digest() == before


@pytest.mark.parametrize("settings", [{"repeats": 0}, {"steps": 0}])
def test_nothing_to_compare_is_unknown(settings):
    assert rerail.compare_steps(side(mean), side(mean), **settings).status == "unknown"
    assert rerail.compare_steps(lambda: None, side(mean)).status == "unknown"
