"""A network learns a map of places from pairs of pictures; the worked run of the lesson on non-finite values."""

import torch
from torch import nn

STEPS = 30
BATCH = 16


def pictures(count=120, seed=0):
    """Features of pictures, shape (pictures, 5), and the places where they were taken, shape (pictures, 2)."""
    generator = torch.Generator().manual_seed(seed)
    places = torch.rand(count, 2, generator=generator)
    lift = torch.randn(2, 5, generator=generator)
    return torch.tanh(places @ lift), places


def distance(a, b):
    """Euclidean distance between rows, shape (rows,)."""
    return (a - b).pow(2).sum(dim=1).sqrt()


def compute_loss(model, features, places, pairs):
    """Mean squared difference between the distance on the map and the true one."""
    first, second = pairs
    wanted = (places[first] - places[second]).norm(dim=1)
    found = distance(model(features[first]), model(features[second]))
    return (found - wanted).pow(2).mean()


def build(seed=0):
    """A network from features to the map, and its optimizer."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, 2))
    return model, torch.optim.Adam(model.parameters(), lr=0.01)


def batches(count=120, seed=5):
    """Pairs of pictures, drawn with replacement: now and then a picture is paired with itself."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(STEPS):
        yield torch.randint(count, (2, BATCH), generator=generator)
