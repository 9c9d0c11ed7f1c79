"""
Clipping is on, and one bad batch throws the run off the road.

Sensors report the fuel flow of an engine. Every step calls the clip, so that no batch can move the
model far. In batch 20 a sensor fails for one row, and the loss of all later batches shows it.

Task: no step may move the model by more than LEARNING_RATE times MAX_NORM. A step whose gradient
is not longer than MAX_NORM must stay exactly the step of that gradient. A longer gradient keeps
its direction and is made MAX_NORM long: weights and bias together are one vector, and its length
is what counts. Keep the linear model, the loss, SGD without momentum, its learning rate, MAX_NORM,
and every row of every batch.
`build` makes the model and its optimizer for a number of columns. `training_step` takes one step
on one batch of any size, whatever the batch before was. It returns the loss before the step, a
number.
Graded: `build`, `training_step`. Run it: python exercises/11_clipping/no_limit.py
"""
import torch

LEARNING_RATE = 0.05
MAX_NORM = 2.0
BATCHES = 40


def stream(columns=4, rows=16, seed=0):
    """Readings, shape (rows, columns), and flows, shape (rows, 1); a row of batch 20 is off."""
    generator = torch.Generator().manual_seed(seed)
    truth = torch.randn(columns, 1, generator=generator)
    for number in range(BATCHES):
        readings = torch.randn(rows, columns, generator=generator)
        flow = readings @ truth + 0.05 * torch.randn(rows, 1, generator=generator)
        if number == 20:
            readings[3] = 900.0
        yield readings, flow


def build(columns=4):
    """A linear model and its optimizer."""
    torch.manual_seed(1)
    model = torch.nn.Linear(columns, 1)
    return model, torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)


def training_step(model, optimizer, readings, flow):
    """Take one clipped step on a batch and return the loss before it."""
    loss = torch.nn.functional.mse_loss(model(readings), flow)
    loss.backward()
    # `step` reads the gradient: what is shortened after it is a gradient that nobody uses any more
    torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)
    optimizer.step()
    optimizer.zero_grad()
    return loss.item()


if __name__ == "__main__":
    model, optimizer = build()
    for number, (readings, flow) in enumerate(stream()):
        start = torch.nn.utils.parameters_to_vector(model.parameters()).detach()
        loss = training_step(model, optimizer, readings, flow)
        moved = torch.nn.utils.parameters_to_vector(model.parameters()) - start
        if number in (0, 10, 19, 20, 21, 22, BATCHES - 1):
            distance = moved.norm().item()
            print(f"batch {number:2d}  loss {loss:14.4f}  the model moved by {distance:12.4f}")
