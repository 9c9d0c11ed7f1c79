"""Run every experiment of the answer sheet `flat_and_forked` under every rival cause, and print what comes out.

The grader holds this table as a literal, and `test_recorded_outcomes.py` compares the two.
"""

from __future__ import annotations

import copy
import pprint
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F

Outcomes = dict[str, dict[str, str]]


class Flat:
    """A regression whose training loss stays where it began; `cause` says why."""

    CAUSES = ("broadcast", "cut", "forgotten", "slow", "dead")

    def __init__(self, cause: str, *, rate: float = 0.05, rows: int = 64, width: int = 16, optimizer=torch.optim.SGD):
        torch.manual_seed(0)
        self.cause = cause
        self.x = torch.randn(rows, 6)
        self.y = 2 * torch.sin(self.x.sum(dim=1)) + self.x[:, 0]
        self.y = self.y - self.y.mean()
        self.model = nn.Sequential(nn.Linear(6, width), nn.ReLU(), nn.Linear(width, 1))
        if cause == "dead":
            nn.init.constant_(self.model[0].bias, -30.0)
        trained = copy.deepcopy(self.model) if cause == "forgotten" else self.model
        self.optimizer = optimizer(trained.parameters(), lr=rate * (1e-4 if cause == "slow" else 1))

    def residual(self) -> torch.Tensor:
        target = self.y if self.cause == "broadcast" else self.y[:, None]
        return self.model(self.x) - target

    def loss(self) -> torch.Tensor:
        loss = self.residual().pow(2).mean()
        return torch.tensor(loss.item(), requires_grad=True) if self.cause == "cut" else loss

    def step(self) -> None:
        self.model.zero_grad()
        self.loss().backward()
        self.optimizer.step()

    def falls(self, steps: int = 300) -> str:
        """Tell whether the loss comes below half of the variance of the targets, which is where it stands."""
        for _ in range(steps):
            self.step()
        loss, floor = self.loss().item(), self.y.var().item()
        return "falls" if loss < 0.5 * floor else "stays" if loss < 10 * floor else "bursts"


def tensors_that_move(run: Flat) -> str:
    before = [p.detach().clone() for p in run.model.parameters()]
    run.step()
    moved = [(p.detach() - b).norm().item() for p, b in zip(run.model.parameters(), before, strict=True)]
    share = sum(m**2 for m in moved) ** 0.5 / sum(b.norm().item() ** 2 for b in before) ** 0.5
    if all(moved) and share < 1e-3:
        return "all, by less than a thousandth"
    return "all" if all(moved) else "some" if any(moved) else "none"


def gradients(run: Flat) -> str:
    run.model.zero_grad()
    run.loss().backward()
    found = [p.grad for p in run.model.parameters()]
    if any(g is None for g in found):
        return "missing"
    return "zero in places" if any(not g.any() for g in found) else "there"


def spread(run: Flat) -> str:
    run.falls()
    return "constant" if run.model(run.x).std().item() < 0.05 * run.y.std().item() else "vary"


def by_heart(run: Flat) -> str:
    run.x, run.y = run.x[:8], run.y[:8]
    start = run.residual().pow(2).mean().item()
    for _ in range(1000):
        run.step()
    return "learned" if run.residual().pow(2).mean().item() < 0.1 * start else "not learned"


FLAT: dict[str, Callable[[str], str]] = {
    "shapes": lambda c: "alike" if Flat(c).residual().shape == Flat(c).model(Flat(c).x).shape else "differ",
    "gradients": lambda c: gradients(Flat(c)),
    "movement": lambda c: tensors_that_move(Flat(c)),
    "units": lambda c: "all dead" if not Flat(c).model[1](Flat(c).model[0](Flat(c).x)).any() else "alive",
    "higher": lambda c: Flat(c, rate=0.05 * 1e4).falls(),
    "guesses": lambda c: spread(Flat(c)),
    "by_heart": lambda c: by_heart(Flat(c)),
    "lower": lambda c: Flat(c, rate=0.005).falls(),
    "longer": lambda c: Flat(c).falls(900),
    "wider": lambda c: Flat(c, width=128).falls(),
    "adam": lambda c: Flat(c, rate=0.005, optimizer=torch.optim.Adam).falls(),
    "more_rows": lambda c: Flat(c, rows=640).falls(),
}


