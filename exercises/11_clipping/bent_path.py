"""
The clipped steps do not point where the gradient points.

A linear model forecasts the demand of two towns from five measurements. An audit compares every
step with the gradient: clipping may make a step shorter, and nothing else. For most of the run the
steps stand at an angle to the gradient, and they are longer than the limit allows.

Task: a clipped step must point where the gradient of the loss over all parameters points, and must
move the model by LEARNING_RATE times MAX_NORM in all. Where the gradient is not longer than
MAX_NORM, the step must stay exactly that of the gradient. Keep the linear model, the loss, SGD
without momentum, its learning rate, and MAX_NORM.
`build` makes the model and its optimizer for some numbers of columns and towns. `training_step`
takes one step on one batch of any size and returns the loss before the step, a number. Steps that
are no longer than allowed arrive later: the loss at the end is no measure of the repair.
Graded: `build`, `training_step`. Run it: python exercises/11_clipping/bent_path.py
"""
import torch

LEARNING_RATE = 0.1
MAX_NORM = 1.0
STEPS = 60


def days(rows=48, columns=5, towns=2, seed=0):
    """Measurements, shape (rows, columns), and demands, shape (rows, towns)."""
    generator = torch.Generator().manual_seed(seed)
    x = 0.3 * torch.randn(rows, columns, generator=generator)
    effect = 2 * torch.randn(columns, towns, generator=generator)
    return x, x @ effect + 5 + 0.1 * torch.randn(rows, towns, generator=generator)


def build(columns=5, towns=2):
    """A linear model that starts at zero, and its optimizer."""
    model = torch.nn.Linear(columns, towns)
    for parameter in model.parameters():
        torch.nn.init.zeros_(parameter)
    return model, torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)


def limit(parameters):
    """Make gradients that are longer than MAX_NORM as long as that, in place."""
    for parameter in parameters:
        norm = parameter.grad.norm()
        if norm > MAX_NORM:
            parameter.grad.mul_(MAX_NORM / norm)


def training_step(model, optimizer, x, y):
    """Take one step and return the loss before it."""
    optimizer.zero_grad()
    loss = torch.nn.functional.mse_loss(model(x), y)
    loss.backward()
    limit(model.parameters())
    optimizer.step()
    return loss.item()


def audit(model, x, y):
    """The gradient at hand and the parameters, each as one vector; the run is not disturbed."""
    parameters = list(model.parameters())
    gradients = torch.autograd.grad(torch.nn.functional.mse_loss(model(x), y), parameters)
    return torch.cat([g.flatten() for g in gradients]), torch.cat([p.flatten() for p in parameters])


if __name__ == "__main__":
    x, y = days()
    model, optimizer = build()
    for step in range(STEPS):
        gradient, before = audit(model, x, y)
        loss = training_step(model, optimizer, x, y)
        moved = (audit(model, x, y)[1] - before).detach()
        cosine = torch.nn.functional.cosine_similarity(moved, -gradient, dim=0).clamp(-1, 1)
        if step in (0, 5, 10, 20, 30, STEPS - 1):
            angle = torch.rad2deg(torch.acos(cosine)).item()
            print(f"step {step:2d}  loss {loss:7.3f}  gradient norm {gradient.norm().item():6.3f}"
                  f"  step length {moved.norm().item():.3f}  angle {angle:5.1f} degrees")
