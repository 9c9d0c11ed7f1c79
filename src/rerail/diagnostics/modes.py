"""The two modes of a module: which layers know them, and training that runs in the wrong one."""

from __future__ import annotations

from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.dropout import _DropoutNd

from rerail.diagnostics.finding import Cause

TRAINS_IN_EVAL = Cause(
    "tiny_batch.trains_in_eval_mode",
    refute="dropout and batch statistics are meant to be off while it trains",
    next="print `model.training` at the optimizer's step, and num_batches_tracked after an epoch",
    wrong_fixes=("no_grad() instead of eval() in the validation", "removing batch norm", "more dropout"),
)


def knows_modes(model: nn.Module) -> bool:
    """Return whether any layer behaves differently in training: what has no dropout and no statistics does not."""
    return any(
        (isinstance(module, _DropoutNd) and module.p > 0)
        or (isinstance(module, _NormBase) and module.running_mean is not None)
        for module in model.modules()
    )
