"""Evaluation: in which mode it runs, what it leaves behind, and whether it repeats."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.dropout import _DropoutNd
from torch.overrides import TorchFunctionMode

from rerail.diagnostics.calling import eager, named_parameters
from rerail.diagnostics.finding import CannotAnswer, Cause, Finding, Report, answers, told, unknown
from rerail.diagnostics.metrics import alike, numbers_in
from rerail.diagnostics.origins import user_place
from rerail.diagnostics.state import untouched

TRAIN_MODE = Cause(
    "evaluation.train_mode",
    refute="these layers are meant to be active (sampling with dropout, statistics of the batch), and it is said so",
    next="print `module.training` of every dropout and normalisation layer inside the evaluation",
    wrong_fixes=("no_grad() alone", "the mean of several passes", "a larger validation batch"),
)
STATISTICS = Cause(
    "evaluation.statistics_changed",
    refute="the buffers count something that evaluation is meant to count",
    next="compare the buffers before and after: validation rows must not reach what training uses",
    wrong_fixes=("no_grad(): it does not stop running statistics", "momentum=0"),
)
PARAMETERS = Cause(
    "evaluation.parameters_changed",
    refute="",
    next="look for an optimizer's step, or an average that is swapped in and not out again",
)
MODES = Cause(
    "evaluation.modes_not_restored",
    refute="`train()` is called before the next training step, and no part is meant to stay in eval()",
    next="save `module.training` of every module before, and put each back after",
    wrong_fixes=("train() on the whole model: it wakes what was frozen in eval()", "no eval() at all"),
)
IGNORES_EVAL = Cause(
    "evaluation.dropout_ignores_eval",
    refute="dropout at inference is part of the published design, or sampling is intended",
    next="pass `training=self.training`, or p only when training",
    wrong_fixes=("a seed before predicting", "the mean of several predictions"),
)
RANDOM = Cause(
    "evaluation.not_repeatable",
    refute="the metric samples on purpose",
    next="evaluate the same rows twice, and bisect by module which output differs first",
    wrong_fixes=("a fixed seed", "the mean of several passes"),
)


class evaluation_guard:  # it reads as what it gives, like `torch.no_grad`
    """Watch an evaluation: its modes, whether it records gradients, and what it leaves behind.

    Mode and gradient recording are two facts: `eval()` changes what layers do, `no_grad()` and `inference_mode()` stop
    the recording, and neither does the other's work. The evaluation itself is not changed.

    Args:
        model: The model that is evaluated inside the block.

    Attributes:
        report: A `Report`, once the block has ended.

    Example:
        ```python
        with rerail.evaluation_guard(model) as guard:
            loss = evaluate(model, validation)
        print(guard.report)
        ```
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.report = unknown("evaluation_guard", "the block has not ended yet: read `.report` after it")
        self._watch: _Watch | None = None

    def __enter__(self) -> Self:
        """Begin to watch."""
        try:
            named_parameters(self.model)
        except CannotAnswer as reason:
            self.report = unknown("evaluation_guard", str(reason))
            return self
        self._watch = _Watch(self.model)
        self._watch.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Take the hooks away and judge; an exception of the block goes on its way."""
        if self._watch is None:
            return
        self._watch.__exit__(kind, error, trace)
        self.report = unknown("evaluation_guard", *told(error)) if error is not None else _judged(self._watch)


@answers
def evaluation_report(evaluate: Callable[[], object], model: nn.Module, *others: Any, repeats: int = 2) -> Report:
    """Run an evaluation several times from the same state, and report modes, traces and whether it repeats.

    Args:
        evaluate: Evaluates the model on the same rows at each call; returns a number, a tensor or a mapping of them.
        model: The model; it is put back afterwards.
        others: Anything else with state that the evaluation uses (metric objects are better left out: see
            `metric_check`).
        repeats: How often it is called.

    Returns:
        A report; `facts` hold the results, the modes and whether gradients were recorded.

    Example:
        ```python
        print(rerail.evaluation_report(lambda: evaluate(model, validation), model))
        ```
    """
    named_parameters(model)
    results = []
    with untouched(model, *others), eager():
        state = {name: buffer.detach().clone() for name, buffer in model.named_buffers()}
        watch = _Watch(model)
        with watch:
            results.append(evaluate())
        first = _judged(watch)
        for _ in range(repeats - 1):  # under the same watch: with it torch takes the same path through a layer
            for name, buffer in model.named_buffers():
                if name in state:
                    buffer.data.copy_(state[name])
            for module, training in watch.modes.items():
                module.training = training
            with _Watch(model):
                results.append(evaluate())
    numbers = [list(numbers_in(result)) for result in results]
    findings = list(first.findings)
    if not numbers[0]:
        raise CannotAnswer(
            f"`evaluate` must return a number, a tensor or a mapping of them, got {type(results[0]).__name__}"
        )
    same = all(alike(numbers[0], other) for other in numbers[1:])
    if not same and not {"evaluation.dropout_ignores_eval", "evaluation.train_mode"} & set(first.causes):
        spread = max(abs(one - two) for one, two in zip(numbers[0], numbers[1], strict=False))
        says = f"two evaluations of the same rows from the same state differ by {spread:.4g}"
        findings.append(RANDOM.suspicious(says, difference=spread))
    facts = {**first.facts, "results": tuple(row[0] for row in numbers), "repeats": same}
    return Report("evaluation_report", tuple(findings), facts)


class _Watch(TorchFunctionMode):
    """Hooks on the layers that know two modes, and a look at functional dropout."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.modes = {module: module.training for module in model.modules()}
        self.names = {module: name or "the model" for name, module in model.named_modules()}
        self.parameters = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
        self.buffers = {name: buffer.detach().clone() for name, buffer in model.named_buffers()}
        self.active: dict[str, None] = {}  # layers that ran in train mode, in order
        self.recorded: list[bool] = []
        self.inference: list[bool] = []
        self.root: list[bool] = []
        self.functional: dict[str, None] = {}  # places where dropout ran although the model was in eval mode
        self._handles: list[Any] = []

    def __enter__(self) -> Self:
        for module in self.modes:
            self._handles.append(module.register_forward_pre_hook(self._entered))
            if (isinstance(module, _DropoutNd) and module.p > 0) or _has_statistics(module):
                self._handles.append(module.register_forward_pre_hook(self._ran))
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)  # type: ignore[no-untyped-call]
        for handle in self._handles:
            handle.remove()

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if not self.model.training:
            if name == "scaled_dot_product_attention":
                active = kwargs.get("dropout_p", args[4] if len(args) > 4 else 0.0) > 0
            else:
                active = "dropout" in name and _is_active(args, kwargs) and not self._called_by_a_module()
            if active:
                self.functional[user_place()] = None
        return func(*args, **kwargs)

    def _called_by_a_module(self) -> bool:
        """Return whether a dropout module, seen by its hook, made this call."""
        return bool(self.active) and any(isinstance(module, _DropoutNd) and module.training for module in self.modes)

    def _entered(self, module: nn.Module, _: Any) -> None:
        self.root.append(self.model.training)
        self.recorded.append(torch.is_grad_enabled())
        self.inference.append(torch.is_inference_mode_enabled())

    def _ran(self, module: nn.Module, _: Any) -> None:
        if module.training:
            self.active[self.names[module]] = None


