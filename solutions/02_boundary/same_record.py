"""
The records of two runs agree in every entry, and the runs go different ways.

A model learns from the words of a review how many stars it gives. After 25 steps the run is saved,
and two machines go on from there. Before they start, each writes a record of the state that it is
in. The two records are the same, line by line. The two runs give one and the same loss, once.

Task: make `record` tell runs apart. Both machines stay as they are, the second with its momentum
of zeros, and so do the names of the twelve entries; more may be added. The last five (weights,
optimizer, schedule, order, random) stand for all that is in the state of their part: they are equal
where that part is in an equal state, also if it is another object, lies elsewhere in memory or
lives in another process, and they differ where anything in it differs: one number (a nan is equal
to a nan, 0.0 is not -0.0), a dtype, a shape, the name or the place under which something stands.
The order of the names in a mapping may count or not. Each speaks of its own part alone. States are
mappings and lists of tensors (of dtypes that numpy knows), plain numbers, texts, truth values and
None. A record is what `json.dumps` can write, and is compared as that text. Making one leaves the
run, all random numbers and all settings of the process untouched.
Graded: `record`. Run it: python exercises/02_boundary/same_record.py
"""
import copy
import hashlib
import json
import platform
import sys

import torch

WORDS, REVIEWS, LENGTH, BATCH = 3000, 2000, 20, 50


def reviews(seed=0):
    """Words, shape (reviews, LENGTH), and stars, shape (reviews,); words 0 to 9 are kept free."""
    generator = torch.Generator().manual_seed(seed)
    frequent = torch.rand(REVIEWS, LENGTH, generator=generator) ** 3
    words = 10 + (frequent * (WORDS - 100)).long()
    mood = torch.randn(WORDS, generator=generator)
    return words, 3 + mood[words].mean(dim=1) * 4


def start(seed=0):
    """The model, its optimizer, the schedule of its rate, and what shuffles the reviews."""
    model = torch.nn.EmbeddingBag(WORDS, 1, mode="sum")
    torch.nn.init.zeros_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=40)
    return model, optimizer, schedule, torch.Generator().manual_seed(seed)


def train(run, words, stars, steps):
    """Take steps and return the loss before each."""
    model, optimizer, schedule, order = run
    losses = []
    for _ in range(steps):
        rows = torch.randperm(len(words), generator=order)[:BATCH]
        loss = (model(words[rows]).squeeze(1) - stars[rows]).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    return losses


def go_on(checkpoint):
    """A run that starts where the saved one stopped."""
    model, optimizer, schedule, order = run = start()
    for part, state in zip((model, optimizer, schedule), checkpoint):
        part.load_state_dict(copy.deepcopy(state))
    order.set_state(checkpoint[3])
    return run


def digest(state):
    """Short fingerprint of a state."""
    # the text of a tensor is for readers: it leaves out the middle of more than 1000 elements and
    # all digits but four; its bytes leave out neither, and tell no dtype and no shape
    if isinstance(state, torch.Tensor):
        state = [state.dtype, state.shape, state.numpy().tobytes()]
    elif isinstance(state, dict):
        state = [(name, digest(part)) for name, part in state.items()]
    elif isinstance(state, (list, tuple)):
        state = [digest(part) for part in state]
    return hashlib.sha256(repr(state).encode()).hexdigest()[:12]


def record(model, optimizer, schedule, order):
    """What must be equal for two runs to be the same run."""
    weight = next(model.parameters())
    return {
        "command": " ".join(sys.argv),
        "python": platform.python_version(),
        "torch": f"{torch.__version__}, {torch.__file__}",
        "device": str(weight.device),
        "dtype": str(weight.dtype),
        "threads": torch.get_num_threads(),
        "mode": "training" if model.training else "evaluation",
        "weights": digest(model.state_dict()),
        "optimizer": digest(optimizer.state_dict()),
        "schedule": digest(schedule.state_dict()),
        "order": digest(order.get_state()),
        "random": digest(torch.get_rng_state()),
    }


if __name__ == "__main__":
    words, stars = reviews()
    first = start()
    train(first, words, stars, 25)
    saved = *(part.state_dict() for part in first[:3]), first[3].get_state()
    second = go_on(saved)
    for state in second[1].state.values():  # this machine reads no momentum from the file
        state["momentum_buffer"].zero_()
    records = record(*first), record(*second)
    for name in records[0]:
        print(f"{name:10}", *(json.dumps(entry[name]) for entry in records), sep="  ")
    same = sum(records[0][name] == records[1][name] for name in records[0])
    print(f"{same} of {len(records[0])} entries are the same")
    for run in (first, second):
        print("losses from here on", *(f"{loss:.3f}" for loss in train(run, words, stars, 8)))
