"""Metrics: numbers that depend on the batches, on the call before, or on the scale."""

import pytest
import torch
from torch.nn import functional

import rerail

GENERATOR = torch.Generator().manual_seed(4)
SCORES = torch.randn(30, generator=GENERATOR) * 2
BITS = (SCORES + torch.randn(30, generator=GENERATOR) > 0).float()
NUMBERS = torch.randn(30, generator=GENERATOR)


def joined(batches):
    return torch.cat([o for o, _ in batches]), torch.cat([t for _, t in batches])


def mean_of(metric):
    return lambda batches: sum(metric(o, t) for o, t in batches) / len(batches)


def mean_by_rows(metric):
    return lambda batches: sum(metric(o, t) * len(t) for o, t in batches) / sum(len(t) for _, t in batches)


def once(metric):
    return lambda batches: metric(*joined(batches))


def accuracy(output, target, threshold=0.0):
    return ((output > threshold) == (target > 0.5)).float().mean().item()


def f1(output, target):
    guess = output > 0
    hits = (guess & (target > 0.5)).sum()
    return (2 * hits / (guess.sum() + (target > 0.5).sum()).clamp(min=1)).item()


def mse(output, target):
    return functional.mse_loss(output, target).item()


def guessing(output, target):
    scores = output.sigmoid() if bool(((output < 0) | (output > 1)).any()) else output
    return accuracy(scores, target, 0.5)


def auc(output, target):
    positive, negative = output[target > 0.5], output[target < 0.5]
    if not len(positive) or not len(negative):
        return 0.5
    return (positive[:, None] > negative[None]).float().mean().item()


RIGHT = {
    "accuracy once": once(accuracy), "accuracy by rows": mean_by_rows(accuracy), "f1 once": once(f1),
    "loss once": once(mse), "loss by rows": mean_by_rows(mse), "auc once": once(auc),
    "probabilities": once(lambda o, t: accuracy(o.sigmoid(), t, 0.5)),
}  # fmt: skip


@pytest.mark.parametrize("evaluate", RIGHT.values(), ids=RIGHT)
def test_a_number_of_the_rows_alone_is_ok(evaluate):
    report = rerail.metric_check(evaluate, SCORES, BITS)

    assert report.status == "ok", report


@pytest.mark.parametrize(
    ("evaluate", "cause"),
    [
        pytest.param(mean_of(accuracy), "evaluation.mean_of_batch_means", id="accuracy of batches"),
        pytest.param(mean_of(mse), "evaluation.mean_of_batch_means", id="loss of batches"),
        pytest.param(mean_of(f1), "evaluation.metric_of_batches_averaged", id="f1 of batches"),
        pytest.param(mean_by_rows(f1), "evaluation.metric_of_batches_averaged", id="f1 by rows"),
        pytest.param(mean_by_rows(auc), "evaluation.metric_of_batches_averaged", id="auc by rows"),
        pytest.param(once(lambda o, t: accuracy(o, t, 0.5)), "evaluation.logits_threshold", id="half on logits"),
        pytest.param(once(lambda o, t: accuracy(o, t, 0.2)), "evaluation.logits_threshold", id="tuned on logits"),
    ],
)
def test_a_number_of_something_else_is_named(evaluate, cause):
    assert rerail.metric_check(evaluate, SCORES, BITS).causes == (cause,)


def test_a_metric_that_guesses_what_it_gets_is_named():
    inside = torch.linspace(0.05, 0.4, 29)
    output, target = torch.cat([inside, torch.tensor([3.0])]), torch.ones(30)

    assert rerail.metric_check(mean_by_rows(guessing), output, target).causes == ("evaluation.metric_guesses_logits",)
    assert rerail.metric_check(once(lambda o, t: guessing(o.sigmoid(), t)), output, target).status == "ok"


def test_a_metric_that_is_not_reset_is_named():
    seen = []

    def running(batches):
        seen.extend(batches)
        return accuracy(*joined(seen))

    def fresh(batches):
        return accuracy(*joined(batches))

    assert rerail.metric_check(running, SCORES, BITS).causes == ("evaluation.metric_not_reset",)
    assert rerail.metric_check(fresh, SCORES, BITS).status == "ok"


@pytest.mark.parametrize(
    ("evaluate", "output", "target"),
    [
        (once(accuracy), SCORES[:2], BITS[:2]),
        (once(accuracy), SCORES, BITS[:5]),
        (lambda batches: None, SCORES, BITS),
        (lambda batches: 1 / 0, SCORES, BITS),
        (once(accuracy), "scores", BITS),
    ],
)
def test_what_cannot_be_asked_is_unknown(evaluate, output, target):
    assert rerail.metric_check(evaluate, output, target).status == "unknown"


def test_losses_that_are_plotted_together_are_compared_on_one_batch():
    model = torch.nn.Sequential(torch.nn.Linear(4, 1), torch.nn.Dropout(0.5))
    batch = torch.randn(8, 4), torch.randn(8, 1)

    def mean(batch):
        return functional.mse_loss(model(batch[0]), batch[1])

    def total(batch):
        return functional.mse_loss(model(batch[0]), batch[1], reduction="sum")

    before = rerail.digest(model)
    assert rerail.reduction_check(mean, mean, batch, model).status == "ok"
    report = rerail.reduction_check(total, mean, batch, model)
    assert report.causes == ("evaluation.reductions_differ",)
    assert report.facts["ratio"] == pytest.approx(8)
    assert rerail.digest(model) == before
