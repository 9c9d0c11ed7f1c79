"""The update: each fault is found in its tiny version, its wrong fixes are still flagged, right fixes come out ok."""

import itertools
from collections.abc import Callable

import pytest
import torch
from torch import nn

import rerail

X = torch.randn(16, 4, generator=torch.Generator().manual_seed(1))
Y = X @ torch.tensor([[1.0], [-2.0], [0.5], [3.0]])


def mlp() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))


def loss_of(model: nn.Module) -> torch.Tensor:
    return nn.functional.mse_loss(model(X), Y)


Step = Callable[[nn.Module, torch.optim.Optimizer], object]


def watched(step: Step, model: nn.Module | None = None, optimizer=None, steps: int = 2, scaler=None):
    model = model if model is not None else mlp()
    optimizer = optimizer or torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.01)
    with rerail.update_report(model, optimizer, scaler=scaler) as update:
        for _ in range(steps):
            step(model, optimizer)
    return update.report


def healthy(model, optimizer):
    optimizer.zero_grad()
    loss_of(model).backward()
    optimizer.step()


def cleared_after(model, optimizer):
    loss_of(model).backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=False)


def cleared_by_the_model(model, optimizer):
    model.zero_grad()
    loss_of(model).backward()
    optimizer.step()


def cleared_by_hand(model, optimizer):
    for parameter in model.parameters():
        parameter.grad = None
    loss_of(model).backward()
    optimizer.step()


def clipped(model, optimizer):
    optimizer.zero_grad()
    loss_of(model).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    optimizer.step()


def clipped_by_value(model, optimizer):
    optimizer.zero_grad()
    loss_of(model).backward()
    nn.utils.clip_grad_value_(model.parameters(), 0.5)
    optimizer.step()


def norm_logged_after(model, optimizer):
    healthy(model, optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), float("inf"))


def accumulated(model, optimizer):
    optimizer.zero_grad()
    for rows in (slice(0, 8), slice(8, 16)):
        (nn.functional.mse_loss(model(X[rows]), Y[rows]) / 2).backward()
    optimizer.step()


def with_closure(model, optimizer):
    def closure():
        optimizer.zero_grad()
        loss = loss_of(model)
        loss.backward()
        return loss

    optimizer.step(closure)


HEALTHY = [
    healthy, cleared_after, cleared_by_the_model, cleared_by_hand, clipped, clipped_by_value, norm_logged_after,
    accumulated, with_closure,
]  # fmt: skip


@pytest.mark.parametrize("step", HEALTHY, ids=lambda step: step.__name__)
def test_a_healthy_step_is_ok(step):
    assert watched(step, steps=3).status == "ok", watched(step, steps=3)


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop, torch.optim.NAdam])
def test_a_healthy_step_is_ok_with_other_optimizers(kind):
    model = mlp()

    report = watched(healthy, model, kind(model.parameters(), lr=1e-3), steps=3)

    assert report.status == "ok", report


def never_cleared(model, optimizer):
    loss_of(model).backward()
    optimizer.step()


def never_cleared_but_clipped(model, optimizer):
    loss_of(model).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()


def another_object_cleared(model, optimizer):
    mlp().zero_grad()
    loss_of(model).backward()
    optimizer.step()


def cleared_before_the_step(model, optimizer):
    loss_of(model).backward()
    optimizer.zero_grad()
    optimizer.step()


def cleared_to_zeros_before_the_step(model, optimizer):
    loss_of(model).backward()
    optimizer.zero_grad(set_to_none=False)
    optimizer.step()


def clipped_after_the_step(model, optimizer):
    healthy(model, optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 0.1)


def scaled_by_hand_after_the_step(model, optimizer):
    healthy(model, optimizer)
    norm = torch.stack([parameter.grad.norm() for parameter in model.parameters()]).norm()
    for parameter in model.parameters():
        parameter.grad *= 0.1 / norm


def clipped_before_backward(model, optimizer):
    optimizer.zero_grad()
    nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    loss_of(model).backward()
    optimizer.step()


def clipped_before_backward_cleared_at_the_end(model, optimizer):
    nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    loss_of(model).backward()
    optimizer.step()
    optimizer.zero_grad()


def never_a_step(model, optimizer):
    optimizer.zero_grad()
    loss_of(model).backward()


