"""A linear tagger of sequences, trained with clipping; the worked run of the lesson on clipping."""

import torch
from torch.nn import functional as F

LEARNING_RATE = 2.0
MAX_NORM = 1.0
STEPS = 300
FEATURES, TAGS = 8, 4


def sequences(count=200, seed=0):
    """Sequences of 5 to 200 tokens, and a tag for each token."""
    generator = torch.Generator().manual_seed(seed)
    truth = torch.linspace(-2, 2, FEATURES * TAGS)[
        torch.randperm(FEATURES * TAGS, generator=torch.Generator().manual_seed(9))
    ]
    truth = truth.reshape(FEATURES, TAGS)
    lengths = torch.randint(5, 201, (count,), generator=generator)
    inputs = [torch.randn(length, FEATURES, generator=generator) for length in lengths.tolist()]
    noise = [-torch.log(-torch.log(torch.rand(len(x), TAGS, generator=generator))) for x in inputs]
    tags = [(x @ truth + n).argmax(dim=1) for x, n in zip(inputs, noise)]
    return inputs, tags


def batch_loss(model, inputs, tags):
    """Cross-entropy over the tokens of a batch."""
    parts = [F.cross_entropy(model(x), y, reduction="sum") for x, y in zip(inputs, tags)]
    return sum(parts)


def training_step(model, optimizer, inputs, tags):
    """Take one clipped step; return the norm before and after clipping."""
    optimizer.zero_grad()
    batch_loss(model, inputs, tags).backward()
    before = torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)
    after = torch.nn.utils.get_total_norm([p.grad for p in model.parameters()])
    optimizer.step()
    return before.item(), after.item()


def train(step=training_step, seed=0):
    """Train on batches of four sequences; return the model and a log."""
    inputs, tags = sequences()
    held_out = sequences(seed=1)
    everything = torch.cat(held_out[0]), torch.cat(held_out[1])
    torch.manual_seed(seed)
    model = torch.nn.Linear(FEATURES, TAGS)
    torch.nn.init.zeros_(model.weight)
    torch.nn.init.zeros_(model.bias)
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    log = []
    for _ in range(STEPS):
        chosen = torch.randint(len(inputs), (4,)).tolist()
        batch = [inputs[i] for i in chosen], [tags[i] for i in chosen]
        before, after = step(model, optimizer, *batch)
        with torch.inference_mode():
            loss = F.cross_entropy(model(everything[0]), everything[1]).item()
        tokens = sum(len(x) for x in batch[0])
        log.append({"loss": loss, "before": before, "after": after, "tokens": tokens})
    return model, log
