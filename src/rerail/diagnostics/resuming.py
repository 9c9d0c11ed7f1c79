"""Checkpoints: what a load really changed, whether a snapshot is one, whether a resumed run is the interrupted one."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from rerail.diagnostics.calling import tensors
from rerail.diagnostics.comparison import Setup
from rerail.diagnostics.finding import CannotAnswer, Cause, Finding, Report, answers
from rerail.diagnostics.rows import content
from rerail.diagnostics.state import digest, untouched

NOTHING_LOADED = Cause(
    "process.nothing_loaded",
    refute="the model already had exactly these weights",
    next="print the keys of the file beside those of the model: one level deeper, or another prefix",
    wrong_fixes=("strict=False", "trusting the printed report", "longer fine-tuning"),
)
PARTLY_LOADED = Cause(
    "process.partly_loaded",
    refute="the rest is meant to start anew (another head)",
    next="list the names whose tensors did not change",
    wrong_fixes=("strict=False",),
)
BY_REFERENCE = Cause(
    "update.snapshot_by_reference",
    refute="the snapshot is meant to follow the model",
    next="evaluate what was kept after one more step: it must give the value of the moment when it was kept",
    wrong_fixes=(".copy() of the dictionary", "dict(state_dict())", "keeping the model itself"),
)
WEIGHTS = Cause(
    "process.resume_loses_weights",
    refute="",
    next="rerail.load_report on the load",
)
OPTIMIZER_STATE = Cause(
    "process.resume_loses_optimizer_state",
    refute="the optimizer is meant to start anew",
    next="compare the first update after the resume with the uninterrupted one",
    wrong_fixes=("warming up again", "a smaller rate after the resume"),
)
SCHEDULE = Cause(
    "process.resume_loses_schedule",
    refute="the schedule is meant to start anew",
    next="print the rate of the next step in both runs; build all first, then load all",
    wrong_fixes=("last_epoch alone", "setting the rate by hand"),
)
DATA_ORDER = Cause(
    "process.resume_loses_data_order",
    refute="the order is meant to be another one",
    next="save the states of the generators, or derive the order from seed and epoch",
    wrong_fixes=("the same seed again", "another seed at every start"),
)
RESUME_DIFFERS = Cause(
    "process.resume_differs",
    refute="the step is random beyond the generators (threads, non-deterministic kernels)",
    next="compare the two steps with rerail.compare_steps",
)


@answers
def load_report(
    model: nn.Module, load: Callable[[], object] | Mapping[str, Any], checkpoint: Mapping[str, Any] | None = None
) -> Report:
    """Load a checkpoint, and count which tensors of the model really changed; then put the model back.

    Args:
        model: The model.
        load: Loads the checkpoint into it, as the program does; or the checkpoint itself, which is then loaded with
            `load_state_dict(..., strict=False)`.
        checkpoint: What the file holds, if it shall be compared: nested mappings of tensors.

    Returns:
        A report with the numbers of tensors that changed, that equal the checkpoint, and that the file holds.

    Example:
        ```python
        state = torch.load("model.pt", weights_only=True)
        load = lambda: model.load_state_dict(state, strict=False)
        print(rerail.load_report(model, load, state))
        ```
    """
    if isinstance(load, Mapping):
        checkpoint, state = load, load
        return load_report(model, lambda: model.load_state_dict(state, strict=False), checkpoint)
    if not model.state_dict():
        raise CannotAnswer("the model has no parameters and no buffers that could be loaded")
    with untouched(model):
        before = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
        result = load()
        after = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
    changed = [name for name in before if name not in after or not _equal(before[name], after[name])]
    facts: dict[str, Any] = {"tensors": len(before), "changed": len(changed)}
    missing = len(getattr(result, "missing_keys", ()) or ())
    facts |= {"reported": str(result).splitlines()[0][:80] if result is not None else None, "missing_keys": missing}
    held = [tensor for _, tensor in tensors(checkpoint)] if checkpoint is not None else []
    matched: list[str] = []
    if held:
        matched = [name for name, tensor in after.items() if any(_equal(tensor, each) for each in held)]
        facts |= {"in_file": len(held), "equal_to_file": len(matched)}
        if len(matched) == len(after):
            return Report("load_report", (), facts)
    floats = [name for name in before if before[name].is_floating_point()]
    constant = [name for name in floats if bool((before[name] == before[name].flatten()[:1]).all())]  # ones, zeros
    kept = [name for name in floats if name not in {*changed, *matched, *constant}]
    if not changed:
        says = f"the load changed none of {len(before)} tensors"
        says += f", and reported {facts['reported']}" if facts["reported"] else ""
        return Report("load_report", (NOTHING_LOADED.fault(says, changed=0, tensors=len(before)),), facts)
    if kept:
        says = f"{len(kept)} of {len(floats)} tensors are what they were before the load"
        return Report("load_report", (PARTLY_LOADED.suspicious(says, where=kept, kept=len(kept)),), facts)
    return Report("load_report", (), facts)


@answers
def snapshot_check(snapshot: Any, model: nn.Module) -> Report:
    """Check that a snapshot of a model is one: that no tensor in it lies in the memory that the model trains.

    Args:
        snapshot: What was kept as the best state: a mapping, a model, an object that holds tensors.
        model: The model, as it goes on.

    Returns:
        A report; a fault where tensors are shared.
    """
    if isinstance(snapshot, nn.Module):
        snapshot = snapshot.state_dict()
    held = [(name, tensor) for name, tensor in tensors(snapshot, "snapshot") if tensor.numel()]
    if not held:
        raise CannotAnswer("the snapshot holds no tensor")
    live = {tensor.untyped_storage().data_ptr() for tensor in model.state_dict().values() if tensor.numel()}
    shared = [name for name, tensor in held if tensor.untyped_storage().data_ptr() in live]
    facts = {"tensors": len(held), "shared": len(shared)}
    if not shared:
        return Report("snapshot_check", (), facts)
    says = f"{len(shared)} of {len(held)} tensors of the snapshot share the memory of the model: they change with it"
    return Report("snapshot_check", (BY_REFERENCE.fault(says, where=shared, shared=len(shared)),), facts)


@answers
def resume_check(
    make: Callable[[], Setup],
    save: Callable[[Setup], Any],
    load: Callable[[Setup, Any], object],
    *,
    before: int = 3,
    after: int = 3,
) -> Report:
    """Interrupt a run, resume it from its checkpoint, and compare it with the run that went on.

    Args:
        make: Starts the program: seeds as it does, builds model, optimizer, loader, and returns `rerail.Setup`, or an
            object with `model`, `optimizer`, `step` and, if there is one, `scheduler`. `step()` makes one training
            step and returns the loss, or `(loss, ids of the batch)`.
        save: Returns the checkpoint of a run, as the program writes it.
        load: Loads a checkpoint into a fresh run, as the program does.
        before: Steps before the interruption.
        after: Steps that are compared.

    Returns:
        A report; each part of the state that did not come back is a fault of its own.
    """
    with untouched(None):
        run = make()
        for _ in range(before):
            run.step()
        checkpoint = copy.deepcopy(save(run))
        kept = _parts(run)
        through = [_stepped(run) for _ in range(after)]
        resumed = make()
        load(resumed, checkpoint)
        back = _parts(resumed)
        again = [_stepped(resumed) for _ in range(after)]
    facts: dict[str, Any] = {
        "first_update": through[0]["update"], "first_update_resumed": again[0]["update"],
        "rate": kept["rate"], "rate_resumed": back["rate"],
        "losses": tuple(each["loss"] for each in through), "losses_resumed": tuple(each["loss"] for each in again),
    }  # fmt: skip
    findings: list[Finding] = []
    if kept["model"] != back["model"]:
        findings.append(WEIGHTS.fault("the resumed model has other weights or buffers than the one that was saved"))
    if kept["optimizer"] != back["optimizer"]:
        says = "the optimizer's state did not come back: "
        says += f"the first update is {again[0]['update']:.4g}, not {through[0]['update']:.4g}"
        findings.append(OPTIMIZER_STATE.fault(says, resumed=again[0]["update"], through=through[0]["update"]))
    if kept["rate"] != back["rate"] or kept["scheduler"] != back["scheduler"]:
        says = f"the rate of the next step is {back['rate']}, not {kept['rate']}"
        findings.append(SCHEDULE.fault(says))
    if [each["ids"] for each in through] != [each["ids"] for each in again]:
        says = f"the next batch is {again[0]['ids']}, not {through[0]['ids']}"
        findings.append(DATA_ORDER.fault(says))
    elif kept["generators"] != back["generators"] and through[0]["draws"]:
        findings.append(DATA_ORDER.fault("the states of the random number generators did not come back"))
    if not findings and facts["losses"] != facts["losses_resumed"]:
        says = f"the losses differ: {facts['losses_resumed']}, not {facts['losses']}"
        findings.append(RESUME_DIFFERS.suspicious(says))
    return Report("resume_check", tuple(findings), facts)


def _parts(run: Any) -> dict[str, Any]:
    scheduler = getattr(run, "scheduler", None)
    optimizer = run.optimizer
    return {
        "model": _hash(run.model.state_dict()),
        "optimizer": None if optimizer is None else _hash(optimizer.state_dict()["state"]),
        "rate": None if optimizer is None else tuple(float(group["lr"]) for group in optimizer.param_groups),
        "scheduler": None if scheduler is None else _hash(scheduler.state_dict()),
        "generators": digest(),
    }


def _stepped(run: Any) -> dict[str, Any]:
    start = digest()
    before = [parameter.detach().clone() for parameter in run.model.parameters()]
    result = run.step()
    loss, ids = result if isinstance(result, tuple) and len(result) == 2 else (result, None)
    listed: Any = ids.tolist() if hasattr(ids, "tolist") else ids  # type: ignore[union-attr]
    moved = [
        float((parameter.detach() - kept).norm())
        for parameter, kept in zip(run.model.parameters(), before, strict=True)
    ]
    return {
        "loss": float(loss) if loss is not None else math.nan,
        "ids": listed,
        "update": math.hypot(*moved),
        "draws": digest() != start,
    }


def _hash(state: Any) -> str:
    return str({name: content(tensor).hex() for name, tensor in tensors(state)}) + repr(_numbers(state))


def _numbers(state: Any) -> Any:
    if isinstance(state, Mapping):
        return {str(key): _numbers(value) for key, value in state.items() if not isinstance(value, Tensor)}
    if isinstance(state, (list, tuple)):
        return [_numbers(each) for each in state if not isinstance(each, Tensor)]
    return state if isinstance(state, (int, float, str, bool, type(None))) else type(state).__name__


def _equal(one: Tensor, two: Tensor) -> bool:
    return one.shape == two.shape and one.dtype == two.dtype and bool(torch.equal(one, two))
