"""Clipping is on, and one bad batch throws the run off the road."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rerail.checks import Edit, Failed, Trap
from rerail.evidence import Evidence

LAYER, MINUTES, ORDER, POINTS = "update", 10, 2, 1
GRADED = ("build", "training_step")
RECORDED = {
    "losses": "what `training_step` returns, one step for each of 6 batches",
    "weight": "the weights before the first step and after each",
    "bias": "the bias before the first step and after each",
}
BASELINE = "check_no_step_is_longer_than_the_limit"
HINTS = (
    "observe: print the norm of the gradient right before `optimizer.step()`, and how far the model moves, at batch 20",
    "locate: follow the gradient of batch 20 through `training_step`, line by line: who reads it, and who changes it?",
    "explain: a value that is changed after its last reader has read it changes nothing",
    "shape of the fix: shorten between the making of the gradient and its use, for all parameters at once",
)

LEARNING_RATE, MAX_NORM = 0.05, 2.0  # the script's own
SLACK = 1e-3  # rounding of float32 moves a step by less than 2e-5 of its length (20 seeds); 1e-6 is torch's epsilon

Floats = NDArray[np.float64]


def cases(seed: int) -> list[dict[str, Any]]:
    return [
        _stream(4, (16, 16, 16, 16, 16, 16), 0),
        _stream(3, (7, 1, 5, 2, 31, 1), seed),
        _stream(1, (2, 3, 2, 5, 1, 2), seed + 1),
    ]


def _stream(columns: int, sizes: tuple[int, ...], seed: int) -> dict[str, Any]:
    """Make batches: quiet ones, one with a wild row, one with a wild label, and quiet ones in between."""
    rng = np.random.default_rng(seed)
    batches = [{"x": 0.3 * rng.normal(size=(n, columns)), "y": 0.3 * rng.normal(size=(n, 1))} for n in sizes]
    batches[1]["x"][0] = 900.0 * rng.choice([-1, 1], size=columns)
    batches[3]["y"][0] = 5000.0
    batches[5]["x"] *= 1e-3
    return {"columns": columns, "batches": batches}


def probe(script: Any, batch: dict[str, Any]) -> dict[str, Any]:
    """Take one step a batch from start values of our own, and read the model off its answers before and after each."""
    import torch

    from rerail import probes

    returned = script.build(batch["columns"])
    if not (isinstance(returned, tuple | list) and len(returned) == 2 and isinstance(returned[0], torch.nn.Module)):
        raise probes.Unusable(f"`build` must return a model and its optimizer, got {probes.described(returned)}")
    model, optimizer = returned
    probes.fill(model, seed=3)
    models, losses = [probes.affine(model, batch["columns"])], []
    for one in batch["batches"]:
        values = probes.tensors(one)
        loss = script.training_step(model, optimizer, values["x"], values["y"])
        losses.append(probes.number(loss, "what `training_step` returns"))
        models.append(probes.affine(model, batch["columns"]))
    return {"losses": losses, "weight": [weight[0] for weight, _ in models], "bias": [bias[0] for _, bias in models]}


def _steps(run: Evidence, batch: dict[str, Any]) -> list[tuple[int, Floats, Floats]]:
    """List for every batch: its number, the step that was taken, and the gradient at which it was taken."""
    found = []
    for number, one in enumerate(batch["batches"]):
        before = np.append(run.weight[number], run.bias[number])
        after = np.append(run.weight[number + 1], run.bias[number + 1])
        inputs = np.column_stack([one["x"], np.ones(len(one["x"]))])
        gradient = 2 / len(inputs) * inputs.T @ (inputs @ before - one["y"][:, 0])
        found.append((number, after - before, gradient))
    return found


def _norm(vector: Floats) -> float:
    return float(np.linalg.norm(vector))


def check_quiet_steps_are_those_of_the_gradient(run: Evidence, batch: dict[str, Any]) -> None:
    """a step whose gradient is within the limit is the step of that gradient"""
    for number, step, gradient in _steps(run, batch):
        exact = -LEARNING_RATE * gradient
        if _norm(gradient) <= MAX_NORM and not _norm(step - exact) <= SLACK * _norm(exact) + 2e-6:
            raise Failed(
                f"batch {number} has a gradient of norm {_norm(gradient):.3g}, within the limit of {MAX_NORM}, "
                "and the step is not that of the gradient",
                show={"length of the step": _norm(step), "learning rate times norm": _norm(exact)},
            )


def check_no_step_is_longer_than_the_limit(run: Evidence, batch: dict[str, Any]) -> None:
    """no step is longer than the learning rate times the limit"""
    for number, step, gradient in _steps(run, batch):
        if not _norm(step) <= LEARNING_RATE * MAX_NORM * (1 + SLACK):
            raise Failed(
                f"batch {number} moved the model further than the limit allows",
                show={
                    "moved by": _norm(step),
                    "allowed": LEARNING_RATE * MAX_NORM,
                    "norm of its gradient": _norm(gradient),
                },
            )


def check_shortened_steps_keep_the_direction(run: Evidence, batch: dict[str, Any]) -> None:
    """a step whose gradient is longer than the limit has the gradient's direction and the limit's length"""
    for number, step, gradient in _steps(run, batch):
        exact = -LEARNING_RATE * MAX_NORM * gradient / max(_norm(gradient), MAX_NORM)
        if _norm(gradient) > MAX_NORM and not _norm(step - exact) <= SLACK * _norm(exact):
            cosine = float(step @ exact / (_norm(step) * _norm(exact))) if _norm(step) > 0 else 0.0
            raise Failed(
                f"batch {number} has a gradient of norm {_norm(gradient):.3g}, and the step is not its shortened form",
                show={
                    "length of the step": _norm(step),
                    "expected": LEARNING_RATE * MAX_NORM,
                    "cosine to the gradient": cosine,
                },
            )


def check_loss_is_that_before_the_step(run: Evidence, batch: dict[str, Any]) -> None:
    """the loss returned is the mean squared error before the step"""
    for number, one in enumerate(batch["batches"]):
        exact = float(np.mean((one["x"] @ run.weight[number] + run.bias[number] - one["y"][:, 0]) ** 2))
        if not abs(run.losses[number] - exact) <= 1e-3 * exact + 1e-6:
            raise Failed(
                f"the loss of batch {number} is another quantity",
                show={"this code": float(run.losses[number]), "exact": exact},
            )


CLIP = "    torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)\n"
STEP = "    optimizer.step()\n"
BACK = "    loss.backward()\n"
BODY = STEP + CLIP
RATE = "lr=LEARNING_RATE)\n"

ACCEPTED: dict[str, list[Edit]] = {
    "gradients cleared first": [
        (BODY + "    optimizer.zero_grad()\n", CLIP + STEP),
        ("    loss = torch", "    optimizer.zero_grad()\n    loss = torch"),
    ],
    "by hand, one factor": [
        (
            BODY,
            """\
    gradients = [p.grad for p in model.parameters()]
    norm = torch.sqrt(sum(g.pow(2).sum() for g in gradients))
    if norm > MAX_NORM:
        for g in gradients:
            g.mul_(MAX_NORM / norm)
