"""The first loss is finite, and every later one is nan."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rerail.checks import Edit, Failed, Trap, after, close, function
from rerail.evidence import Evidence

LAYER, MINUTES, ORDER, POINTS = "gradient path", 15, 1, 2
GRADED = ("build", "encode", "training_step")
RECORDED = {
    "losses": "what `training_step` returns in three steps of a network of the grader: one weight a light",
    "lights": "its lights before the first step and after each",
    "shown": "what `encode` gives for these lights and for others from -1 to 2",
    "light_changed": "whether `encode` changed the light that it was given",
    "start": "what the network of `build` returns at its start",
    "moved": "what it returns after these moves",
    "training": "whether the grader's network is in training mode after each",
    "idle": "a weight of the grader's network that nothing depends on, before the first step and after each",
    "moves": "the least and the largest move of one of its parameters for gradients of 0.00001, 3 and 1",
}
BASELINE = "check_every_light_moves_by_its_gradient"
HINTS = (
    "observe: the first loss is finite. Ask `torch.isfinite(...).all()` of the light, the values shown, the loss, every"
    " gradient after `backward`, and every parameter after `step`: which is the first that says no?",
    "locate: run the first step under `torch.autograd.set_detect_anomaly(True)`. It names the first backward operation"
    " that returned nan and the line that made it; the nan itself can be older than what the values show",
    "explain: write down the slope of each branch at a light of 0 and of -0.5, then what the chain rule does with the"
    " branch that was not chosen: it multiplies its slope by 0. What is 0 times that slope?",
    "shape of the fix: choose before the operation that cannot bear the value, not after it. A dark pixel has a slope"
    " of its own, 12.92, and must get it",
)

Floats = NDArray[np.float64]

JOINT = 0.0031308  # of the line and the curve
STEPS = 3
IDLE = 1000.0  # a weight of our network that no row reads: a penalty on weights or a decay would move it
RATE, MOMENTUM = 0.02, 0.9  # of our own SGD: at 3 pixels the steepest direction contracts by 0.74 in its first step
GAMMA = 1 / 2.4


def cases(seed: int) -> list[dict[str, Any]]:
    """
    Light, shape (pixels, 3): below zero, at zero, near black, and bright, in each batch; and wanted values for each step.

    One batch has as many pixels as the script's, in one the gradient is far longer than any limit for clipping.
    """
    light = np.array(
        [
            [0.0, 0.4, -0.3],
            [0.001, 0.05, 1.2],
            [-1.0, 0.0, 0.002],
            [0.8, -0.02, 0.3],
            [1.9, 0.02, -0.6],
            [0.0, 0.0, 0.0],
            [0.1, 0.6, 0.9],
            [-0.5, -0.001, 0.25],
        ]
    )
    return [
        scene(8, 0, light=light),
        scene(5, seed),
        scene(3, seed + 1),
        scene(256, seed + 2, kinds=3),
        scene(4, seed + 3, kinds=3, size=300.0, rate=2e-5),
    ]


def scene(
    pixels: int, seed: int, *, light: Floats | None = None, kinds: int = 4, size: float = 1.0, rate: float = RATE
) -> dict[str, Any]:
    """
    Draw a batch whose path stays away from the joint, where the two slopes differ and rounding picks one.

    The first pixel is black in all steps; the others are wanted up to a fifth beyond black and white, times `size`.
    """
    rng = np.random.default_rng(seed)
    while True:
        kind = rng.permutation(np.arange(3 * pixels) % kinds).reshape(pixels, 3)
        draws = [rng.uniform(-0.9, -0.01, kind.shape), np.zeros(kind.shape), rng.uniform(0.02, 1.9, kind.shape)]
        draws += [rng.uniform(1e-4, 0.0025, kind.shape)]
        wanted = size * rng.uniform(-0.2, 1.2, (STEPS, pixels, 3))
        wanted[:, 0] = 0
        drawn = {"light": np.choose(kind, draws[:kinds]) if light is None else light, "wanted": wanted}
        batch = {"rate": rate, **{name: rounded(values) for name, values in drawn.items()}}
        lights = path(batch)
        if np.min(np.abs(lights - JOINT)) > 1e-4 and lights.min() >= -1.2 and lights.max() <= 2.2:
            return batch


def grid() -> Floats:
    """Lights from -1 to 2, and some near the joint, where another edge between line and curve shows."""
    near = [0.0025, 0.00255, 0.0029, 0.00305, 0.003105, 0.00313, 0.00319, 0.0034, 0.004]
    return rounded(np.concatenate([np.linspace(-1, 2, 60), near]).reshape(-1, 3))


def rounded(values: Floats) -> Floats:
    """Round to what float32 holds, so that the child and the judge start from one number."""
    return values.astype(np.float32).astype(np.float64)


def shown(light: Floats) -> Floats:
    """Encode light, exactly."""
    return np.where(light <= JOINT, 12.92 * light, 1.055 * np.maximum(light, JOINT) ** GAMMA - 0.055)


def slope(light: Floats) -> Floats:
    """Differentiate `shown`."""
    return np.where(light <= JOINT, 12.92, 1.055 * GAMMA * np.maximum(light, JOINT) ** (GAMMA - 1))


def path(batch: dict[str, Any]) -> Floats:
    """Follow gradient descent with momentum on the mean squared difference, shape (STEPS + 1, pixels, 3)."""
    lights, momentum = [batch["light"]], np.zeros_like(batch["light"])
    for wanted in batch["wanted"]:
        now = lights[-1]
        momentum = MOMENTUM * momentum + 2 * (shown(now) - wanted) * slope(now) / now.size
        lights.append(now - batch["rate"] * momentum)
    return np.stack(lights)


def probe(script: Any, batch: dict[str, Any]) -> dict[str, Any]:
    """
    Record what `encode` gives, three steps of a network of our own, and how the script's own run starts.

    Our network is one weight for each light (a linear layer on one-hot places), so the step of a weight is the
    gradient of the loss with respect to that light, through all of the script's step.
    """
    import torch

    from rerail.probes import OneWeightEach, Unusable, described, moves, number, tensor, tensors

    given = tensors(batch)
    light, wanted = given["light"], given["wanted"]
    lit = torch.cat([light, torch.from_numpy(grid().astype(np.float32))])
    kept = lit.clone()
    values = tensor(script.encode(lit), "what `encode` returns", tuple(lit.shape)).clone()

    model = OneWeightEach(torch.cat([light, torch.full((1, 3), IDLE)]))
    places = torch.eye(len(light), len(light) + 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=batch["rate"], momentum=MOMENTUM)
    lights, losses, training = [model.table.detach().clone()], [], []
    for step in range(STEPS):
        loss = script.training_step(model, optimizer, places.clone(), wanted[step].clone())
        losses.append(number(loss, "what `training_step` returns"))
        lights.append(model.table.detach().float().clone())
        training.append(model.training)

    own = script.build()
    if not (isinstance(own, tuple | list) and len(own) == 2 and isinstance(own[0], torch.nn.Module)):
        raise Unusable(f"what `build` returns must be a network and its optimizer, got {described(own)}")
    network, its_optimizer = own

    def answers() -> torch.Tensor:
        with torch.no_grad():
            return tensor(network(torch.linspace(-1, 1, 10).reshape(5, 2)), "what the network returns", (5, 3))

    return {
        "shown": values,
        "light_changed": not torch.equal(lit, kept),
        "lights": torch.stack(lights)[:, :-1],
        "idle": torch.stack(lights)[:, -1],
        "losses": losses,
        "training": training,
        "start": answers(),
        "moves": moves(network, its_optimizer),
        "moved": answers(),
    }


def check_encode_keeps_its_values(run: Evidence, batch: dict[str, Any]) -> None:
    """`encode` gives the values of the standard, below zero too"""
    light = np.concatenate([batch["light"], grid()])
    exact = shown(light)
    # float32 leaves 2e-7 of 12.92; the two formulas of the standard differ by 3e-8 at the joint
    if not close(run.shown, exact, rtol=1e-5, atol=2e-6):
        worst = _worst(run.shown, exact)
        raise Failed(
            f"`encode` shows a light of {light[worst]:.4g} as another value than the standard",
            show={"this code": float(run.shown[worst]), "the standard": float(exact[worst])},
        )
    if run.light_changed:
        raise Failed(
            "`encode` writes into the light that it is given: a network that ends there cannot be differentiated"
        )


def check_every_light_moves_by_its_gradient(run: Evidence, batch: dict[str, Any]) -> None:
    """each step moves every light, dark or bright, by the gradient of the mean squared difference"""
    exact = path(batch)
    for step in range(1, STEPS + 1):
        # seen over 20 seeds: right repairs differ by up to 4e-7, the nearest band-aid by 2e-3
        if not close(run.lights[step], exact[step], rtol=2e-5, atol=1e-5):
            worst = _worst(run.lights[step], exact[step])
            light = float(exact[step - 1][worst])
            raise Failed(
                f"step {step} moves {_count_off(run.lights[step], exact[step])} of {exact[step].size} lights by another"
                f" amount than the gradient of the loss; look at the light that was {light:.4g}",
                show={
                    "this code moves it by": float(run.lights[step][worst] - run.lights[step - 1][worst]),
                    "the exact gradient by": float(exact[step][worst] - exact[step - 1][worst]),
                },
            )
    if not run.training.all():
        raise Failed("`training_step` leaves the network in evaluation mode")
    if not (run.idle == IDLE).all():
        raise Failed("a weight that no pixel depends on moves: something else than the loss pulls at it")


def check_reported_loss(run: Evidence, batch: dict[str, Any]) -> None:
    """the loss reported is the mean squared difference before the step, over all pixels and colours"""
    lights = path(batch)[:STEPS]
    exact = np.mean((shown(lights) - batch["wanted"]) ** 2, axis=(1, 2))
    # seen over 3 seeds: right repairs differ by up to 3e-7 of the loss
    if not close(run.losses, exact, rtol=5e-6, atol=1e-6):
        step = int(np.argmax(~(np.abs(run.losses - exact) <= 1e-6 + 5e-6 * exact)))
        raise Failed(
            f"step {step + 1} reports another number than the loss before it",
            show={"this code": float(run.losses[step]), "exact": float(exact[step])},
        )


def check_network_and_rate_are_kept(run: Evidence, reference: Evidence) -> None:
    """`build` gives the network with its start, and its optimizer with its rate"""
    if not close(run.start, reference.start, rtol=1e-4, atol=1e-5):
        raise Failed(
            "the network from `build` starts from other light than before",
            show={
                "this code, first place": str(np.round(run.start[0], 4)),
                "before": str(np.round(reference.start[0], 4)),
            },
        )
    if not close(run.moves, reference.moves, rtol=1e-4, atol=1e-8):
        worst = int(np.argmax(np.abs(run.moves - reference.moves)))
        size = ("0.00001", "3", "1")[worst // 2]
        raise Failed(
            "the optimizer from `build` takes other steps than before",
            show={
                f"this code, for a gradient of {size}": float(run.moves[worst]),
                "before": float(reference.moves[worst]),
            },
        )
    if not close(run.moved, reference.moved, rtol=1e-3, atol=1e-3):
        raise Failed("the network from `build` is another than before: the same moves lead it to other answers")


def _worst(got: Floats, exact: Floats) -> tuple[int, ...]:
    """Return the place that is furthest off; one that is no number comes first."""
    off = np.nan_to_num(np.abs(got - exact), nan=np.inf, posinf=np.inf)
    return tuple(int(i) for i in np.unravel_index(int(np.argmax(off)), off.shape))


def _count_off(got: Floats, exact: Floats) -> int:
    return int(np.sum(~(np.abs(got - exact) <= 1e-5 + 2e-5 * np.abs(exact))))


CURVE = "    curve = 1.055 * light ** (1 / 2.4) - 0.055\n"
LINE = "    line = 12.92 * light\n"
WHERE = "    return torch.where(light <= 0.0031308, line, curve)\n"
SHOWN = "    shown = encode(model(places))\n    return"
BACKWARD = "    loss.backward()\n"
SAFE = "    curve = 1.055 * light.clamp(min=0.0031308) ** (1 / 2.4) - 0.055\n"

ACCEPTED: dict[str, list[Edit]] = {
    "a second where, before the power": [
        (
            CURVE,
            "    safe = torch.where(light > 0.0031308, light, 1.0)\n    curve = 1.055 * safe ** (1 / 2.4) - 0.055\n",
        )
    ],
    "only bright places take the power": [
        function(
            "encode",
            '''
def encode(light):
    """Values on the screen."""
    shown = 12.92 * light
    bright = light > 0.0031308
    shown[bright] = 1.055 * light[bright] ** (1 / 2.4) - 0.055
    return shown
''',
        )
    ],
    "line and curve as a sum, without where": [
        function(
            "encode",
            '''
def encode(light):
    """Values on the screen: how far along the line, and how far up the curve."""
    joint = 0.0031308
    curve = light.clamp(min=joint) ** (1 / 2.4) - joint ** (1 / 2.4)
    return 12.92 * light.clamp(max=joint) + 1.055 * curve
''',
        )
    ],
    "rectify under the power": [
        # exact: the slope of relu at 0 is 0, and its backward selects, it does not multiply
        ("light ** (1 / 2.4)", "torch.relu(light) ** (1 / 2.4)")
    ],
    "a power by way of the logarithm, in double precision": [
        (CURVE, "    safe = light.double().clamp(min=1e-6)\n    curve = 1.055 * torch.exp(safe.log() / 2.4) - 0.055\n"),
        (WHERE, "    return torch.where(light <= 0.0031308, line.double(), curve)\n"),
    ],
    "the safe input where the loss is computed": [
        (
            SHOWN,
            """    light = model(places)
    dark = light <= 0.0031308
    shown = torch.where(dark, 12.92 * light, encode(light.masked_fill(dark, 1.0)))
    return""",
        )
    ],
    "a backward of one's own": [
        (
            "def encode(light):\n",
            """class Screen(torch.autograd.Function):
    @staticmethod
    def forward(ctx, light):
        ctx.save_for_backward(light)
        curve = 1.055 * light.clamp(min=0.0031308) ** (1 / 2.4) - 0.055
        return torch.where(light <= 0.0031308, 12.92 * light, curve)

    @staticmethod
    def backward(ctx, gradient):
        (light,) = ctx.saved_tensors
        slope = 1.055 / 2.4 * light.clamp(min=0.0031308) ** (1 / 2.4 - 1)
        return gradient * torch.where(light <= 0.0031308, 12.92, slope)