class Forked:
    """A classifier whose training loss falls while its validation loss rises; `cause` says why."""

    CAUSES = ("overfit", "labels", "scale", "mode", "drift")

    def __init__(self, cause: str, *, rows: int = 0, width: int = 64, rate: float = 0.01, period: int = 1,
                 sort: bool = True, dropout: float = 0.0):  # fmt: skip
        self.cause, self.sort, self.rate = cause, sort, rate
        count = rows or (60 if cause == "overfit" else 800)
        x, self.y = self.rows(count, 0, 0)
        self.mean, self.deviation = x.mean(0), x.std(0)
        self.raw, self.x = x, (x - self.mean) / self.deviation
        self.late = self.rows(600, 1, period if cause == "drift" else 0)
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(20, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Dropout(max(dropout, 0.05)),
                                   nn.Linear(width, 2))  # fmt: skip
        self.history: list[float] = []

    @staticmethod
    def rows(count: int, seed: int, period: int) -> tuple[torch.Tensor, torch.Tensor]:
        generator = torch.Generator().manual_seed(seed)
        x = 5 + 3 * torch.randn(count, 20, generator=generator)
        signal = (x[:, 0] + x[:, 1] - x[:, 2] - 5) / 3
        if period:  # what the measurements mean has changed: two of them have swapped their roles
            signal = (x[:, 0] + x[:, 2] - x[:, 1] - 5) / 3
        return x, (signal + 0.7 * torch.randn(count, generator=generator) > 0).long()

    def by_validation(self, x: torch.Tensor, y: torch.Tensor) -> tuple[float, float]:
        """Score raw rows as validation rows are scored: loss and accuracy."""
        if self.cause == "labels":
            y = 1 - y
        if self.cause != "scale":
            x = (x - self.mean) / self.deviation
        if self.cause == "mode" and self.sort:
            order = y.argsort(stable=True)
            x, y = x[order], y[order]
        self.model.train(self.cause == "mode")
        with torch.no_grad():
            logits = torch.cat([self.model(part) for part in x.split(100)])
        self.model.train()
        return F.cross_entropy(logits, y).item(), (logits.argmax(1) == y).double().mean().item()

    def train(self, epochs: int = 25, rows: int = 0) -> Forked:
        optimizer = torch.optim.Adam(self.model.parameters(), lr=self.rate)
        x, y = (self.x[:rows], self.y[:rows]) if rows else (self.x, self.y)
        self.history = [self.by_validation(*self.late)[0]]
        for _ in range(epochs):
            for batch in torch.randperm(len(x)).split(100):
                optimizer.zero_grad()
                F.cross_entropy(self.model(x[batch]), y[batch]).backward()
                optimizer.step()
            self.history.append(self.by_validation(*self.late)[0])
        return self

    def train_loss(self) -> float:
        self.model.eval()
        with torch.no_grad():
            return F.cross_entropy(self.model(self.x), self.y).item()

    def gap(self) -> str:
        """Tell whether validation ends beside training."""
        return "closes" if self.history[-1] < 0.55 else "stays"


def crossed(run: Forked) -> str:
    run.train()
    return "agree" if run.by_validation(run.raw, run.y)[0] < 0.3 + 1.5 * run.train_loss() else "differ"


def twice(run: Forked) -> str:
    run.train()
    first, second = (run.by_validation(*run.late)[0] for _ in range(2))
    return "equal" if abs(first - second) < 1e-6 else "differ"


def chance(run: Forked) -> str:
    accuracy = run.train().by_validation(*run.late)[1]
    return "below 40 %" if accuracy < 0.4 else "40 to 60 %" if accuracy < 0.6 else "above 60 %"


def before_training(run: Forked) -> str:
    return "alike" if run.by_validation(*run.late)[0] < 1.5 * run.train_loss() else "higher"


def learned_by_heart(run: Forked) -> str:
    run.train(100, rows=8)
    run.model.eval()
    with torch.no_grad():
        loss = F.cross_entropy(run.model(run.x[:8]), run.y[:8]).item()
    return "learned" if loss < 0.1 else "not learned"


FORKED: dict[str, Callable[[str], str]] = {
    "crossed": lambda c: crossed(Forked(c)),
    "before": lambda c: before_training(Forked(c)),
    "chance": lambda c: chance(Forked(c)),
    "twice": lambda c: twice(Forked(c)),
    "resplit": lambda c: Forked(c, period=0).train().gap(),
    "shuffled": lambda c: Forked(c, sort=False).train().gap(),
    "more_rows": lambda c: Forked(c, rows=2400).train().gap(),
    "smaller": lambda c: Forked(c, width=2).train().gap(),
    "dropout": lambda c: Forked(c, dropout=0.5).train().gap(),
    "by_heart": lambda c: learned_by_heart(Forked(c)),
    "lower": lambda c: Forked(c, rate=0.001).train().gap(),
    "longer": lambda c: Forked(c).train(50).gap(),
}


def outcomes() -> dict[str, Outcomes]:
    """Return alert -> experiment -> cause -> what was observed."""
    return {
        "flat": {name: {c: run(c) for c in Flat.CAUSES} for name, run in FLAT.items()},
        "forked": {name: {c: run(c) for c in Forked.CAUSES} for name, run in FORKED.items()},
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    for cause in Flat.CAUSES:
        run = Flat(cause)
        start = run.residual().pow(2).mean().item()
        run.falls()
        print(f"flat   {cause:<10} {start:.3f} -> {run.residual().pow(2).mean().item():.3f}")
    for cause in Forked.CAUSES:
        run = Forked(cause).train()
        print(f"forked {cause:<10} train {run.train_loss():.3f} validation {run.history[0]:.3f} ->"
              f" {min(run.history):.3f} -> {run.history[-1]:.3f}")  # fmt: skip
    pprint.pprint(outcomes(), width=118, sort_dicts=False)
