"""Three runs whose curves have one shape: training loss falls, validation loss rises. Each has another cause."""

import torch
from torch import nn

EPOCHS = 60
LEARNING_RATE = 0.01


def rows(count, seed):
    """Twenty raw measurements a row, far from zero; the class depends on three of them, and not without noise."""
    generator = torch.Generator().manual_seed(seed)
    x = 5 + 3 * torch.randn(count, 20, generator=generator)
    signal = (x[:, 0] + x[:, 1] - x[:, 2] - 5) / 3
    y = (signal + torch.randn(count, generator=generator) > 0).long()
    return x, y


def standardize(x, mean, deviation):
    """Put columns on one scale, with the statistics of the training rows."""
    return (x - mean) / deviation


class Run:
    """A model, its two data paths, and the history of one training."""

    def __init__(self, kind, seed=0):
        self.kind = kind
        x, y = rows(60 if kind == "A" else 2000, seed)
        x_validation, y_validation = rows(500, seed + 100)
        self.mean, self.deviation = x.mean(0), x.std(0)
        self.raw, self.labels = x, y
        self.inputs = standardize(x, self.mean, self.deviation)
        self.validation = self.validation_path(x_validation, y_validation)
        torch.manual_seed(seed)
        self.model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 2))
        self.history = []

    def validation_path(self, x, y):
        """What happens to raw rows before they are scored."""
        if self.kind == "B":
            y = 1 - y  # the validation file lists the classes otherwise
        if self.kind != "C":  # C: the scaler is not applied here
            x = standardize(x, self.mean, self.deviation)
        return x, y

    def loss(self, x, y):
        """Mean cross-entropy and accuracy, without recording gradients."""
        with torch.inference_mode():
            logits = self.model(x)
            accuracy = (logits.argmax(1) == y).double().mean().item()
            return nn.functional.cross_entropy(logits, y).item(), accuracy

    def record(self):
        """Append one row to the history."""
        train, _ = self.loss(self.inputs, self.labels)
        validation, accuracy = self.loss(*self.validation)
        row = {
            "train_loss": train,
            "validation_loss": validation,
            "accuracy": accuracy,
        }
        self.history.append(row)

    def train(self):
        """Train, recording before the first step and after every epoch."""
        optimizer = torch.optim.Adam(self.model.parameters(), lr=LEARNING_RATE)
        self.record()
        for _ in range(EPOCHS):
            order = torch.randperm(len(self.inputs))
            for batch in order.split(100):
                optimizer.zero_grad()
                logits = self.model(self.inputs[batch])
                nn.functional.cross_entropy(logits, self.labels[batch]).backward()
                optimizer.step()
            self.record()
        return self
