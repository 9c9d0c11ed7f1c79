"""Checkpoints: loads that load nothing, snapshots that are none, runs that resume as another run."""

import copy

import pytest
import torch
from torch import nn

import rerail


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))


def trained() -> dict:
    torch.manual_seed(9)
    model = net()
    model(torch.randn(8, 3))
    return model.state_dict()


def filtered(model, state):
    kept = {name: value for name, value in state.items() if name in model.state_dict()}
    return model.load_state_dict({**model.state_dict(), **kept})


@pytest.mark.parametrize(
    "wrap",
    [
        lambda state: {"state_dict": {"model": state}},
        lambda state: {f"module.{name}": value for name, value in state.items()},
    ],
)
@pytest.mark.parametrize("load", [filtered, lambda model, state: model.load_state_dict(state, strict=False)])
def test_a_load_that_changes_nothing_is_a_fault(wrap, load):
    model, state = net(), wrap(trained())
    before = rerail.digest(model)

    report = rerail.load_report(model, lambda: load(model, state), state)

    assert report.causes == ("process.nothing_loaded",)
    assert rerail.digest(model) == before


def test_a_load_of_everything_is_ok_also_a_second_time():
    model, state = net(), trained()

    assert rerail.load_report(model, lambda: model.load_state_dict(state), state).status == "ok"
    model.load_state_dict(state)
    assert rerail.load_report(model, lambda: model.load_state_dict(state), state).status == "ok"


def test_a_checkpoint_may_be_given_itself():
    assert rerail.load_report(net(), trained()).status == "ok"
    assert rerail.load_report(net(), {"state_dict": trained()}).causes == ("process.nothing_loaded",)


def test_a_head_that_stays_new_is_a_question():
    model, state = net(), {name: value for name, value in trained().items() if not name.startswith("2.")}

    report = rerail.load_report(model, lambda: model.load_state_dict(state, strict=False))

    assert report.status == "suspicious"
    assert report.findings[0].where == ("2.weight",)  # a bias of one number says nothing


BY_REFERENCE = {
    "state_dict": lambda model: model.state_dict(),
    "copy": lambda model: model.state_dict().copy(),
    "dict": lambda model: dict(model.state_dict()),
    "the model": lambda model: model,
    "detached": lambda model: {name: value.detach() for name, value in model.state_dict().items()},
}
REAL = {
    "deepcopy": lambda model: copy.deepcopy(model.state_dict()),
    "clones": lambda model: {name: value.clone() for name, value in model.state_dict().items()},
    "a copy of the model": copy.deepcopy,
}


@pytest.mark.parametrize("take", BY_REFERENCE.values(), ids=BY_REFERENCE)
def test_a_snapshot_by_reference_is_a_fault(take):
    model = net()

    assert rerail.snapshot_check(take(model), model).causes == ("update.snapshot_by_reference",)


@pytest.mark.parametrize("take", REAL.values(), ids=REAL)
def test_a_real_snapshot_is_ok(take):
    model = net()

    assert rerail.snapshot_check(take(model), model).status == "ok"


class Run:
    """A program: it seeds, shuffles with a generator of its own, and steps Adam with a schedule."""

    def __init__(self):
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.Linear(4, 1))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.1)
        self.scheduler = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.9)
        self.x = torch.randn(20, 3)

    def step(self):
        ids = torch.randperm(20)[:4]
        self.optimizer.zero_grad()
        loss = self.model(self.x[ids]).square().mean()
        loss.backward()
        self.optimizer.step()
        self.scheduler.step()
        return loss.item(), ids


PARTS = ("model", "optimizer", "scheduler", "generator")


def save(run):
    return {
        "model": run.model.state_dict(), "optimizer": run.optimizer.state_dict(),
        "scheduler": run.scheduler.state_dict(), "generator": torch.get_rng_state(),
    }  # fmt: skip


def loading(*parts):
    def load(run, checkpoint):
        for part in parts:
            if part == "generator":
                torch.set_rng_state(checkpoint["generator"])
            else:
                getattr(run, part).load_state_dict(checkpoint[part])

    return load


def test_a_run_that_restores_everything_is_ok():
    before = rerail.digest()

    report = rerail.resume_check(Run, save, loading(*PARTS))

    assert report.status == "ok", report
    assert report.facts["first_update"] == report.facts["first_update_resumed"]
    assert rerail.digest() == before


@pytest.mark.parametrize(
    ("without", "cause"),
    [
        ("model", "process.resume_loses_weights"),
        ("optimizer", "process.resume_loses_optimizer_state"),
        ("scheduler", "process.resume_loses_schedule"),
        ("generator", "process.resume_loses_data_order"),
    ],
)
def test_each_part_that_does_not_come_back_is_named(without, cause):
    report = rerail.resume_check(Run, save, loading(*(part for part in PARTS if part != without)))

    assert report.status == "fault"
    assert cause in report.causes


@pytest.mark.parametrize("seed", [0, 1], ids=["the same seed", "another seed"])
def test_seeding_again_is_no_restored_order(seed):
    def load(run, checkpoint):
        loading("model", "optimizer", "scheduler")(run, checkpoint)
        torch.manual_seed(seed)

    assert "process.resume_loses_data_order" in rerail.resume_check(Run, save, load).causes


def test_what_cannot_be_loaded_or_resumed_is_unknown():
    assert rerail.load_report(nn.Tanh(), lambda: None).status == "unknown"
    assert rerail.load_report(net(), lambda: 1 / 0).status == "unknown"
    assert rerail.snapshot_check({}, net()).status == "unknown"
    assert rerail.resume_check(lambda: None, save, loading()).status == "unknown"
