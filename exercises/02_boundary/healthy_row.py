"""
The loss of one row is nan, and so is the loss of all the others without it.

The sentences of a batch, padded to one width, are averaged to a vector each, scored, and spread
out. The loss of 256 sentences is nan. To get something small to look at, rows are taken away as
long as the rest still fails. One row remains; it looks like any other, and the 255 rows that are
left over without it fail as before.

Task: make `smallest` find the rows that the failure needs. A batch fails as another does where both
raise an exception of one type, or where one and the same stage is the first in both to hold a
number that is not finite. What `smallest` returns fails as the whole batch does, and none of its
rows can be taken away without losing that failure. `forward` may be any function from a batch,
which it leaves as it is, to its stages: tensors by name, in the order in which they come about. It
asks for no gradients, it may raise, and a few rows need not have all stages. A batch is a mapping
from names to tensors with the rows first; it fails, its failure needs one to three rows together,
and a part that fails as the whole does keeps failing so when rows are added. `smallest` leaves the
batch as it is, and returns whole rows of it, under all of its names.
Graded: `smallest`. Run it: python exercises/02_boundary/healthy_row.py
"""
import torch

ROWS, WIDTH, FEATURES, CLASSES = 256, 24, 6, 4


def sentences(seed=0):
    """A padded batch: values, which of them are words, labels, and the number of each row."""
    generator = torch.Generator().manual_seed(seed)
    words = torch.randint(3, WIDTH, (ROWS,), generator=generator)
    mask = torch.arange(WIDTH) < words[:, None]
    values = torch.randn(ROWS, WIDTH, FEATURES, generator=generator)
    values = values.masked_fill(~mask[..., None], 0)
    values[132, -1] = float("inf")
    labels = torch.randint(CLASSES, (ROWS,), generator=generator)
    return {"values": values, "mask": mask, "labels": labels, "number": torch.arange(ROWS)}


def forward(batch):
    """Stages of the loss in the order in which they come about."""
    words = batch["mask"][..., None].float()
    pooled = (batch["values"] * words).sum(dim=1) / words.sum(dim=1)
    logits = pooled @ torch.linspace(-1, 1, FEATURES * CLASSES).reshape(FEATURES, CLASSES)
    entropy = torch.nn.functional.cross_entropy(logits, batch["labels"], reduction="none")
    centred = pooled - pooled.mean(dim=0)
    spread = (centred.pow(2).sum(dim=0) / (len(pooled) - 1)).sqrt()
    loss = entropy.mean() + torch.relu(1 - spread).mean()
    return {"pooled": pooled, "logits": logits, "entropy": entropy, "spread": spread, "loss": loss}


def take(batch, rows):
    """The given rows of a batch."""
    return {name: tensor[rows] for name, tensor in batch.items()}


def fails(forward, batch):
    """Whether a batch raises an exception or has a stage that is not finite."""
    try:
        stages = forward(batch)
    except Exception:
        return True
    return not all(bool(stage.isfinite().all()) for stage in stages.values())


def smallest(forward, batch):
    """Take rows away, in blocks and at last one by one, as long as the rest fails."""
    rows = list(range(len(next(iter(batch.values())))))
    block = len(rows)
    while block > 1:
        block = (block + 1) // 2
        start = 0
        while start < len(rows):
            rest = rows[:start] + rows[start + block :]
            if rest and fails(forward, take(batch, rest)):
                rows = rest
            else:
                start += block
    return take(batch, rows)


def report(name, batch):
    """Say in one line what a batch holds and what its loss is."""
    rows, width = batch["mask"].shape
    print(f"{name}: {rows} x {width} places, loss {forward(batch)['loss'].item():.3f}")


if __name__ == "__main__":
    batch = sentences()
    report("the whole batch", batch)
    found = smallest(forward, batch)
    report("the smallest batch that fails", found)
    for number, mask, values in zip(found["number"], found["mask"], found["values"]):
        for name, part in (("words", values[mask]), ("padding", values[~mask])):
            low, high = part.min().item(), part.max().item()
            print(f"  row {number}: {len(part):2} {name}, values from {low:.2f} to {high:.2f}")
    others = [row for row in range(ROWS) if row not in found["number"].tolist()]
    report("the batch without it", take(batch, others))
