"""
The gradient norm in the log is a flat line, and the model stays bad.

A linear model learns how far the price of a flat lies above or below the mean of its district,
from its area in square metres and its number of rooms. There is a guard: gradients are clipped to
norm 1. The log looks calm from the first step to the last, and the prices are worse than a guess.

Task: the model must learn the prices to within their noise, and the log must show the norm of the
gradient that backward made, before clipping touches it. Keep the linear model: two weights and a
bias, untrained at the start, are all that is trained. Keep the loss (mean squared error over all
flats, in units of 100,000), plain SGD with its learning rate, the number of steps, and clipping at
MAX_NORM as a guard: in the second half it may act on fewer than one step in ten.
`train(x, y, steps)` gets the raw areas and rooms of 20 flats or more, like those of `flats`, and
their prices. It returns a pair: whatever `predict` needs, and a log with one mapping a step, in
which "loss" and "gradient_norm" are numbers. `predict` gives prices, shape (flats, 1), after any
number of steps: trained for k steps, the model has on these flats the loss that entry k of a longer
log tells. One flat alone gets the price that it gets among others.
Graded: `train`, `predict`. Run it: python exercises/11_clipping/calm_log.py
"""
import torch

MAX_NORM = 1.0
LEARNING_RATE = 0.2
STEPS = 50


def flats(count=64, seed=0, noise=0.1):
    """Areas and rooms, shape (flats, 2), and prices, shape (flats, 1)."""
    generator = torch.Generator().manual_seed(seed)
    area = 40 + 160 * torch.rand(count, generator=generator)
    rooms = 1 + torch.floor(5 * torch.rand(count, generator=generator))
    price = 0.02 * (area - 120) + 0.3 * (rooms - 3)
    price += noise * torch.randn(count, generator=generator)
    return torch.stack([area, rooms], dim=1), price[:, None]


def clip(parameters):
    """Shorten the gradient to MAX_NORM where it is longer; return its norm."""
    gradients = [parameter.grad for parameter in parameters]
    norm = torch.nn.utils.get_total_norm(gradients)
    torch.nn.utils.clip_grad_norm_(parameters, MAX_NORM)
    return norm


def train(x, y, steps=STEPS):
    """Fit the model to some flats; return it with its log."""
    # The area is a hundred times larger than the rooms and alone gave each step its direction.
    # On one scale, which belongs to the model, the gradient is short and the guard can rest.
    scale = x.mean(dim=0), x.std(dim=0)
    x = (x - scale[0]) / scale[1]
    torch.manual_seed(0)
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    log = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        norm = clip(list(model.parameters()))
        optimizer.step()
        log.append({"loss": loss.item(), "gradient_norm": norm.item()})
    return (model, *scale), log


def predict(model, x):
    """Prices of some flats, shape (flats, 1)."""
    with torch.inference_mode():
        linear, mean, deviation = model
        return linear((x - mean) / deviation)


if __name__ == "__main__":
    model, log = train(*flats())
    for step in (0, 1, 2, STEPS // 2, STEPS - 1):
        loss, norm = log[step]["loss"], log[step]["gradient_norm"]
        print(f"step {step:3d}  loss {loss:8.3f}  gradient norm {norm:7.3f}")
    x, y = flats(seed=1)
    error = (predict(model, x) - y).pow(2).mean().item()
    print(f"squared error on new flats {error:.3f}, of always saying the mean {y.var().item():.3f}")
