"""
What the diagnostics cost beside a plain training step: `python benchmarks/overhead.py`, part of `make bench`.

Pairs are interleaved (A B B A ...), so that a busy minute falls on both; printed are the median ratio, its quartiles,
and the ratio of the plain step to itself, beneath which nothing is claimed. Nothing here passes or fails.
"""

from __future__ import annotations

import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

import rerail

PAIRS = 30
STEPS = 20  # of a loop between two readings of the clock: one sample of the monitor falls into each


@dataclass
class Subject:
    """A model with its step."""

    name: str
    model: nn.Module
    optimizer: torch.optim.Optimizer
    batch: tuple[torch.Tensor, torch.Tensor]

    def step(self) -> torch.Tensor:
        """Make one plain training step."""
        self.optimizer.zero_grad()
        loss = nn.functional.cross_entropy(self.model(self.batch[0]), self.batch[1])
        loss.backward()
        self.optimizer.step()
        return loss


def subjects() -> Iterator[Subject]:
    """Give an MLP, a convolutional network and a transformer block."""
    torch.manual_seed(0)
    mlp = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))
    conv = nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 3, padding=1),
        nn.BatchNorm2d(64), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10),
    )  # fmt: skip
    layer = nn.TransformerEncoderLayer(128, 4, 256, batch_first=True)
    block = nn.Sequential(
        nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Flatten(), nn.Linear(128 * 32, 10)
    )
    labels = torch.randint(0, 10, (64,))
    for name, model, inputs in (
        ("MLP", mlp, torch.randn(64, 256)),
        ("conv", conv, torch.randn(32, 3, 16, 16)),
        ("transformer", block, torch.randn(16, 32, 128)),
    ):
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
        yield Subject(name, model, optimizer, (inputs, labels[: len(inputs)]))


def monitored(subject: Subject) -> Callable[[], Any]:
    """Return a loop of steps with a monitor that samples once in it."""
    monitor = rerail.Monitor(subject.model, subject.optimizer, every=STEPS)

    def loop(steps: int = STEPS) -> None:
        for _ in range(steps):
            monitor.step(subject.step())

    loop(STEPS // 2)  # so that a sample begins and ends inside a loop, and its hooks never meet the plain steps
    return loop


def plain(subject: Subject, steps: int = STEPS) -> Callable[[], Any]:
    """Return a loop of plain steps."""

    def loop() -> None:
        for _ in range(steps):
            subject.step()

    return loop


def guarded(subject: Subject) -> Callable[[], Any]:
    """Return a loop with a guard after every step."""

    def loop() -> None:
        for _ in range(STEPS):
            rerail.finite_guard(subject.model, loss=subject.step())

    return loop


def anomaly(subject: Subject) -> Callable[[], Any]:
    """Return a loop in anomaly mode."""

    def loop() -> None:
        with torch.autograd.set_detect_anomaly(True):
            for _ in range(STEPS):
                subject.step()

    return loop


def checks(subject: Subject) -> dict[str, Callable[[], Any]]:
    """Return the one-shots; each is compared with one plain step."""
    model, optimizer, batch = subject.model, subject.optimizer, subject.batch
    loss_fn = nn.functional.cross_entropy

    def evaluate() -> float:
        modes = {module: module.training for module in model.modules()}
        model.eval()
        with torch.no_grad():
            loss = loss_fn(model(batch[0]), batch[1]).item()
        for module, training in modes.items():
            module.training = training
        return loss

    output = model(batch[0])
    return {
        "optimizer_audit": lambda: rerail.optimizer_audit(model, optimizer),
        "gradient_report": lambda: rerail.gradient_report(model, loss_fn, batch, optimizer=optimizer),
        "check_loss_contract": lambda: rerail.check_loss_contract(loss_fn, output, batch[1]),
        "check_values": lambda: rerail.check_values(model, batch),
        "evaluation_report": lambda: rerail.evaluation_report(evaluate, model),
        "first_nonfinite": lambda: rerail.first_nonfinite(subject.step, model, optimizer),
    }


def ratio(measured: Callable[[], Any], base: Callable[[], Any], pairs: int = PAIRS) -> tuple[float, float, float]:
    """Return median and quartiles of the ratio of interleaved times."""
    measured(), base()
    ratios = []
    for number in range(pairs):
        order = (measured, base) if number % 2 else (base, measured)
        times = {}
        for call in order:
            begin = time.perf_counter()
            call()
            times[call] = time.perf_counter() - begin
        ratios.append(times[measured] / times[base])
    low, middle, high = statistics.quantiles(ratios, n=4)
    return middle, low, high


def main() -> None:
    """Print one line a measurement."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    pairs = int(sys.argv[1]) if len(sys.argv) > 1 else PAIRS
    for subject in subjects():
        begin = time.perf_counter()
        plain(subject, 20)()
        print(f"{subject.name}: one plain step {(time.perf_counter() - begin) / 20 * 1000:.2f} ms")
        again = plain(subject)
        loops = {
            "plain against itself": (plain(subject), ""), f"Monitor(every={STEPS})": (monitored(subject), "<= 1.05"),
            "finite_guard every step": (guarded(subject), "<= 1.10"), "anomaly mode": (anomaly(subject), ""),
        }  # fmt: skip
        for name, (loop, promise) in loops.items():
            told(name, ratio(loop, again, pairs), promise)
        for name, check in checks(subject).items():
            told(name, ratio(check, subject.step, pairs), "<= 10" if name == "first_nonfinite" else "<= 2")


def told(name: str, numbers: tuple[float, float, float], promise: str) -> None:
    """Print a ratio beside what was promised."""
    middle, low, high = numbers
    limit = float(promise.removeprefix("<= ")) if promise else float("inf")
    word = "" if not promise else "kept" if middle <= limit else "MISSED"
    print(f"  {name:26} ratio {middle:5.2f}  [{low:.2f}, {high:.2f}]  {promise:8} {word}")


if __name__ == "__main__":
    main()