"""
            + STEP,
        )
    ],
    "a hook of the optimizer": [
        (BODY, STEP),
        (
            "    return model, torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)\n",
            """\
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    optimizer.register_step_pre_hook(
        lambda *_: (torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM), None)[1]
    )
    return model, optimizer
""",
        ),
    ],
    "gradients without backward": [
        (
            BACK + BODY + "    optimizer.zero_grad()\n",
            """\
    parameters = list(model.parameters())
    gradients = torch.autograd.grad(loss, parameters)
    factor = (MAX_NORM / torch.nn.utils.get_total_norm(gradients)).clamp(max=1)
    with torch.no_grad():
        for parameter, gradient in zip(parameters, gradients):
            parameter -= LEARNING_RATE * factor * gradient
""",
        )
    ],
    "the movement shortened afterwards": [
        (
            BODY,
            """\
    before = [p.detach().clone() for p in model.parameters()]
    optimizer.step()
    moves = [p.detach() - b for p, b in zip(model.parameters(), before)]
    length = torch.cat([m.flatten() for m in moves]).norm()
    factor = (LEARNING_RATE * MAX_NORM / length).clamp(max=1)
    with torch.no_grad():
        for p, b, m in zip(model.parameters(), before, moves):
            p.copy_(b + factor * m)
