"""Run every experiment of the answer sheet `flat_and_forked` under every suspect, and print what comes out.

The grader holds this table as a literal; `test_recorded_outcomes.py` runs it again and compares.
"""

from __future__ import annotations

import copy
import pprint
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

Outcomes = dict[str, dict[str, str]]


class Flat:
    """A regression whose training loss stays where it began; the suspect says why."""

    SUSPECTS = ("broadcast", "cut", "forgotten", "slow", "dead")

    def __init__(self, suspect: str, seed: int, *, rate: float = 0.05, rows: int = 64, momentum: float = 0.0,
                 reinit: bool = False, fresh: bool = False) -> None:  # fmt: skip
        torch.manual_seed(seed)
        self.suspect = suspect
        self.x = torch.randn(rows, 6)
        self.y = 2 * torch.sin(self.x.sum(dim=1)) + self.x[:, 0]
        self.y = self.y - self.y.mean()
        self.model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1))
        if suspect == "dead" and not reinit:
            nn.init.constant_(self.model[0].bias, -30.0)
        trained = copy.deepcopy(self.model) if suspect == "forgotten" and not fresh else self.model
        slower = 1e-5 if suspect == "slow" else 1.0
        self.optimizer = torch.optim.SGD(trained.parameters(), lr=rate * slower, momentum=momentum)

    def target(self) -> torch.Tensor:
        return self.y if self.suspect == "broadcast" else self.y[:, None]

    def loss(self) -> torch.Tensor:
        loss = (self.model(self.x) - self.target()).pow(2).mean()
        return torch.tensor(loss.item(), requires_grad=True) if self.suspect == "cut" else loss

    def step(self) -> None:
        self.model.zero_grad()
        self.loss().backward()
        self.optimizer.step()

    def train(self, steps: int = 200) -> float:
        """Train, and return the last loss as a share of the variance of the targets, where a flat loss stands."""
        for _ in range(steps):
            self.step()
        return self.loss().item() / self.y.var(correction=0).item()

    def moves(self) -> list[float]:
        """Take one step and tell how far each tensor moved."""
        before = [p.detach().clone() for p in self.model.parameters()]
        self.step()
        return [(p.detach() - b).norm().item() for p, b in zip(self.model.parameters(), before, strict=True)]


def goes(share: float) -> str:
    return "goes" if share < 0.6 else "stays"  # nan and inf are no fall


def how_many(flags: list[bool]) -> str:
    return "all" if all(flags) else "some" if any(flags) else "none"


def flat(suspect: str, seed: int) -> tuple[dict[str, str], dict[str, float]]:
    """Make every experiment of the flat run under one suspect: what it showed, and the numbers behind that."""

    def run(**change: Any) -> Flat:
        return Flat(suspect, seed, **change)

    predictions = run().model(run().x)
    first = run()
    first.loss().backward()
    gradients = [p.grad for p in first.model.parameters()]
    exact = F.mse_loss(predictions, run().y[:, None]).item()
    hidden = run().model[1](run().model[0](run().x))
    heart = run()
    heart.x, heart.y = heart.x[:8], heart.y[:8]
    numbers = {
        "alert": run().train(),
        "recompute": abs(run().loss().item() / exact - 1),
        "size": max(run().moves()),
        "higher": run(rate=0.05e5).train(),
        "rebuild": run(fresh=True).train(),
        "reinit": run(reinit=True).train(),
        "momentum": run(momentum=0.9).train(),
        "more_rows": run(rows=640).train(),
        "lower": run(rate=0.025).train(),
        "longer": run().train(600),
        "by_heart": heart.train(400),
    }
    seen = {name: goes(numbers[name]) for name in ("higher", "rebuild", "reinit", "momentum")}
    seen |= {name: goes(numbers[name]) for name in ("more_rows", "lower", "longer")}
    seen |= {
        "by_heart": "falls" if numbers["by_heart"] < 0.6 else "does not",
        "shapes": "equal" if predictions.shape == run().target().shape else "not equal",
        "recompute": "equal" if numbers["recompute"] < 1e-3 else "not equal",
        "gradients": how_many([g is not None and bool(g.any()) for g in gradients]),
        "graph": "yes" if run().loss().grad_fn is not None else "no",
        "movement": how_many([move > 0 for move in run().moves()]),
        "size": "0" if numbers["size"] == 0 else "below" if numbers["size"] < 1e-4 else "above",
        "units": "all" if not hidden.any() else "not all",
    }
    return seen, numbers


