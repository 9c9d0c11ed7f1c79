"""
The loss turns into nan at the third batch.

Three detectors listen to the clips of a forest archive. Each gives a clip one score, positive where
it hears an owl; the longer the clip, the larger its scores, and the third detector takes foxes for
owls. Volunteers vote on each clip. A linear layer learns to fuse the three scores into one
probability. Two batches go well. The third reports nan, and so does everything after it.

Task: make the run learn from every clip. Keep the scores, the votes, the batches and their order,
the network and its start, the optimizer and its rate, and the loss: the cross entropy between the
share of yes votes, a number from 0 to 1, and the probability, averaged over the clips of a batch.
It must hold, in value and in gradient, for logits (what the network returns) of up to 1,000 in size
on either side of 0, whatever the votes say. `probabilities` returns one probability a clip, shape
(clips,). `training_step` works for any network from rows of scores to one logit each, shape
(clips, 1), for any batch, of one clip too, and any optimizer. It takes one step of that optimizer,
with the network in the mode in which it is, and returns the loss before that step as one number.
Graded: `build`, `probabilities`, `training_step`.
Run it: python exercises/09_first_nonfinite/third_batch.py
"""
import torch

RATE = 0.01
EPOCHS = 20
CLIPS, BATCH = 240, 30


def archive(seed=1):
    """Scores, shape (clips, 3), and shares of yes votes, shape (clips,); short clips first."""
    generator = torch.Generator().manual_seed(seed)
    seconds = 2 ** torch.linspace(0, 6, CLIPS)
    owl = torch.randn(CLIPS, generator=generator)
    hiss = torch.randn(CLIPS, 3, generator=generator)
    scores = 2 * seconds[:, None] * (owl[:, None] + hiss)
    fox = torch.rand(CLIPS, generator=generator) < 0.3
    scores[:, 2] += 6 * seconds * fox
    chance = torch.sigmoid(2 * owl)
    votes = torch.bernoulli(chance.expand(3, CLIPS), generator=generator).mean(dim=0)
    return scores, votes


def build():
    """A linear layer that starts as the mean of the three scores, and its optimizer."""
    model = torch.nn.Linear(3, 1)
    torch.nn.init.constant_(model.weight, 1 / 3)
    torch.nn.init.zeros_(model.bias)
    return model, torch.optim.Adam(model.parameters(), lr=RATE)


def probabilities(model, scores):
    """Probability of an owl, one a clip."""
    return torch.sigmoid(model(scores).squeeze(1))


def cross_entropy(logit, votes):
    """Cross entropy between the share of yes votes and the probability, averaged over the clips."""
    # a float32 probability is exactly 1 from a logit of 17 on and exactly 0 from -89 down: what the
    # logarithm needs is lost there, so it is taken of the logit, which still has it
    yes = votes * torch.nn.functional.logsigmoid(logit)
    no = (1 - votes) * torch.nn.functional.logsigmoid(-logit)
    return -(yes + no).mean()


def training_step(model, optimizer, scores, votes):
    """Take one step and return the loss before it."""
    optimizer.zero_grad()
    loss = cross_entropy(model(scores).squeeze(1), votes)
    loss.backward()
    optimizer.step()
    return loss.item()


if __name__ == "__main__":
    scores, votes = archive()
    model, optimizer = build()
    for epoch in range(EPOCHS):
        losses = [
            training_step(model, optimizer, *batch)
            for batch in zip(scores.split(BATCH), votes.split(BATCH))
        ]
        if epoch in (0, EPOCHS - 1):
            print(f"epoch {epoch:2d}  loss by batch", *(f"{loss:.3f}" for loss in losses))
    with torch.no_grad():
        agree = (probabilities(model, scores) > 0.5) == (votes > 0.5)
    print("weights", *(f"{weight:.3f}" for weight in model.weight[0].tolist()))
    print(f"on the side of the votes: {agree.float().mean().item():.1%} of the clips")