@pytest.mark.parametrize(
    ("step", "cause"),
    [
        (never_cleared, "update.gradients_not_cleared"),
        (never_cleared_but_clipped, "update.gradients_not_cleared"),
        (another_object_cleared, "update.gradients_not_cleared"),
        (cleared_before_the_step, "update.cleared_before_step"),
        (cleared_to_zeros_before_the_step, "update.cleared_before_step"),
        (clipped_after_the_step, "update.clip_after_step"),
        (scaled_by_hand_after_the_step, "update.clip_after_step"),
        (clipped_before_backward, "update.clip_before_backward"),
        (clipped_before_backward_cleared_at_the_end, "update.clip_before_backward"),
        (never_a_step, "update.no_step"),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_a_wrong_order_is_named(step, cause):
    assert cause in watched(step).causes, watched(step)


def test_the_unclipped_norm_is_the_one_before_the_clip():
    report = watched(clipped)

    assert report.facts["unclipped_norm"] > 0.5
    assert report.facts["norm_at_step"] == pytest.approx(0.5, rel=1e-3)
    assert report.facts["clipped_fraction"] == 1


def with_scaler(order: str, scaler) -> Step:
    def step(model, optimizer):
        optimizer.zero_grad()
        scaler.scale(loss_of(model)).backward()
        if order == "right":
            scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 65536.0 if order == "constant" else 1.0)
        scaler.step(optimizer)
        scaler.update()

    return step


@pytest.mark.parametrize("given", [True, False], ids=["scaler given", "scaler found"])
@pytest.mark.parametrize("order", ["wrong", "constant"])
def test_clipping_scaled_gradients_is_named(order, given):
    scaler = torch.amp.GradScaler("cpu")

    report = watched(with_scaler(order, scaler), scaler=scaler if given else None)

    assert report.causes == ("update.clip_scaled_gradients",), report


@pytest.mark.parametrize("enabled", [True, False])
def test_clipping_unscaled_gradients_is_ok(enabled):
    scaler = torch.amp.GradScaler("cpu", enabled=enabled)

    report = watched(with_scaler("right", scaler), scaler=scaler)

    assert report.status == "ok", report
    assert report.facts["unclipped_norm"] < 1000  # in the scale of the step


def test_a_step_that_the_scaler_skips_is_no_fault():
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127)

    report = watched(with_scaler("right", scaler), scaler=scaler, steps=1)

    assert report.status == "unknown", report
    assert "skipped" in str(report)


def test_an_optimizer_built_before_the_head_was_replaced_is_named():
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    model[2] = nn.Linear(8, 1).requires_grad_(True)

    report = watched(healthy, model, optimizer)

    assert report.status == "fault"
    assert report.findings[0].cause == "update.stale_entries"
    assert report.findings[0].where == ("2.weight", "2.bias")
    optimizer.add_param_group({"params": model[2].parameters()})
    assert "update.missing_parameters" not in watched(healthy, model, optimizer).causes


def test_a_frozen_backbone_outside_the_optimizer_is_ok():
    model = mlp()
    model[0].requires_grad_(False)

    assert watched(healthy, model).status == "ok"


def test_a_trainable_layer_outside_the_optimizer_is_suspicious():
    model = mlp()

    report = watched(healthy, model, torch.optim.SGD(model[2].parameters(), lr=0.01))

    assert report.status == "suspicious"
    assert report.findings[0].where == ("0.weight", "0.bias")


def test_two_optimizers_given_together_hold_all():
    model = mlp()
    pair = [torch.optim.SGD(model[number].parameters(), lr=0.01) for number in (0, 2)]

    def step(model, optimizers):
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss_of(model).backward()
        for optimizer in optimizers:
            optimizer.step()

    assert watched(step, model, pair).status == "ok"


def low_precision(rate: float) -> rerail.Report:
    model = nn.LayerNorm(64).to(torch.bfloat16)
    x = torch.randn(8, 64, dtype=torch.bfloat16)

    def step(model, optimizer):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    return watched(step, model, torch.optim.SGD([model.weight], lr=rate))


def test_bfloat16_weights_that_swallow_the_update_are_named():
    assert "update.rounded_away" in low_precision(1e-4).causes


def test_bfloat16_weights_that_move_are_ok():
    assert "update.rounded_away" not in low_precision(10.0).causes


def test_frozen_weights_that_momentum_moves_are_named():
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    def step(model, optimizer):
        optimizer.zero_grad(set_to_none=False)
        loss_of(model).backward()
        optimizer.step()

    step(model, optimizer)
    model[0].requires_grad_(False)

    report = watched(step, model, optimizer)

    assert report.causes == ("update.frozen_parameter_moves",), report


def test_frozen_batch_norm_statistics_that_move_are_named_and_eval_stops_them():
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))
    model[:2].requires_grad_(False)

    assert watched(healthy, model).causes == ("update.frozen_statistics_move",)
    model[:2].eval()
    assert watched(healthy, model).status == "ok"


def test_eval_used_as_freeze_is_named():
    model = mlp()
    model[0].eval()

    assert watched(healthy, model).causes == ("update.eval_is_not_frozen",)
    model[0].requires_grad_(False)
    assert watched(healthy, model).status == "ok"


@pytest.mark.parametrize(("rate", "cause"), [(50.0, "update.rate_too_large"), (1e-9, "update.rate_too_small")])
def test_a_rate_of_another_size_is_suspicious(rate, cause):
    model = mlp()

    report = watched(healthy, model, torch.optim.SGD(model.parameters(), lr=rate), steps=1)

    assert report.status == "suspicious"
    assert cause in report.causes, report