class Forked:
    """A classifier whose training loss falls while its validation loss rises; the suspect says why."""

    SUSPECTS = ("overfit", "labels", "scale", "mode", "drift")

    def __init__(self, suspect: str, seed: int, *, more: int = 0, rate: float = 0.01, dropout: float = 0.1,
                 resplit: bool = False, rows: int = 0, start: int = 0) -> None:  # fmt: skip
        self.suspect, self.rate, self.seed = suspect, rate, seed
        count = (50 if suspect == "overfit" else 1500) + more
        self.raw, self.y = self.draw(count, 2 * seed, later=False)
        self.mean, self.deviation = self.raw.mean(0), self.raw.std(0)
        if rows:
            self.raw, self.y = self.raw[:rows], self.y[:rows]
        self.x = (self.raw - self.mean) / self.deviation
        self.validation = self.draw(800, 2 * seed + 1, later=suspect == "drift" and not resplit)
        torch.manual_seed(100 * seed + start)
        self.model = nn.Sequential(
            nn.Linear(10, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(dropout), nn.Linear(32, 2)
        )
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=rate)

    @staticmethod
    def draw(count: int, seed: int, *, later: bool) -> tuple[torch.Tensor, torch.Tensor]:
        """Ten columns far from 0; the class depends on three of them, later on three others."""
        generator = torch.Generator().manual_seed(seed)
        z = torch.randn(count, 10, generator=generator)
        used = z[:, 3:6] if later else z[:, :3]
        signal = used @ torch.tensor([1.0, 1.0, -1.0]) + 0.7 * torch.randn(count, generator=generator)
        return 200 + 20 * z, (signal > 0).long()

    def received(self, raw: torch.Tensor) -> torch.Tensor:
        """What the model receives of validation rows."""
        return raw if self.suspect == "scale" else (raw - self.mean) / self.deviation

    def by_validation(self, raw: torch.Tensor, y: torch.Tensor, *, evalmode: bool = False) -> tuple[float, float]:
        """Score raw rows as validation rows are scored: loss and accuracy."""
        x, y = self.received(raw), 1 - y if self.suspect == "labels" else y
        parts = [torch.arange(len(y))]
        if self.suspect == "mode":
            parts = [part for k in (0, 1) for part in (y == k).nonzero()[:, 0].split(100) if len(part) > 1]
        self.model.train(self.suspect == "mode" and not evalmode)
        with torch.no_grad():
            logits, y = torch.cat([self.model(x[part]) for part in parts]), torch.cat([y[part] for part in parts])
        self.model.train()
        return F.cross_entropy(logits, y).item(), (logits.argmax(1) == y).double().mean().item()

    def by_training(self) -> tuple[float, float]:
        """Score the training rows properly: loss and accuracy."""
        self.model.eval()
        with torch.no_grad():
            logits = self.model(self.x)
        self.model.train()
        return F.cross_entropy(logits, self.y).item(), (logits.argmax(1) == self.y).double().mean().item()

    def step(self, batch: torch.Tensor) -> None:
        self.optimizer.zero_grad()
        F.cross_entropy(self.model(self.x[batch]), self.y[batch]).backward()
        self.optimizer.step()

    def train(self, steps: int = 200) -> Forked:
        generator = torch.Generator().manual_seed(self.seed)
        while steps > 0:
            for batch in torch.randperm(len(self.x), generator=generator).split(100)[:steps]:
                self.step(batch)
                steps -= 1
        return self

    def gap(self) -> float:
        """How far validation loss ends above training loss."""
        return self.by_validation(*self.validation)[0] - self.by_training()[0]


