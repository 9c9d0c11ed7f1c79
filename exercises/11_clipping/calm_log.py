"""
The gradient norm in the log is a flat line, and the model stays bad.

A linear model learns how far the price of a flat lies above or below the mean of its district, from
its area in square metres and its number of rooms. There is a guard: gradients are clipped to norm 1.
The log looks calm from the first step to the last, and the prices are worse than a guess.

Task: the model must learn the prices to within their noise, and the log must show the norm of the
gradient that backward made, before clipping touches it. Keep the linear model with an untrained
start, the loss (mean squared error, in units of 100,000), SGD with its learning rate, the
number of steps, and clipping at MAX_NORM as a guard. In the second half of the 50 steps the guard
may act on fewer than one step in ten. `train` gets raw areas and rooms (8 flats or more, neither
column constant) and returns whatever `predict` needs, and a log with one entry a step: "loss" and
"gradient_norm" of that step, as numbers. `predict` gives prices, shape (flats, 1), of any flats
after any number of steps; one flat alone gets the price that it gets among others.
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
    price = 0.02 * (area - 120) + 0.3 * (rooms - 3) + noise * torch.randn(count, generator=generator)
    return torch.stack([area, rooms], dim=1), price[:, None]


def clip(parameters):
    """Shorten the gradient to MAX_NORM where it is longer; return its norm."""
    gradients = [parameter.grad for parameter in parameters]
    torch.nn.utils.clip_grad_norm_(parameters, MAX_NORM)
    return torch.nn.utils.get_total_norm(gradients)


def train(x, y, steps=STEPS):
    """Fit the model to some flats; return it with its log."""
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
    return model, log


def predict(model, x):
    """Prices of some flats, shape (flats, 1)."""
    with torch.inference_mode():
        return model(x)


if __name__ == "__main__":
    model, log = train(*flats())
    for step in (0, 1, 2, STEPS // 2, STEPS - 1):
        print("step {:3d}  loss {loss:8.3f}  gradient norm {gradient_norm:7.3f}".format(step, **log[step]))
    x, y = flats(seed=1)
    error = (predict(model, x) - y).pow(2).mean().item()
    print(f"squared error on new flats {error:.3f}; of always saying the mean {y.var().item():.3f}; noise 0.010")