def encode(light):
""",
        ),
        (WHERE, "    return Screen.apply(light)\n"),
    ],
}

TRAPS: dict[str, Trap] = {
    "nan_to_num on the gradients of the parameters": Trap(
        [
            after(
                BACKWARD,
                """    for parameter in model.parameters():
        parameter.grad = torch.nan_to_num(parameter.grad)
""",
            )
        ],
        caught_by="check_every_light_moves_by_its_gradient",
        says="nan becomes 0, and a weight that one dark pixel touches stands still: in this script all of them do, and the"
        " loss stays at 6.79 for 400 steps",
    ),
    "nan_to_num on the gradient of the light": Trap(
        [
            (
                SHOWN,
                """    light = model(places)
    if light.requires_grad:
        light.register_hook(torch.nan_to_num)
    shown = encode(light)
    return""",
            )
        ],
        caught_by="check_every_light_moves_by_its_gradient",
        says="a dark pixel now has the slope 0 where the line has 12.92: no pixel below black is ever pulled back",
    ),
    "nan_to_num on the values shown": Trap(
        [(WHERE, "    return torch.nan_to_num(torch.where(light <= 0.0031308, line, curve))\n")],
        caught_by="check_every_light_moves_by_its_gradient",
        says="the values shown were finite before: there was nothing to replace, and what is behind `where` is as it was",
    ),
    "no light below zero": Trap(
        [("    line = 12.92 * light\n", "    light = light.clamp(min=1e-6)\n    line = 12.92 * light\n")],
        caught_by="check_encode_keeps_its_values",
        says="a light of -0.3 is now shown as 0 instead of -3.876, and its slope is 0: a network that starts there stays there",
    ),
    "no light below zero under the power": Trap(
        [("light ** (1 / 2.4)", "light.clamp(min=0) ** (1 / 2.4)")],
        caught_by="check_every_light_moves_by_its_gradient",
        says="negative light is safe now, but a light of exactly 0 passes the clamp, and the slope of the power at 0 is infinite",
    ),
    "the size of the light under the power": Trap(
        [("light ** (1 / 2.4)", "light.abs() ** (1 / 2.4)")],
        caught_by="check_every_light_moves_by_its_gradient",
        says="negative light is safe now, but at a light of exactly 0 the slope of the power is still infinite",
    ),
    "a small constant under the power": Trap(
        [("light ** (1 / 2.4)", "(light + 1e-8) ** (1 / 2.4)")],
        caught_by="check_every_light_moves_by_its_gradient",
        says="it helps at exactly 0; a light of -0.3 is still below zero, and so is the nan",
    ),
    "skip the step where a gradient is not finite": Trap(
        [
            (
                "    optimizer.step()\n",
                """    if all(parameter.grad.isfinite().all() for parameter in model.parameters()):
        optimizer.step()
""",
            )
        ],
        caught_by="check_every_light_moves_by_its_gradient",
        says="every step has such a gradient, so every step is skipped: the loss stays where it started",
    ),
    "clip the gradient": Trap(
        [after(BACKWARD, "    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n")],
        caught_by="check_every_light_moves_by_its_gradient",
        says="the norm of a gradient with one nan is nan, and clipping divides all of it by that norm",
    ),
    "a smaller rate": Trap(
        [("RATE = 0.01", "RATE = 1e-5")],
        caught_by="check_every_light_moves_by_its_gradient",
        says="nan times any rate is nan",
    ),
    "start bright": Trap(
        [
            (
                "    return model, torch.optim.Adam(",
                "    torch.nn.init.constant_(model[2].bias, 2.0)\n    return model, torch.optim.Adam(",
            )
        ],
        caught_by="check_every_light_moves_by_its_gradient",
        says="no light is dark at this start; the first step that makes one dark ends the run again",
    ),
    "gamma 2.2 in the place of the standard": Trap(
        [(WHERE, "    return light.clamp(min=1e-6) ** (1 / 2.2)\n")],
        caught_by="check_encode_keeps_its_values",
        says="it is another curve: near black it shows other values, and below zero none",
    ),
    "slope 1 for every light": Trap(
        [
            (
                WHERE,
                "    shown = torch.where(light <= 0.0031308, line, curve)\n    return light + (shown - light).detach()\n",
            )
        ],
        caught_by="check_every_light_moves_by_its_gradient",
        says="every gradient is finite, and none is the gradient of this loss: the line has 12.92, the curve at 1 has 0.44",
    ),
    "compare light with light": Trap(
        [
            (
                "    shown = encode(model(places))\n    return (shown - wanted).pow(2).mean()\n",
                """    light = torch.where(wanted <= 0.04045, wanted / 12.92, ((wanted + 0.055) / 1.055) ** 2.4)
    return (model(places) - light).pow(2).mean()
""",
            )
        ],
        caught_by="check_every_light_moves_by_its_gradient",
        says="it is another loss: an error in the dark, which the eye sees, hardly counts in it",
    ),
    "the gradient by hand, and another loss": Trap(
        [
            (
                "    shown = encode(model(places))\n    return (shown - wanted).pow(2).mean()\n",
                """    light = model(places)
    safe = light.detach().clamp(min=0.0031308)
    slope = torch.where(light <= 0.0031308, 12.92, 1.055 / 2.4 * safe ** (1 / 2.4 - 1))
    return (2 * (encode(light.detach()) - wanted) * slope * light).mean()
""",
            )
        ],
        caught_by="check_reported_loss",
        says="the weights move as they should, but the number printed is no mean squared difference and may be below zero",
    ),
    "the repair, and a smaller rate to be safe": Trap(
        [(CURVE, SAFE), ("RATE = 0.01", "RATE = 0.001")],
        caught_by="check_network_and_rate_are_kept",
        says="two changes at once: whoever sees the run converge cannot tell which of them did it",
    ),
    "the repair, and a larger epsilon in the optimizer": Trap(
        [(CURVE, SAFE), ("lr=RATE)", "lr=RATE, eps=1e-3)")],
        caught_by="check_network_and_rate_are_kept",
        says="it is a remedy for divisions by 0, which is not what happened: small gradients now take smaller steps",
    ),
    "the repair, and a step by hand": Trap(
        [
            (CURVE, SAFE),
            (
                "    optimizer.step()\n",
                """    with torch.no_grad():
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter -= group["lr"] * parameter.grad
""",
            ),
        ],
        caught_by="check_every_light_moves_by_its_gradient",
        says="the optimizer is there and takes no step: what it knows of the steps before is lost",
    ),
    "the repair, and a limit on long gradients": Trap(
        [(CURVE, SAFE), after(BACKWARD, "    torch.nn.utils.clip_grad_norm_(model.parameters(), 100.0)\n")],
        caught_by="check_every_light_moves_by_its_gradient",
        says="no gradient was long, and where one is, the step is not that of the loss",
    ),
    "the repair, in evaluation mode": Trap(
        [(CURVE, SAFE), ("    optimizer.zero_grad()\n", "    optimizer.zero_grad()\n    model.eval()\n")],
        caught_by="check_every_light_moves_by_its_gradient",
        says="a network with dropout or batch norm computes something else in evaluation mode",
    ),
    "the repair, and evaluation mode afterwards": Trap(
        [
            (CURVE, SAFE),
            ("    optimizer.zero_grad()\n", "    optimizer.zero_grad()\n    model.train()\n"),
            ("    optimizer.step()\n", "    optimizer.step()\n    model.eval()\n"),
        ],
        caught_by="check_every_light_moves_by_its_gradient",
        says="the mode is the caller's: whoever goes on with this network has lost its dropout, or its batch norm",
    ),
    "dark pixels dropped": Trap(
        [
            (CURVE, SAFE),
            (
                SHOWN,
                "    lit = wanted.sum(dim=1) > 1e-3\n    shown, wanted = encode(model(places))[lit], wanted[lit]\n    return",
            ),
        ],
        caught_by="check_every_light_moves_by_its_gradient",
        says="a pixel that should be black has a wanted value as any other, and nothing pulls it there now",
    ),
    "the repair, written into the light": Trap(
        [
            (LINE, "    line = 12.92 * light\n    with torch.no_grad():\n        light.clamp_(min=0.0031308)\n"),
            (WHERE, "    return torch.where(line <= 12.92 * 0.0031308, line, curve)\n"),
        ],
        caught_by="check_encode_keeps_its_values",
        says="the light is the network's answer; whoever reads it after `encode` finds another",
    ),
    "the repair, and a penalty on the weights": Trap(
        [
            (CURVE, SAFE),
            (BACKWARD, "    (loss + 1e-4 * sum(p.pow(2).sum() for p in model.parameters())).backward()\n"),
        ],
        caught_by="check_every_light_moves_by_its_gradient",
        says="the loss reported is the squared difference, the one that is trained on is another",
    ),
}