def side(accuracy: float) -> str:
    return "under 40 %" if accuracy < 0.4 else "between" if accuracy < 0.6 else "over 60 %"


def closes(gap: float) -> str:
    return "goes" if gap < 0.25 else "stays"


def forked(suspect: str, seed: int) -> tuple[dict[str, str], dict[str, float]]:
    """Make every experiment of the forked run under one suspect: what it showed, and the numbers behind that."""

    def run(**change: Any) -> Forked:
        return Forked(suspect, seed, **change)

    def untrained(start: int) -> float:
        fresh = run(start=start)
        return fresh.by_validation(*fresh.validation)[0]

    begun, ended = run(), run().train()
    state = copy.deepcopy(ended.model.state_dict())
    received = ended.received(ended.validation[0])
    numbers = {
        "alert: train before": begun.by_training()[0],
        "alert: train": ended.by_training()[0],
        "alert: validation": ended.by_validation(*ended.validation)[0],
        "alert: validation early": run().train(20).by_validation(*ended.validation)[0],
        "before": sum(map(untrained, range(20))) / 20,
        "spread": (received.mean(0) - ended.x.mean(0)).abs().max().item(),
        "crossed": ended.by_validation(ended.raw, ended.y)[1],
        "chance": ended.by_validation(*ended.validation)[1],
        "twice": abs(ended.by_validation(*ended.validation)[0] - ended.by_validation(*ended.validation)[0]),
    }
    ended.model.load_state_dict(state)  # scoring in training mode moves the running statistics
    numbers["evalmode"] = ended.by_validation(*ended.validation, evalmode=True)[0] - ended.by_training()[0]
    gradients = run()
    F.cross_entropy(gradients.model(gradients.x), gradients.y).backward()
    found = [bool(p.grad is not None and p.grad.any()) for p in gradients.model.parameters()]
    before = [p.detach().clone() for p in gradients.model.parameters()]
    gradients.optimizer.step()
    moved = [not torch.equal(p, b) for p, b in zip(gradients.model.parameters(), before, strict=True)]
    numbers |= {
        "resplit": run(resplit=True).train().gap(),
        "dropout": run(dropout=0.5).train().gap(),
        "more_rows": run(more=2000).train().gap(),
        "lower": run(rate=0.005).train().gap(),
        "longer": run().train(600).gap(),
        "by_heart": run(rows=8).train().by_training()[0],
    }
    seen = {name: closes(numbers[name]) for name in ("evalmode", "resplit", "dropout", "more_rows", "lower", "longer")}
    seen |= {
        "before": "near log(2)" if numbers["before"] < 1.5 else "far above",
        "spread": "as in training" if numbers["spread"] < 1 else "far apart",
        "crossed": side(numbers["crossed"]),
        "chance": side(numbers["chance"]),
        "twice": "equal" if numbers["twice"] < 1e-6 else "not equal",
        "gradients": how_many(found),
        "movement": how_many(moved),
        "by_heart": "falls" if numbers["by_heart"] < 0.1 else "does not",
    }
    return seen, numbers


def recorded(seed: int = 0) -> tuple[dict[str, Outcomes], dict[str, dict[str, dict[str, float]]]]:
    """Return run -> experiment -> suspect -> what was observed; and the numbers behind it."""
    seen: dict[str, Outcomes] = {}
    numbers: dict[str, dict[str, dict[str, float]]] = {}
    for name, kind, experiments in (("flat", Flat, flat), ("forked", Forked, forked)):
        by_suspect = {suspect: experiments(suspect, seed) for suspect in kind.SUSPECTS}
        first_seen, first_numbers = next(iter(by_suspect.values()))
        seen[name] = {e: {s: found[0][e] for s, found in by_suspect.items()} for e in first_seen}
        numbers[name] = {e: {s: found[1][e] for s, found in by_suspect.items()} for e in first_numbers}
    return seen, numbers


if __name__ == "__main__":
    torch.set_num_threads(1)
    outcomes, numbers = recorded()
    pprint.pprint(numbers, width=118, sort_dicts=False)
    pprint.pprint(outcomes, width=118, sort_dicts=False)