def _judged(watch: _Watch) -> Report:
    if not watch.root:
        return unknown("evaluation_guard", "the model was not called inside the block")
    model = watch.model
    moved = [name for name, each in model.named_parameters() if not torch.equal(each, watch.parameters.get(name, each))]
    shifted = [name for name, each in model.named_buffers() if not _same(each, watch.buffers.get(name, each))]
    changed = [name for module, name in watch.names.items() if module.training is not watch.modes[module]]
    two_modes = [module for module in watch.modes if isinstance(module, _DropoutNd) or _has_statistics(module)]
    findings: list[Finding] = []
    if moved:
        findings.append(PARAMETERS.fault(f"{len(moved)} parameters changed during the evaluation", where=moved))
    if watch.active and (any(watch.root) or any(_is_statistics(model, name) for name in watch.active)):
        says = f"{len(watch.active)} layers that behave differently in training ran in train mode"
        says += f", and moved {len(shifted)} buffers" if shifted else ""
        findings.append(TRAIN_MODE.suspicious(says, where=list(watch.active), layers=len(watch.active)))
    elif shifted:
        findings.append(STATISTICS.suspicious(f"{len(shifted)} buffers changed during the evaluation", where=shifted))
    if watch.functional:
        says = "dropout ran although the model was in eval mode"
        findings.append(IGNORES_EVAL.suspicious(says, where=list(watch.functional)))
    if changed and two_modes:
        says = f"{len(changed)} modules are left in another mode than they had"
        findings.append(MODES.suspicious(says, where=changed, modules=len(changed)))
    facts = {
        "train_mode": any(watch.root), "gradients_recorded": any(watch.recorded),
        "inference_mode": any(watch.inference), "module_calls": len(watch.root), "buffers_changed": len(shifted),
    }  # fmt: skip
    return Report("evaluation_guard", tuple(findings), facts)


def _is_active(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    p = kwargs.get("p", args[1] if len(args) > 1 else 0.5)
    training = kwargs.get("training", args[2] if len(args) > 2 else True)
    return bool(training) and isinstance(p, (int, float)) and p > 0


def _has_statistics(module: nn.Module) -> bool:
    return isinstance(module, _NormBase) and module.running_mean is not None


def _is_statistics(model: nn.Module, name: str) -> bool:
    return _has_statistics(model.get_submodule("" if name == "the model" else name))


def _same(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and bool(torch.equal(one.nan_to_num(), other.nan_to_num()))
