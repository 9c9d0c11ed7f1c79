"""
The first loss is finite, and every later one is nan.

A small network learns a photograph of a street at night: it maps a place in the picture to light
(red, green, blue), and `encode` turns light into the values that a screen shows. The first step
reports a loss like any other. The second step reports nan, and so does every step after it.

Task: make the run learn the picture. Keep the network and its start, the optimizer and its rate,
the 400 steps, and the loss: the mean, over all pixels and colours, of the squared difference
between shown and wanted values. `encode` keeps its value for every light from -1 to 2: the curve
of the sRGB standard, whose straight line goes on below zero. It leaves the light as it is that it
is given. `training_step` works for any network that turns rows of places into rows of light, for
any batch and optimizer. It takes one step of that optimizer, with the network in the mode in which
it is, and returns the loss before that step as one number.
Graded: `build`, `encode` (its values), `training_step`.
Run it: python exercises/09_first_nonfinite/second_step.py
"""
import torch

RATE = 0.01
STEPS = 400


def street(side=16):
    """Places in [-1, 1] x [-1, 1] and the values a screen shows there: two lamps in the dark."""
    axis = torch.linspace(-1, 1, side)
    places = torch.cartesian_prod(axis, axis)
    lamps = torch.tensor([[-0.4, 0.5], [0.6, -0.2]])
    colours = torch.tensor([[0.9, 0.6, 0.2], [0.3, 0.5, 0.8]])
    glow = torch.exp(-4 * (places[:, None] - lamps).pow(2).sum(dim=-1))
    return places, encode(glow @ colours)


def build(seed=0):
    """A network from places to light, and its optimizer."""
    torch.manual_seed(seed)
    model = torch.nn.Sequential(
        torch.nn.Linear(2, 64),
        torch.nn.Tanh(),
        torch.nn.Linear(64, 3),
    )
    return model, torch.optim.Adam(model.parameters(), lr=RATE)


def encode(light):
    """Values on the screen: a line up to 0.0031308, a power of the light above (IEC 61966-2-1)."""
    line = 12.92 * light
    # the power's slope is infinite at 0 and nan below, and `where` multiplies it by 0, which is
    # nan: the branch that is thrown away needs an input at which its slope is finite
    curve = 1.055 * light.clamp(min=0.0031308) ** (1 / 2.4) - 0.055
    return torch.where(light <= 0.0031308, line, curve)


def compute_loss(model, places, wanted):
    """Mean squared difference between the values shown and the values wanted."""
    shown = encode(model(places))
    return (shown - wanted).pow(2).mean()


def training_step(model, optimizer, places, wanted):
    """Take one step and return the loss before it."""
    optimizer.zero_grad()
    loss = compute_loss(model, places, wanted)
    loss.backward()
    optimizer.step()
    return loss.item()


if __name__ == "__main__":
    places, wanted = street()
    model, optimizer = build()
    for step in range(STEPS):
        loss = training_step(model, optimizer, places, wanted)
        if step in (0, 1, 2, 100, STEPS - 1):
            print(f"step {step:3d}  loss {loss:.5f}")
    with torch.no_grad():
        shown = encode(model(places))
    dark = wanted.mean(dim=1) < 0.1
    for name, part in (("dark", dark), ("lit", ~dark)):
        error = (shown - wanted)[part].abs().mean().item()
        print(f"{name:4s} pixels ({int(part.sum())} of {len(part)}): off by {error:.3f} on average")
