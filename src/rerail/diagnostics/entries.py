"""What an optimizer holds: entries that are missing, that belong to another model, that come twice."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn
from torch.optim import Optimizer

from rerail.diagnostics.calling import named_parameters, optimizer_parameters
from rerail.diagnostics.finding import CannotAnswer, Cause, Finding, Report, answers

REPLACED = Cause(
    "update.stale_entries",
    refute="the optimizer's other entries belong to another model, and the missing parameters to another optimizer",
    next="build the optimizer after the last change of the model, and compare the ids of its entries with the model's",
    wrong_fixes=("a larger rate", "requires_grad_(True) on the new layer", "a new scheduler"),
)
MISSING = Cause(
    "update.missing_parameters",
    refute="another optimizer holds them (give both), or they are frozen on purpose by being left out",
    next="list the names of the model's parameters that are in no parameter group",
    wrong_fixes=("a larger rate", "requires_grad_(True)", "more steps"),
)
SHARED = Cause(
    "update.duplicate_entries",
    refute="two optimizers take turns on these parameters on purpose",
    next="count how often each parameter's id appears in the parameter groups",
)


@answers
def optimizer_audit(model: nn.Module, optimizer: Optimizer | Sequence[Optimizer]) -> Report:
    """Compare the parameters of a model with those that its optimizer holds; no step is needed.

    Args:
        model: The model.
        optimizer: Its optimizer, or a list of all optimizers that train parts of it.

    Returns:
        A report with the missing, the stale and the duplicate entries by name.
    """
    optimizers = as_list(optimizer)
    named = named_parameters(model)
    held = {id(parameter) for each in optimizers for parameter in optimizer_parameters(each)}
    trained = [parameter for _, parameter in named if parameter.requires_grad]
    facts = {
        "parameters": len(named), "require_gradients": len(trained), "in_optimizer": len(held),
        "shared": sum(id(parameter) in held for _, parameter in named),
    }  # fmt: skip
    return Report("optimizer_audit", tuple(membership(model, optimizers)), facts)


def as_list(optimizer: Optimizer | Sequence[Optimizer]) -> list[Optimizer]:
    """Return one or several optimizers as a list.

    Raises:
        CannotAnswer: If there is none, or something is no optimizer.
    """
    each: list[Optimizer] = [*optimizer] if isinstance(optimizer, (list, tuple)) else [optimizer]  # type: ignore[list-item]
    if not each:
        raise CannotAnswer("there is no optimizer: give the one that steps the model")
    for one in each:
        optimizer_parameters(one)  # says what it got, where that is no optimizer
    return each


def membership(model: nn.Module, optimizers: Sequence[Optimizer]) -> list[Finding]:
    """Compare ids: which parameters are in no optimizer, which entries belong to nothing, which come twice."""
    named = named_parameters(model)
    held = [parameter for optimizer in optimizers for parameter in optimizer_parameters(optimizer)]
    ids = [id(parameter) for parameter in held]
    known = {id(parameter) for _, parameter in named}
    missing = [name for name, parameter in named if parameter.requires_grad and id(parameter) not in ids]
    extra = [tuple(parameter.shape) for parameter in held if id(parameter) not in known]
    twice = [name for name, parameter in named if ids.count(id(parameter)) > 1]
    trained = sum(parameter.requires_grad for _, parameter in named)
    shapes = {name: tuple(parameter.shape) for name, parameter in named}
    findings = []
    if missing and extra and any(shapes[name][1:] == shape[1:] for name in missing for shape in extra):
        says = (
            f"the optimizer holds {len(extra)} parameters that are not the model's, and not {len(missing)} of the "
            f"model's {trained}: it was built before the model changed"
        )
        findings.append(REPLACED.fault(says, where=missing, missing=len(missing), stale=len(extra)))
    elif missing:
        says = f"{len(missing)} of {trained} parameters that require gradients are in no parameter group"
        findings.append(MISSING.suspicious(says, where=missing, missing=len(missing), of=trained))
    if twice:
        says = f"{len(twice)} parameters are held more than once: one step updates them twice"
        findings.append(SHARED.suspicious(says, where=twice))
    return findings
