"""Replicas of a model in several processes: whether their gradients and weights agree after a backward pass."""

from __future__ import annotations

import torch
from torch import distributed, nn

from rerail.diagnostics.calling import named_parameters
from rerail.diagnostics.finding import Cause, Report, answers, not_applicable
from rerail.diagnostics.state import values

EQUAL = 1e-6  # relative; an all-reduce gives every rank the same bits

GRADIENTS = Cause(
    "update.replica_gradients_differ",
    refute="the gradients are averaged later, or the ranks train different parts on purpose",
    next="call the wrapper, not `.module`: the forward pass of the wrapper arms the all-reduce",
    wrong_fixes=("broadcasting the weights every epoch", "synchronised batch norm", "the same seed on every rank"),
)
WEIGHTS = Cause(
    "update.replica_weights_differ",
    refute="the ranks hold different shards on purpose",
    next="compare the gradients after one backward pass on different data",
    wrong_fixes=("averaging the copies when they are saved",),
)


@answers
def replica_report(model: nn.Module) -> Report:
    """Compare gradients and weights of a replicated model between processes; call it on every rank after backward.

    Args:
        model: The model or its wrapper, after a backward pass on different data in every process.

    Returns:
        A report, the same on every rank; not applicable outside a group of processes.
    """
    if not (distributed.is_available() and distributed.is_initialized()) or distributed.get_world_size() < 2:
        return not_applicable("replica_report", "there is one process only: torch.distributed has no group of several")
    named = named_parameters(model)
    grads = [p.grad for _, p in named]
    norms = [0.0 if grad is None else float(values(grad).double().norm()) for grad in grads]
    weights = [float(values(parameter).double().norm()) for _, parameter in named]
    mine = torch.tensor([norms, weights], dtype=torch.float64, device=named[0][1].device)
    gathered = [torch.empty_like(mine) for _ in range(distributed.get_world_size())]
    distributed.all_gather(gathered, mine)
    every = torch.stack(gathered)
    spread = (every.max(0).values - every.min(0).values) / every.abs().amax(0).clamp_min(1e-30)
    findings = []
    for row, cause, what in ((0, GRADIENTS, "gradients"), (1, WEIGHTS, "weights")):
        apart = [name for (name, _), share in zip(named, spread[row].tolist(), strict=True) if share > EQUAL]
        if apart:
            says = f"the {what} of {len(apart)} of {len(named)} parameters differ between {len(gathered)} ranks"
            findings.append(cause.fault(f"{says}, by up to {float(spread[row].max()):.2%}", where=apart))
    facts = {"ranks": len(gathered), "gradient_spread": float(spread[0].max()), "weight_spread": float(spread[1].max())}
    return Report("replica_report", tuple(findings), facts)
