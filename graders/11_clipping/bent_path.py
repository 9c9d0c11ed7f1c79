"""The clipped steps do not point where the gradient points."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rerail.checks import Edit, Failed, Trap
from rerail.evidence import Evidence

LAYER, MINUTES, ORDER, POINTS = "update", 10, 3, 1
GRADED = ("build", "training_step")
RECORDED = {
    "losses": "what `training_step` returns, one step for each of 5 batches, each from other weights",
    "weight": "the weights before each step",
    "bias": "the bias before each step",
    "weight_after": "the weights after it",
    "bias_after": "the bias after it",
}
BASELINE = "check_steps_point_where_the_gradient_points"
HINTS = (
    "observe: print the norm of the gradient of the weight and of the bias, before and after `limit`",
    "locate: compare the proportion of the two norms before `limit` with that after it",
    "explain: the direction of a vector is the proportion of its parts; what does a factor of its own do to each part?",
    "shape of the fix: measure the length of the whole, then multiply every part by one and the same number",
)

LEARNING_RATE, MAX_NORM = 0.1, 1.0  # the script's own
SLACK = 1e-3  # rounding of float32 moves a step by less than 1e-5 of its length (20 seeds); 1e-6 is torch's epsilon

Floats = NDArray[np.float64]


def cases(seed: int) -> list[dict[str, Any]]:
    return [_days(48, 5, 2, 0), _days(13, 3, 3, seed), _days(1, 2, 1, seed + 1)]


def _days(rows: int, columns: int, towns: int, seed: int) -> dict[str, Any]:
    """Make batches on which the gradients of weight and bias differ much, the last ones with short gradients."""
    rng = np.random.default_rng(seed)
    batches = []
    for size, offset in ((0.3, 5.0), (3.0, -8.0), (0.01, 5.0), (0.2, 0.1), (0.02, 0.01)):
        x = size * rng.normal(size=(rows, columns))
        batches.append(
            {"x": x, "y": x @ rng.normal(size=(columns, towns)) + offset + 0.1 * offset * rng.normal(size=towns)}
        )
    return {"columns": columns, "towns": towns, "batches": batches}


def probe(script: Any, batch: dict[str, Any]) -> dict[str, Any]:
    """Take one step a batch, each from start values of our own, and read the model off its answers before and after."""
    import torch

    from rerail import probes

    returned = script.build(batch["columns"], batch["towns"])
    if not (isinstance(returned, tuple | list) and len(returned) == 2 and isinstance(returned[0], torch.nn.Module)):
        raise probes.Unusable(f"`build` must return a model and its optimizer, got {probes.described(returned)}")
    model, optimizer = returned
    before, after, losses = [], [], []
    for number, one in enumerate(batch["batches"]):
        probes.fill(model, seed=number, scale=0.02)  # one optimizer for all: what it keeps from step to step shows
        values = probes.tensors(one)
        before.append(probes.affine(model, batch["columns"]))
        loss = script.training_step(model, optimizer, values["x"], values["y"])
        after.append(probes.affine(model, batch["columns"]))
        losses.append(probes.number(loss, "what `training_step` returns"))
    return {
        "losses": losses,
        "weight": [weight for weight, _ in before],
        "bias": [bias for _, bias in before],
        "weight_after": [weight for weight, _ in after],
        "bias_after": [bias for _, bias in after],
    }


def _steps(run: Evidence, batch: dict[str, Any]) -> list[tuple[int, Floats, Floats]]:
    """List for every batch: its number, the step that was taken, and the gradient, both as one vector."""
    found = []
    for number, one in enumerate(batch["batches"]):
        weight, bias = run.weight[number], run.bias[number]
        residual = one["x"] @ weight.T + bias - one["y"]
        gradient = 2 / residual.size * np.concatenate([(residual.T @ one["x"]).ravel(), residual.sum(axis=0)])
        moved = [run.weight_after[number] - weight, run.bias_after[number] - bias]
        found.append((number, np.concatenate([part.ravel() for part in moved]), gradient))
    return found


def _norm(vector: Floats) -> float:
    return float(np.linalg.norm(vector))


def check_steps_point_where_the_gradient_points(run: Evidence, batch: dict[str, Any]) -> None:
    """every step points where the gradient of the loss over all parameters points"""
    for number, step, gradient in _steps(run, batch):
        if not np.any(step):
            raise Failed(f"on batch {number} the model does not move", show={"norm of the gradient": _norm(gradient)})
        along = -float(step @ gradient) / _norm(gradient)
        aside = _norm(step + along * gradient / _norm(gradient))
        if not (along > 0 and aside <= 2 * SLACK * along + 2e-7):
            angle = float(np.degrees(np.arctan2(aside, along)))
            raise Failed(
                f"on batch {number} the step stands at {angle:.1f} degrees to the gradient",
                show={"angle in degrees": angle, "expected": 0.0, "norm of the gradient": _norm(gradient)},
            )


def check_no_step_is_longer_than_the_limit(run: Evidence, batch: dict[str, Any]) -> None:
    """no step is longer than the learning rate times the limit"""
    for number, step, _ in _steps(run, batch):
        if not _norm(step) <= LEARNING_RATE * MAX_NORM * (1 + SLACK):
            raise Failed(
                f"on batch {number} the model moved further than the limit allows",
                show={"moved by": _norm(step), "allowed": LEARNING_RATE * MAX_NORM},
            )


def check_steps_have_the_length_that_clipping_leaves(run: Evidence, batch: dict[str, Any]) -> None:
    """a step is as long as the gradient, or as the limit where the gradient is longer"""
    for number, step, gradient in _steps(run, batch):
        exact = LEARNING_RATE * min(_norm(gradient), MAX_NORM)
        if not abs(_norm(step) - exact) <= SLACK * exact + 2e-7:
            raise Failed(
                f"on batch {number} the step has another length than the clipped gradient gives",
                show={"length": _norm(step), "expected": exact, "norm of the gradient": _norm(gradient)},
            )


def check_loss_is_that_before_the_step(run: Evidence, batch: dict[str, Any]) -> None:
    """the loss returned is the mean squared error before the step"""
    for number, one in enumerate(batch["batches"]):
        exact = float(np.mean((one["x"] @ run.weight[number].T + run.bias[number] - one["y"]) ** 2))
        if not abs(run.losses[number] - exact) <= 1e-3 * exact + 1e-6:
            raise Failed(
                f"the loss of batch {number} is another quantity",
                show={"this code": float(run.losses[number]), "exact": exact},
            )


LIMIT = """\
    for parameter in parameters:
        norm = parameter.grad.norm()
        if norm > MAX_NORM:
            parameter.grad.mul_(MAX_NORM / norm)
