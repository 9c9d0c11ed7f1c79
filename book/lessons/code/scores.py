"""Words of short messages get tags; the worked run of the lesson on freezing a failure."""

import torch
from torch import nn

WORDS, TAGS, PAD = 60, 6, 0
STEPS, BATCH = 40, 32


def messages(count=320, seed=0):
    """Padded messages and their tags, shape (count, 9) each; tag -100 marks padding."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(1, WORDS, (count, 9), generator=generator)
    lengths = torch.randint(3, 10, (count,), generator=generator)
    ids[torch.arange(9) >= lengths[:, None]] = PAD
    tags = torch.where(ids == PAD, -100, ids % TAGS)
    return ids, tags


class Tagger(nn.Module):
    """Scores of all tags for every word."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(WORDS, 16, padding_idx=PAD)
        self.body = nn.Linear(16, 32)
        self.head = nn.Linear(32, TAGS)

    def forward(self, ids):
        return self.head(torch.tanh(self.body(self.embedding(ids))))


def log_shares(scores):
    """Logarithm of the share of each tag, shape (words, tags)."""
    weights = scores.exp()
    return (weights / weights.sum(-1, keepdim=True)).log()


def compute_loss(model, ids, tags, precision):
    """Mean loss of the real words, computed in the precision of the run."""
    scores = model(ids).to(precision)
    real = tags != -100
    return nn.functional.nll_loss(log_shares(scores[real]).float(), tags[real])


def build(seed=0):
    """A tagger and its optimizer."""
    torch.manual_seed(seed)
    model = Tagger()
    return model, torch.optim.Adam(model.parameters(), lr=0.05)


def batches(ids, tags, seed=1):
    """Batches in a shuffled order."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(STEPS):
        rows = torch.randint(0, len(ids), (BATCH,), generator=generator)
        yield ids[rows], tags[rows]


def train(precision):
    """Train, and return the losses."""
    model, optimizer = build()
    losses = []
    for ids, tags in batches(*messages()):
        optimizer.zero_grad()
        loss = compute_loss(model, ids, tags, precision)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses
