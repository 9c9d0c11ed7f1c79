"""The loss turns into nan at the third batch."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rerail.checks import Edit, Failed, Trap, after, close, function
from rerail.evidence import Evidence

LAYER, MINUTES, ORDER, POINTS = "values", 15, 2, 2
GRADED = ("build", "probabilities", "training_step")
RECORDED = {
    "probabilities": "what `probabilities` gives for 12 clips",
    "losses": "what `training_step` returns in three steps of a network of the grader: one weight a clip",
    "weights": "its weights before the first step and after each",
    "training": "whether it is in training mode after each",
    "start": "what the network of `build` returns at its start",
    "moved": "what it returns after these moves",
    "idle": "a weight of the grader's network that nothing depends on, before the first step and after each",
    "moves": "the least and the largest move of one of its parameters for gradients of 0.00001, 3 and 1",
}
BASELINE = "check_every_clip_pulls_at_its_logit"
HINTS = (
    "observe: stop in the third batch before `backward` and print, clip by clip, the logit, the probability, the votes and"
    " the clip's share of the loss. Which clips have a share that is not finite, and what do they have in common?",
    "locate: print 1 - p and p of these clips with `repr`, then of the logits 10, 15, 17 and 20 in float32, on both sides",
    "explain: what is p * (1 - p), the slope of the sigmoid, at such a logit? A finite loss is half of the repair: ask"
    " also for the gradient at a logit of 100 with no yes vote, which is 1 by the formula p - votes",
    "shape of the fix: the logarithm of the probability is a smooth, harmless function of the logit. Go from the logit to"
    " the loss without a stop at the probability",
)

Floats = NDArray[np.float64]

STEPS = 3
IDLE = 1000.0  # a weight of our network that no row reads: a penalty on weights or a decay would move it
MOMENTUM = 0.9  # of our own SGD
SCORE = 250.0  # the size of a score, about: with RATE * SCORE ** 2 / clips = 1 a step moves a logit by votes - p, about


def cases(seed: int) -> list[dict[str, Any]]:
    """
    Logits up to 1,000 in size, on both sides, and shares of yes votes that side with them or do not, others in each step.

    One batch has as many clips as the script's, two have one clip alone. No logit is 0: there the two halves of
    max(x, 0) - x * y + log1p(exp(-|x|)), which is right, have no slope.
    """
    logits = [1000.0, -1000.0, 300.0, -300.0, 100.0, -100.0, 100.0, -40.0, 17.0, -17.0, 2.0, -0.7]
    votes = [0.0, 1.0, 1.0, 0.0, 0.0, 1.0, 2 / 3, 1 / 3, 0.0, 1.0, 1.0, 1 / 3]
    return [
        clips(np.array(logits), np.array(votes), 0),
        drawn(7, seed),
        drawn(30, seed + 1),
        clips(np.array([1000.0]), np.array([0.0]), 1),
        clips(np.array([-900.0]), np.array([0.4]), 2),
    ]


def drawn(count: int, seed: int) -> dict[str, Any]:
    """Draw clips; the first two are sure and wrong, one on each side."""
    rng = np.random.default_rng(seed)
    logits = rng.choice([-1.0, 1.0], count) * np.exp(rng.uniform(np.log(0.5), np.log(1000), count))
    votes = np.where(rng.random(count) < 0.5, rng.integers(0, 4, count) / 3, rng.uniform(0, 1, count))
    logits[:2], votes[:2] = [rng.uniform(100, 1000), -rng.uniform(100, 1000)], [0, 1]
    return clips(logits, votes, seed)


def clips(logits: Floats, votes: Floats, seed: int) -> dict[str, Any]:
    """Split each logit into a score and a weight, both rounded to what float32 holds; draw votes for the later steps."""
    rng = np.random.default_rng([seed, 1])
    size = rng.choice([-1.0, 1.0], len(logits)) * rng.uniform(0.8, 1.2, len(logits)) * SCORE
    rate = float(np.float32(len(logits) / SCORE**2))
    later = rng.integers(0, 5, (STEPS - 1, len(logits))) / 4
    plain = {"scores": size, "weights": logits / size, "votes": np.concatenate([votes[None], later])}
    plain["heard"] = rng.normal(size=(4, 3)) * 20
    return {"rate": rate, **{name: np.float32(value).astype(np.float64) for name, value in plain.items()}}


def share(logits: Floats) -> Floats:
    """Apply the sigmoid; in double precision its exponential is kept below 1."""
    small = np.exp(-np.abs(logits))
    shares: Floats = np.where(logits > 0, 1, small) / (1 + small)
    return shares


def path(batch: dict[str, Any]) -> Floats:
    """Follow gradient descent with momentum on the mean cross entropy: logits before each step and after the last."""
    scores, weights = batch["scores"], batch["weights"]
    logits, momentum = [scores * weights], np.zeros_like(scores)
    for votes in batch["votes"]:
        momentum = MOMENTUM * momentum + (share(logits[-1]) - votes) * scores / len(scores)
        weights = weights - batch["rate"] * momentum
        logits.append(scores * weights)
    return np.stack(logits)


def probe(script: Any, batch: dict[str, Any]) -> dict[str, Any]:
    """
    Record probabilities, three steps of a network of our own, and how the script's own run starts.

    Our network has one weight for each clip (a linear layer on a diagonal of scores), so the step of a weight is the
    gradient of the loss with respect to that clip's logit, through all of the script's step.
    """
    import torch

    from rerail.probes import OneWeightEach, Unusable, described, moves, number, tensor, tensors

    given = tensors(batch)
    count = len(given["scores"])
    model = OneWeightEach(torch.cat([given["weights"], torch.tensor([IDLE])])[:, None])
    scores = torch.cat([torch.diag(given["scores"]), torch.zeros(count, 1)], dim=1)
    told = tensor(script.probabilities(model, scores.clone()), "what `probabilities` returns", (count,))

    optimizer = torch.optim.SGD(model.parameters(), lr=batch["rate"], momentum=MOMENTUM)
    weights, losses, training = [model.table.detach()[:, 0].clone()], [], []
    for votes in given["votes"]:
        loss = script.training_step(model, optimizer, scores.clone(), votes.clone())
        losses.append(number(loss, "what `training_step` returns"))
        weights.append(model.table.detach()[:, 0].float().clone())
        training.append(model.training)

    own = script.build()
    if not (isinstance(own, tuple | list) and len(own) == 2 and isinstance(own[0], torch.nn.Module)):
        raise Unusable(f"what `build` returns must be a network and its optimizer, got {described(own)}")
    network, its_optimizer = own

    def answers() -> torch.Tensor:
        with torch.no_grad():
            return tensor(network(given["heard"]), "what the network returns", (4, 1))[:, 0]

    return {
        "probabilities": told,
        "weights": torch.stack(weights)[:, :-1],
        "idle": torch.stack(weights)[:, -1],
        "losses": losses,
        "training": training,
        "start": answers(),
        "moves": moves(network, its_optimizer),
        "moved": answers(),
    }


def check_probabilities_are_kept(run: Evidence, batch: dict[str, Any]) -> None:
    """`probabilities` gives the probability of each clip"""
    logits = batch["scores"] * batch["weights"]
    exact = share(logits)
    # a logit of size 2 is right to 3e-7, and the slope of the sigmoid is 0.25 at most
    if not close(run.probabilities, exact, rtol=0, atol=1e-5):
        worst = _worst(run.probabilities, exact)
        raise Failed(
            f"`probabilities` gives a clip with the logit {logits[worst]:.4g} another number than its probability",
            show={"this code": float(run.probabilities[worst]), "exact": float(exact[worst])},
        )


def check_every_clip_pulls_at_its_logit(run: Evidence, batch: dict[str, Any]) -> None:
    """each step moves the logit of every clip by the gradient of the mean cross entropy"""
    exact, got = path(batch), run.weights * batch["scores"]
    for step in range(1, STEPS + 1):
        moved, due = got[step] - got[step - 1], exact[step] - exact[step - 1]
        # a weight of size 4 is rounded by 2e-7, which a score of 300 makes 7e-5; a move is of size 1.
        # Seen over 20 seeds: right repairs differ by up to 1.2e-4, band-aids by 0.8 and more.
        if not close(moved, due, rtol=0, atol=1e-3):
            worst = _worst(moved, due)
            raise Failed(
                f"in step {step}, {int(np.sum(~(np.abs(moved - due) <= 1e-3)))} of {len(due)} clips pull at their logit"
                f" otherwise than the cross entropy does; look at the clip with the logit {exact[step - 1][worst]:.4g}"
                f" and {batch['votes'][step - 1][worst]:.2f} of its votes yes",
                show={"this code moves the logit by": float(moved[worst]), "the exact gradient by": float(due[worst])},
            )
    if not run.training.all():
        raise Failed("`training_step` leaves the network in evaluation mode")
    if not (run.idle == IDLE).all():
        raise Failed("a weight that no clip depends on moves: something else than the cross entropy pulls at it")


def check_reported_loss(run: Evidence, batch: dict[str, Any]) -> None:
    """the loss reported is the mean cross entropy before the step"""
    logits = path(batch)[:STEPS]
    exact = np.mean(np.logaddexp(0, logits) - logits * batch["votes"], axis=1)
    # votes * logit is rounded by 6e-5 at 1,000, and the mean of such rows is what is reported
    if not close(run.losses, exact, rtol=1e-4, atol=1e-3):
        step = int(np.argmax(~(np.abs(run.losses - exact) <= 1e-3 + 1e-4 * exact)))
        raise Failed(
            f"step {step + 1} reports another number than the mean cross entropy before it",
            show={"this code": float(run.losses[step]), "exact": float(exact[step])},
        )


def check_network_and_rate_are_kept(run: Evidence, batch: dict[str, Any], reference: Evidence) -> None:
    """`build` gives the layer that starts as the mean of the three scores, and its optimizer with its rate"""
    exact = batch["heard"].mean(axis=1)
    if not close(run.start, exact, rtol=1e-4, atol=1e-4):
        raise Failed(
            "the network from `build` does not start as the mean of the scores",
            show={"this code, first clip": float(run.start[0]), "mean of its scores": float(exact[0])},
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


def _worst(got: Floats, exact: Floats) -> int:
    """Return the clip that is furthest off; one that is no number comes first."""
    return int(np.argmax(np.nan_to_num(np.abs(got - exact), nan=np.inf, posinf=np.inf)))


YES = "    yes = votes * torch.log(probability)\n"
NO = "    no = (1 - votes) * torch.log(1 - probability)\n"
CALL = "    loss = cross_entropy(probabilities(model, scores), votes)\n"
BACKWARD = "    loss.backward()\n"
LOGITS_LOSS = """    logit = model(scores).squeeze(1)
    loss = torch.nn.functional.binary_cross_entropy_with_logits(logit, votes)
"""


def _entropy(body: str) -> list[Edit]:
    """Rewrite the loss as a function of the logit."""
    source = f'def cross_entropy(logit, votes):\n    """Cross entropy, averaged over the clips."""\n{body}'
    return [
        function("cross_entropy", source),
        (CALL, CALL.replace("probabilities(model, scores)", "model(scores)[:, 0]")),
    ]


ACCEPTED: dict[str, list[Edit]] = {
    "the loss of torch that takes logits": [(CALL, LOGITS_LOSS)],
    "logsigmoid of both sides": _entropy(
        """    log_sigmoid = torch.nn.functional.logsigmoid
    return -(votes * log_sigmoid(logit) + (1 - votes) * log_sigmoid(-logit)).mean()
"""
    ),
    "softplus": _entropy("    return (torch.nn.functional.softplus(logit) - votes * logit).mean()\n"),
    "by hand, with the exponential below 1": _entropy(
        "    return (logit.clamp(min=0) - votes * logit + torch.log1p(torch.exp(-logit.abs()))).mean()\n"
    ),
    "two classes": _entropy(
        """    both = torch.stack([torch.zeros_like(logit), logit], dim=1)
    shares = torch.stack([1 - votes, votes], dim=1)
    return torch.nn.functional.cross_entropy(both, shares)
"""
    ),
    "logaddexp, summed clip by clip": _entropy(
        """    zero = torch.zeros(())
    return sum(torch.logaddexp(zero, x) - y * x for x, y in zip(logit, votes)) / len(votes)
"""
    ),
    "a distribution that is given logits": _entropy(
        "    return -torch.distributions.Bernoulli(logits=logit, validate_args=False).log_prob(votes).mean()\n"
    ),
    "the backward by hand, in double precision": _entropy(
        """    class Entropy(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, y):
            ctx.save_for_backward(x, y)
            return torch.relu(x) - x * y + torch.log1p(torch.exp(-x.abs()))

        @staticmethod
        def backward(ctx, gradient):
            x, y = ctx.saved_tensors
            return gradient * (torch.sigmoid(x) - y), None

    return Entropy.apply(logit.double(), votes.double()).mean()
"""
    ),
}

TRAPS: dict[str, Trap] = {
    "a small constant under the logarithm": Trap(
        [
            (YES, "    yes = votes * torch.log(probability + 1e-8)\n"),
            (NO, "    no = (1 - votes) * torch.log(1 - probability + 1e-8)\n"),
        ],
        caught_by="check_every_clip_pulls_at_its_logit",
        says="at a logit of 100 with no yes vote the loss is 18.42 instead of 100, and its gradient is 0 instead of 1:"
        " the clips that are most wrong teach nothing",
    ),
    "clamp the probability": Trap(
        [
            (
                "    return torch.sigmoid(model(scores).squeeze(1))\n",
                "    return torch.sigmoid(model(scores).squeeze(1)).clamp(1e-7, 1 - 1e-7)\n",
            )
        ],
        caught_by="check_every_clip_pulls_at_its_logit",
        says="where the clamp is at work its slope is 0: the clips that are most wrong teach nothing",
    ),
    "clamp the logarithm": Trap(
        [
            (YES, "    yes = votes * torch.log(probability).clamp(min=-100)\n"),
            (NO, "    no = (1 - votes) * torch.log(1 - probability).clamp(min=-100)\n"),
        ],
        caught_by="check_every_clip_pulls_at_its_logit",
        says="the logarithm behind the clamp is still -inf: its slope is infinite, and 0 times that is nan",
    ),
    "the loss of torch that takes probabilities": Trap(
        [
            (
                "    return -(yes + no).mean()\n",
                "    return torch.nn.functional.binary_cross_entropy(probability, votes)\n",
            )
        ],
        caught_by="check_every_clip_pulls_at_its_logit",
        says="it stops the logarithm at -100: no nan, but at a logit of 300 with no yes vote the loss is 100 instead of 300"
        " and the gradient 0 instead of 1",
    ),
    "clamp the logits": Trap(
        [
            (
                "    return torch.sigmoid(model(scores).squeeze(1))\n",
                "    return torch.sigmoid(model(scores).squeeze(1).clamp(-15, 15))\n",
            )
        ],
        caught_by="check_every_clip_pulls_at_its_logit",
        says="beyond 15 the loss no longer depends on the logit: its gradient is 0 where it should be 1",
    ),
    "clamp the logits of a right loss": Trap(
        [(CALL, LOGITS_LOSS.replace("squeeze(1)", "squeeze(1).clamp(-30, 30)"))],
        caught_by="check_every_clip_pulls_at_its_logit",
        says="this loss needs no clamp; with it the gradient beyond 30 is 0 where it should be 1",
    ),
    "clamp the scores": Trap(
        [(CALL, LOGITS_LOSS.replace("model(scores)", "model(scores.clamp(-15, 15))"))],
        caught_by="check_every_clip_pulls_at_its_logit",
        says="the scores are data: a score of 250 that is read as 15 makes another logit and another gradient",
    ),
    "double precision": Trap(
        [
            (
                "    return torch.sigmoid(model(scores).squeeze(1))\n",
                "    return torch.sigmoid(model(scores).squeeze(1).double())\n",
            )
        ],
        caught_by="check_every_clip_pulls_at_its_logit",
        says="in double precision 1 - p is exactly 0 from a logit of 37 on: the wall stands further out, and is the same",
    ),
    "double precision on both sides": Trap(
        _entropy(
            """    logit = logit.double()
    yes, no = torch.sigmoid(logit), torch.sigmoid(-logit)
    return -(votes * yes.log() + (1 - votes) * no.log()).mean()
"""
        ),
        caught_by="check_every_clip_pulls_at_its_logit",
        says="with two sigmoids the wall stands near a logit of 710 in double precision, where the exponential overflows",
    ),
    "nan_to_num on the loss": Trap(
        [(BACKWARD, "    loss = torch.nan_to_num(loss)\n    loss.backward()\n")],
        caught_by="check_every_clip_pulls_at_its_logit",
        says="the loss is a number now, and the gradient of the whole batch is nan or 0",
    ),
    "nan_to_num on each clip": Trap(
        [("    return -(yes + no).mean()\n", "    return -torch.nan_to_num(yes + no, neginf=-100.0).mean()\n")],
        caught_by="check_every_clip_pulls_at_its_logit",
        says="the clips that are sure get a share of the loss by decree; the gradient behind it is 0 times infinity",
    ),
    "leave out what is not finite": Trap(
        [
            (
                "    return -(yes + no).mean()\n",
                "    each = yes + no\n    return -each[each.isfinite()].mean()\n",
            )
        ],
        caught_by="check_every_clip_pulls_at_its_logit",
        says="the clips left out are the ones that the fusion is most wrong about, and the mean is over other clips",
    ),
    "leave out the sure clips, and keep the mean": Trap(
        [
            (
                CALL,
                """    logit = model(scores).squeeze(1)
    loss = torch.nn.functional.binary_cross_entropy_with_logits(logit, votes, weight=(logit.abs() < 88).float())
""",
            )
        ],
        caught_by="check_every_clip_pulls_at_its_logit",
        says="a clip with the weight 0 pulls by 0; the ones left out are those that are most wrong",
    ),
    "clip the gradient": Trap(
        [after(BACKWARD, "    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n")],
        caught_by="check_every_clip_pulls_at_its_logit",
        says="the norm of a gradient with one nan is nan, and clipping divides all of it by that norm",
    ),
    "a smaller rate": Trap(
        [("RATE = 0.01", "RATE = 1e-4")],
        caught_by="check_every_clip_pulls_at_its_logit",
        says="the logits of the third batch are large at the start, before any step: no rate changes that",
    ),
    "start with small weights": Trap(
        [("    torch.nn.init.constant_(model.weight, 1 / 3)\n", "    torch.nn.init.constant_(model.weight, 0.01)\n")],
        caught_by="check_every_clip_pulls_at_its_logit",
        says="these clips are less sure from this start; the loss breaks on the next clip with a logit of 17",
    ),
    "smooth the votes": Trap(
        [(CALL, LOGITS_LOSS.replace("(logit, votes)", "(logit, 0.98 * votes + 0.01)"))],
        caught_by="check_every_clip_pulls_at_its_logit",
        says="it is another loss: a clip with a logit of 1000 and only yes votes costs 10 in it, not 0",
    ),
    "squared error of the probabilities": Trap(
        [("    return -(yes + no).mean()\n", "    return (probability - votes).pow(2).mean()\n")],
        caught_by="check_every_clip_pulls_at_its_logit",
        says="it is another loss, and its gradient has the factor p * (1 - p), which is 0 at a logit of 100",
    ),
    "the sum of the clips": Trap(
        [(CALL, LOGITS_LOSS.replace("(logit, votes)", '(logit, votes, reduction="sum")'))],
        caught_by="check_every_clip_pulls_at_its_logit",
        says="the loss was a mean over the clips; a sum makes every step larger by their number",
    ),
    "logits in the place of probabilities": Trap(
        [
            ("    return torch.sigmoid(model(scores).squeeze(1))\n", "    return model(scores).squeeze(1)\n"),
            (
                CALL,
                "    loss = torch.nn.functional.binary_cross_entropy_with_logits(probabilities(model, scores), votes)\n",
            ),
        ],
        caught_by="check_probabilities_are_kept",
        says="the training is right, and whoever asks for probabilities now gets numbers from -300 to 300",
    ),
    "the gradient by hand, and another loss": Trap(
        [
            (
                CALL,
                "    logit = model(scores).squeeze(1)\n    loss = ((torch.sigmoid(logit) - votes).detach() * logit).mean()\n",
            )
        ],
        caught_by="check_reported_loss",
        says="the weights move as they should, but the number printed is no cross entropy and may be below zero",
    ),
    "the repair, and a smaller rate to be safe": Trap(
        [(CALL, LOGITS_LOSS), ("RATE = 0.01", "RATE = 0.001")],
        caught_by="check_network_and_rate_are_kept",
        says="two changes at once: whoever sees the run converge cannot tell which of them did it",
    ),
    "the repair, and a penalty on the weights": Trap(
        [
            (CALL, LOGITS_LOSS),
            (BACKWARD, "    (loss + 1e-3 * sum(p.pow(2).sum() for p in model.parameters())).backward()\n"),
        ],
        caught_by="check_every_clip_pulls_at_its_logit",
        says="the loss reported is the cross entropy, the one that is trained on is another",
    ),
    "the repair, and a step by hand": Trap(
        [
            (CALL, LOGITS_LOSS),
            (
                "    optimizer.step()\n",
                """    with torch.no_grad():
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter -= group["lr"] * parameter.grad
""",
            ),
        ],
        caught_by="check_every_clip_pulls_at_its_logit",
        says="the optimizer is there and takes no step: what it knows of the steps before is lost",
    ),
    "the repair, and an optimizer that forgets": Trap(
        [(CALL, LOGITS_LOSS), ("    optimizer.step()\n", "    optimizer.step()\n    optimizer.state.clear()\n")],
        caught_by="check_every_clip_pulls_at_its_logit",
        says="what the optimizer knows of the steps before is lost in each step",
    ),
    "the repair, and a limit on long gradients": Trap(
        [(CALL, LOGITS_LOSS), after(BACKWARD, "    torch.nn.utils.clip_grad_norm_(model.parameters(), 100.0)\n")],
        caught_by="check_every_clip_pulls_at_its_logit",
        says="the gradients were not finite, and none was long; where one is, the step is not that of the loss",
    ),
    "the repair, with votes that are almost whole": Trap(
        [(CALL, LOGITS_LOSS.replace("(logit, votes)", "(logit, 0.9998 * votes + 0.0001)"))],
        caught_by="check_reported_loss",
        says="it is another loss: a clip with a logit of 1000 and only yes votes costs 0.1 in it, not 0",
    ),
    "the repair, with votes in thirds": Trap(
        [(CALL, LOGITS_LOSS.replace("(logit, votes)", "(logit, (3 * votes).round() / 3)"))],
        caught_by="check_every_clip_pulls_at_its_logit",
        says="three volunteers voted in this archive; the share is a number from 0 to 1, and others may vote in the next",
    ),
    "the repair, in evaluation mode": Trap(
        [(CALL, LOGITS_LOSS), ("    optimizer.zero_grad()\n", "    optimizer.zero_grad()\n    model.eval()\n")],
        caught_by="check_every_clip_pulls_at_its_logit",
        says="a network with dropout or batch norm computes something else in evaluation mode",
    ),
    "the repair, and evaluation mode afterwards": Trap(
        [
            (CALL, LOGITS_LOSS),
            ("    optimizer.zero_grad()\n", "    optimizer.zero_grad()\n    model.train()\n"),
            ("    optimizer.step()\n", "    optimizer.step()\n    model.eval()\n"),
        ],
        caught_by="check_every_clip_pulls_at_its_logit",
        says="the mode is the caller's: whoever goes on with this network has lost its dropout, or its batch norm",
    ),
    "the repair, and all dimensions of one squeezed": Trap(
        [(CALL, LOGITS_LOSS), ("model(scores).squeeze(1))\n\n\ndef cross", "model(scores).squeeze())\n\n\ndef cross")],
        caught_by="unusable",
        says="a batch of one clip, as the last of an archive may be, loses the dimension of the clips too",
    ),
    "the repair, without a bias": Trap(
        [
            (CALL, LOGITS_LOSS),
            ("torch.nn.Linear(3, 1)", "torch.nn.Linear(3, 1, bias=False)"),
            ("    torch.nn.init.zeros_(model.bias)\n", ""),
        ],
        caught_by="check_network_and_rate_are_kept",
        says="it starts with the same answers and cannot learn that owls are rare",
    ),
}