"""
CALL = "    limit(model.parameters())\n"

ACCEPTED: dict[str, list[Edit]] = {
    "torch's own, in the step": [(CALL, "    torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)\n")],
    "one norm, one factor": [
        (
            LIMIT,
            """\
    gradients = [parameter.grad for parameter in parameters]
    norm = torch.stack([g.norm() for g in gradients]).norm()
    for g in gradients:
        g.mul_(torch.clamp(MAX_NORM / norm, max=1.0))
""",
        )
    ],
    "as one vector": [
        (
            LIMIT,
            """\
    parameters = list(parameters)
    vector = torch.cat([p.grad.flatten() for p in parameters])
    vector = torch.nn.functional.normalize(vector, dim=0) * min(vector.norm().item(), MAX_NORM)
    torch.nn.utils.vector_to_parameters(vector, [p.grad for p in parameters])
""",
        )
    ],
    "one parameter that holds both": [
        (
            "    model = torch.nn.Linear(columns, towns)\n",
            """\
    class Affine(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.all = torch.nn.Parameter(torch.zeros(towns, columns + 1))

        def forward(self, x):
            return x @ self.all[:, :-1].T + self.all[:, -1]

    model = Affine()
""",
        )
    ],
    "two calls of torch": [
        (
            LIMIT,
            """\
    parameters = list(parameters)
    norm = torch.nn.utils.get_total_norm([p.grad for p in parameters])
    torch.nn.utils.clip_grads_with_norm_(parameters, MAX_NORM, norm)
""",
        )
    ],
    "a loss that is scaled": [
        (
            "    loss.backward()\n" + CALL,
            """\
    gradients = torch.autograd.grad(loss, list(model.parameters()), retain_graph=True)
    norm = torch.cat([g.flatten() for g in gradients]).norm()
    (loss * torch.clamp(MAX_NORM / norm, max=1)).backward()
""",
        )
    ],
}
TRAPS: dict[str, Trap] = {
    "a smaller limit for each": Trap(
        [("MAX_NORM / norm)", "MAX_NORM / norm / 2**0.5)")],
        "check_steps_point_where_the_gradient_points",
        "the length is right now, the proportion of weight and bias is still that of two equal halves",
    ),
    "clip every value": Trap(
        [(LIMIT, "    torch.nn.utils.clip_grad_value_(parameters, MAX_NORM)\n")],
        "check_steps_point_where_the_gradient_points",
        "with a limit for each value every value over it becomes the same: the direction bends even more",
    ),
    "no clipping": Trap(
        [(CALL, "")],
        "check_no_step_is_longer_than_the_limit",
        "the direction is right without the guard, and so is the length that it guarded against",
    ),
    "always the full length": Trap(
        [(LIMIT, "    parameters = list(parameters)\n"
                 "    norm = torch.nn.utils.get_total_norm([p.grad for p in parameters])\n"
                 "    for p in parameters:\n        p.grad.mul_(MAX_NORM / norm)\n")],
        "check_steps_have_the_length_that_clipping_leaves",
        "short gradients are stretched to the limit: near the optimum the model can no longer come to rest",
    ),
    "a smaller learning rate": Trap(
        [("LEARNING_RATE = 0.1", "LEARNING_RATE = 0.05")],
        "check_steps_point_where_the_gradient_points",
        "shorter steps in the same wrong direction",
    ),
    "the largest norm for all": Trap(
        [(LIMIT, "    parameters = list(parameters)\n    norm = max(p.grad.norm() for p in parameters)\n"
                 "    for p in parameters:\n        p.grad.mul_((MAX_NORM / norm).clamp(max=1))\n")],
        "check_no_step_is_longer_than_the_limit",
        "one factor keeps the direction; measured at the longest part alone it leaves the whole too long",
    ),
    "the sum of the norms": Trap(
        [(LIMIT, "    parameters = list(parameters)\n    norm = sum(p.grad.norm() for p in parameters)\n"
                 "    for p in parameters:\n        p.grad.mul_((MAX_NORM / norm).clamp(max=1))\n")],
        "check_steps_have_the_length_that_clipping_leaves",
        "lengths of parts at right angles do not add up: the step comes out too short",
    ),
    "each output by itself": Trap(
        [(LIMIT, "    for parameter in parameters:\n        for row in parameter.grad:\n"
                 "            row.mul_((MAX_NORM / row.norm()).clamp(max=1))\n")],
        "check_steps_point_where_the_gradient_points",
        "more parts with factors of their own, and the direction bends further",
    ),
    "momentum": Trap(
        [(LIMIT, "    torch.nn.utils.clip_grad_norm_(parameters, MAX_NORM)\n"),
         ("lr=LEARNING_RATE)", "lr=LEARNING_RATE, momentum=0.9)")],
        "check_steps_point_where_the_gradient_points",
        "every step is now a mixture of the gradients before it, so no step points where the one at hand does",
    ),
    "report a calmer loss": Trap(
        [(LIMIT, "    torch.nn.utils.clip_grad_norm_(parameters, MAX_NORM)\n"),
         ("    return loss.item()", "    return min(loss.item(), 10.0)")],
        "check_loss_is_that_before_the_step",
    ),
}  # fmt: skip