""",
        )
    ],
}
TRAPS: dict[str, Trap] = {
    "a smaller limit": Trap(
        [("MAX_NORM = 2.0", "MAX_NORM = 0.1")],
        "check_no_step_is_longer_than_the_limit",
        "the smaller limit is as idle as the larger one: batch 20 moves the model just as far",
    ),
    "a smaller learning rate": Trap(
        [("LEARNING_RATE = 0.05", "LEARNING_RATE = 0.0005")],
        "check_quiet_steps_are_those_of_the_gradient",
        "every step is a hundred times shorter, those of good batches too; the bad one still goes furthest",
    ),
    "clip before backward": Trap(
        [(BODY, STEP), (BACK, CLIP + BACK)],
        "check_no_step_is_longer_than_the_limit",
        "before `backward` there is no gradient of this batch to shorten",
    ),
    "clip every value": Trap(
        [(BODY, "    torch.nn.utils.clip_grad_value_(model.parameters(), MAX_NORM)\n" + STEP)],
        "check_no_step_is_longer_than_the_limit",
        "a limit for each value is none for the vector, and the values that are cut bend its direction",
    ),
    "leave the bad batch out": Trap(
        [
            (
                BODY,
                """\
    if torch.nn.utils.get_total_norm([p.grad for p in model.parameters()]) <= MAX_NORM:
        optimizer.step()
""",
            )
        ],
        "check_shortened_steps_keep_the_direction",
        "a batch that is left out teaches nothing; the task keeps every batch",
    ),
    "always the full length": Trap(
        [
            (
                BODY,
                """\
    norm = torch.nn.utils.get_total_norm([p.grad for p in model.parameters()])
    for p in model.parameters():
        p.grad.mul_(MAX_NORM / norm)
"""
                + STEP,
            )
        ],
        "check_quiet_steps_are_those_of_the_gradient",
        "short gradients are stretched now: near the optimum the model can no longer come to rest",
    ),
    "clip the weights": Trap(
        [
            (
                BODY,
                STEP
                + """\
    with torch.no_grad():
        for p in model.parameters():
            p.clamp_(-30, 30)
""",
            )
        ],
        "check_no_step_is_longer_than_the_limit",
        "the weights stay small, and batch 20 still throws them from one side to the other",
    ),
    "a loss that does not mind outliers": Trap(
        [("torch.nn.functional.mse_loss", "torch.nn.functional.smooth_l1_loss")],
        "check_quiet_steps_are_those_of_the_gradient",
        "this is another loss, also for the good rows",
    ),
    "each tensor by itself": Trap(
        [(BODY, "    for p in model.parameters():\n        torch.nn.utils.clip_grad_norm_([p], MAX_NORM)\n" + STEP)],
        "check_no_step_is_longer_than_the_limit",
        "two tensors of the limit's length make a vector that is longer than the limit",
    ),
    "report a calmer loss": Trap(
        [(BODY, CLIP + STEP), ("    return loss.item()", "    return min(loss.item(), 10.0)")],
        "check_loss_is_that_before_the_step",
        "the steps are right; the log now hides the batch that needs looking at",
    ),
}