def test_a_warm_up_that_starts_at_rate_zero_is_ok():
    model = mlp()

    assert watched(healthy, model, torch.optim.SGD(model.parameters(), lr=0.0), steps=1).status == "ok"


def test_no_hook_or_wrapper_stays():
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    healthy(model, optimizer)
    before = rerail.digest(model, optimizer)

    with rerail.update_report(model, optimizer):
        healthy(model, optimizer)

    assert rerail.digest(model, optimizer) == before
    assert not any(parameter._backward_hooks for parameter in model.parameters())
    assert torch.amp.GradScaler.step.__module__ == "torch.amp.grad_scaler"


def test_an_exception_of_the_step_goes_on_its_way():
    with pytest.raises(ZeroDivisionError):
        watched(lambda model, optimizer: 1 / 0)


@pytest.mark.parametrize(
    ("model", "optimizer"),
    [
        pytest.param(nn.Tanh(), torch.optim.SGD([torch.zeros(1, requires_grad=True)]), id="no parameters"),
        pytest.param("model", None, id="no module"),
        pytest.param(nn.Linear(1, 1), "sgd", id="no optimizer"),
        pytest.param(nn.Linear(1, 1), [], id="an empty list"),
        pytest.param(nn.LazyLinear(1), torch.optim.SGD([torch.zeros(1)]), id="lazy"),
        pytest.param(nn.Linear(1, 1, device="meta"), torch.optim.SGD([torch.zeros(1)]), id="meta"),
    ],
)
def test_what_cannot_be_watched_is_unknown_in_one_sentence(model, optimizer):
    with rerail.update_report(model, optimizer) as update:
        pass

    assert update.report.status == "unknown"
    assert len(update.report.findings) == 1


def test_sparse_gradients_complex_weights_and_tied_weights_are_watched():
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(10, 4, sparse=True)
            self.again = self.embedding
            self.phase = nn.Parameter(torch.randn(4, dtype=torch.complex64))

        def forward(self, ids):
            return (self.again(ids) * self.phase).abs()

    model = Odd()

    def step(model, optimizer):
        optimizer.zero_grad()
        model(torch.arange(4)).mean().backward()
        optimizer.step()

    report = watched(step, model, torch.optim.SGD(model.parameters(), lr=0.1))

    assert report.status == "ok", report
    assert len(report.rows) == 2


def window(weight: Callable[[int], float], clear_inside: bool = False, sizes: tuple[int, ...] = (4, 4, 4, 4)):
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    cuts = [sum(sizes[:number]) for number in range(len(sizes) + 1)]

    def accumulate():
        optimizer.zero_grad()
        for begin, end in itertools.pairwise(cuts):
            if clear_inside:
                optimizer.zero_grad()
            (nn.functional.mse_loss(model(X[begin:end]), Y[begin:end]) * weight(end - begin)).backward()
        optimizer.step()

    def full():
        optimizer.zero_grad()
        loss_of(model).backward()

    before = rerail.digest(model, optimizer)
    report = rerail.accumulation_check(model, accumulate, full, optimizer)
    assert rerail.digest(model, optimizer) == before
    return report


UNEVEN = (10, 2, 2, 2)


@pytest.mark.parametrize(
    ("report", "cause"),
    [
        (window(lambda rows: 1 / 4, clear_inside=True), "update.accumulation_cleared"),
        (window(lambda rows: 1.0, clear_inside=True), "update.accumulation_cleared"),
        (window(lambda rows: 1.0), "update.accumulation_not_divided"),
        (window(lambda rows: 1 / 4, sizes=UNEVEN), "update.accumulation_uneven"),
        (window(lambda rows: 1.0, sizes=UNEVEN), "update.accumulation_uneven"),
    ],
)
def test_a_wrong_accumulation_is_named(report, cause):
    assert report.causes == (cause,), report


@pytest.mark.parametrize("sizes", [(4, 4, 4, 4), UNEVEN])
def test_an_accumulation_by_rows_is_ok(sizes):
    assert window(lambda rows: rows / 16, sizes=sizes).status == "ok"


def test_accumulation_is_unknown_where_rows_meet():
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))

    report = rerail.accumulation_check(model, lambda: None, lambda: None)

    assert report.status == "unknown"
    assert "eval()" in str(report)


def test_two_steps_on_one_gradient_are_suspicious_and_two_optimizers_are_not():
    def twice(model, optimizer):
        healthy(model, optimizer)
        optimizer.step()

    model = mlp()
    pair = [torch.optim.SGD(model[number].parameters(), lr=0.01) for number in (0, 2)]

    def in_turn(model, optimizers):
        model.zero_grad()
        loss_of(model).backward()
        for optimizer in optimizers:
            optimizer.step()

    assert watched(twice).causes == ("update.gradients_used_twice",)
    assert watched(in_turn, model, pair).status == "ok"


def test_an_optimizer_that_maximises_is_a_question():
    model = mlp()

    assert watched(healthy, model, torch.optim.SGD(model.parameters(), lr=0.01, maximize=True)).causes == (
        "update.maximises",
    )
