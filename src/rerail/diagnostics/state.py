"""Leave no trace: restore everything that a check may move, and a digest that proves it."""

from __future__ import annotations

import contextlib
import hashlib
import random
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

MODULE_TABLES = ("_parameters", "_buffers", "_modules")  # restored by value, not by reference


@contextlib.contextmanager
def untouched(model: nn.Module | None, *others: Any) -> Iterator[None]:
    """Run what is inside, then put everything back: on success and on failure.

    Restored are the parameters, buffers and plain attributes of the model and of other modules given; the gradients;
    the mode of every module; the state and settings of optimizers, and anything else with a `state_dict`; the random
    number generators of torch, CUDA, NumPy and Python; the grad mode; hooks; and the filters of `warnings`.

    Args:
        model: The model, or None.
        others: More modules, optimizers, schedulers or scalers; None is skipped.
    """
    undo = [_kept_process()]
    for each in (model, *others):
        if isinstance(each, nn.Module):
            undo.append(_kept_module(each))
        elif isinstance(each, Optimizer):
            undo.append(_kept_optimizer(each))
        elif each is not None and hasattr(each, "state_dict"):
            undo.append(_kept_attributes(each))
    try:
        yield
    finally:
        for restore in reversed(undo):
            restore()


def digest(*things: Any) -> str:
    """Return a hexadecimal digest of all that `untouched` restores; equal digests mean no trace.

    Args:
        things: Modules, optimizers, schedulers, scalers or tensors; None is skipped.
    """
    hashed = hashlib.sha256()
    for thing in things:
        for name, part in _parts(thing):
            hashed.update(name.encode())
            hashed.update(part)
    hashed.update(repr((torch.is_grad_enabled(), torch.is_inference_mode_enabled(), warnings.filters)).encode())
    hashed.update(repr(random.getstate()).encode())
    hashed.update(torch.get_rng_state().numpy().tobytes())
    hashed.update(repr(numpy.random.get_state(legacy=False)).encode())
    return hashed.hexdigest()


def values(tensor: Tensor) -> Tensor:
    """Return the stored values of any tensor as one dense tensor that no graph holds."""
    plain = tensor.detach()
    if plain.is_sparse:
        plain = plain.coalesce().values()
    return plain.dequantize() if plain.is_quantized else plain


def is_measurable(tensor: Tensor) -> bool:
    """Return whether a tensor has values: a lazy parameter and one on the meta device have none."""
    return not is_lazy(tensor) and tensor.device.type != "meta"


def _kept_process() -> Callable[[], None]:
    torch_state, python_state = torch.get_rng_state(), random.getstate()
    cuda_states = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []  # type: ignore[no-untyped-call]
    numpy_state = numpy.random.get_state()
    filters, recording = list(warnings.filters), torch.is_grad_enabled()

    def restore() -> None:
        torch.set_rng_state(torch_state)
        random.setstate(python_state)
        if cuda_states:
            torch.cuda.set_rng_state_all(cuda_states)
        numpy.random.set_state(numpy_state)
        if list(warnings.filters) != filters:
            warnings.filters[:] = filters  # type: ignore[index]
        torch.set_grad_enabled(recording)

    return restore


def _kept_module(root: nn.Module) -> Callable[[], None]:
    tensors = [tensor for tensor in (*root.parameters(), *root.buffers()) if is_measurable(tensor)]
    copies = [(tensor, tensor.data, _copied(tensor), tensor.requires_grad) for tensor in tensors]
    gradients = [(tensor, tensor.grad, _copied(tensor.grad)) for tensor in tensors if tensor.is_leaf]
    modules = [(module, _plain_attributes(module), _tables(module)) for module in root.modules()]

    def restore() -> None:
        for module, attributes, tables in modules:
            for name in set(module.__dict__) - set(attributes):
                del module.__dict__[name]
            module.__dict__.update(attributes)
            for name, table in tables.items():
                _refill(module.__dict__[name], table)
        with torch.no_grad():
            for tensor, storage, copy, requires in copies:
                if copy is not None:
                    tensor.data = storage  # where it lay: a cast or a resize had moved it
                    _put(tensor, copy)
                if tensor.requires_grad is not requires and tensor.is_leaf:
                    tensor.requires_grad_(requires)
            for tensor, gradient, copy in gradients:
                if gradient is not None and copy is not None:
                    _put(gradient, copy)
                tensor.grad = gradient

    return restore


def _plain_attributes(module: nn.Module) -> dict[str, Any]:
    """Return what a module holds beside its tables: its mode, its numbers, a state that it carries, its hook tables."""
    return dict(module.__dict__)


def _tables(module: nn.Module) -> dict[str, Any]:
    """Return copies of the module's dictionaries and lists: of parameters, buffers, children, hooks and its own."""
    return {name: table.copy() for name, table in module.__dict__.items() if isinstance(table, (dict, list))}


def _refill(table: Any, kept: Any) -> None:
    """Give a dictionary or list the content it had; it stays the same object, for others that hold it."""
    table.clear()
    table.update(kept) if isinstance(table, dict) else table.extend(kept)


def _kept_optimizer(optimizer: Optimizer) -> Callable[[], None]:
    state = {key: (held, _state_copy(held)) for key, held in optimizer.state.items()}
    groups = [(group, dict(group), list(group["params"])) for group in optimizer.param_groups]
    free = [parameter for group in optimizer.param_groups for parameter in group["params"] if is_measurable(parameter)]
    copies = [(tensor, _copied(tensor), tensor.grad, _copied(tensor.grad)) for tensor in free]
    attributes = dict(optimizer.__dict__)
    tables = {
        name: dict(value) for name, value in attributes.items() if isinstance(value, dict) and name != "state"
    }  # among them the hooks

    def restore() -> None:
        for name in set(optimizer.__dict__) - set(attributes):
            del optimizer.__dict__[name]
        optimizer.__dict__.update(attributes)
        for name, table in tables.items():
            _refill(optimizer.__dict__[name], table)
        for key in [key for key in optimizer.state if key not in state]:
            del optimizer.state[key]
        with torch.no_grad():
            for key, (held, kept) in state.items():
                optimizer.state[key] = held
                _restore_state(held, kept)
            for group, settings, parameters in groups:
                group.clear()
                group.update(settings)
                group["params"] = parameters
            optimizer.param_groups[:] = [group for group, _, _ in groups]
            for tensor, copy, gradient, gradient_copy in copies:
                if copy is not None:
                    _put(tensor, copy)
                if gradient is not None and gradient_copy is not None:
                    _put(gradient, gradient_copy)
                tensor.grad = gradient

    return restore


def _state_copy(held: Any) -> Any:
    if isinstance(held, dict):
        return {name: (value, _copied(value) if isinstance(value, Tensor) else value) for name, value in held.items()}
    return held


def _restore_state(held: Any, kept: Any) -> None:
    if not isinstance(held, dict):
        return
    for name in set(held) - set(kept):
        del held[name]
    for name, (value, copy) in kept.items():
        held[name] = value
        if isinstance(value, Tensor) and copy is not None:
            _put(value, copy)


def _kept_attributes(thing: Any) -> Callable[[], None]:
    """Keep a scheduler's or scaler's own attributes; a tensor among them is put back by value."""
    attributes = dict(vars(thing)) if hasattr(thing, "__dict__") else {}
    tensors = [(value, _copied(value)) for value in attributes.values() if isinstance(value, Tensor)]
    tables = [(value, dict(value)) for value in attributes.values() if isinstance(value, dict)]

    def restore() -> None:
        for name in set(vars(thing)) - set(attributes) if attributes else ():
            delattr(thing, name)
        vars(thing).update(attributes)
        for table, kept in tables:
            _refill(table, kept)
        with torch.no_grad():
            for tensor, copy in tensors:
                if copy is not None:
                    _put(tensor, copy)

    return restore


def _copied(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.detach().clone()


def _put(tensor: Tensor, copy: Tensor) -> None:
    """Write values back where they were, unless they never moved: a write would raise the version of a saved tensor."""
    held = tensor.detach()
    if held.is_sparse or held.shape != copy.shape:
        tensor.data = copy.clone()
    elif not _same(held, copy):
        held.copy_(copy)


def _same(one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors hold the same bits; nan equals nan."""
    if one.is_quantized or (not one.is_floating_point() and not one.is_complex()):
        return bool(torch.equal(one, other))
    return bool(((one == other) | ((one != one) & (other != other))).all())


def _parts(thing: Any) -> Iterator[tuple[str, bytes]]:
    """Give name and content of everything that counts in one object."""
    if thing is None:
        return
    if isinstance(thing, Tensor):
        yield "tensor", _bytes(thing)
    elif isinstance(thing, nn.Module):
        for name, module in thing.named_modules(remove_duplicate=False):
            rest = {key: _brief(value) for key, value in module.__dict__.items() if key not in MODULE_TABLES}
            yield name, repr(sorted(rest.items())).encode()
        for name, tensor in (*thing.named_parameters(), *thing.named_buffers()):
            yield f"{name} {tensor.requires_grad}", _bytes(tensor)
            gradient = tensor.grad if tensor.is_leaf else None
            yield f"{name}.grad", b"none" if gradient is None else _bytes(gradient)
    elif isinstance(thing, Optimizer):
        for number, group in enumerate(thing.param_groups):
            settings = {key: _brief(value) for key, value in group.items() if key != "params"}
            yield f"group {number}", repr(settings).encode()
            for parameter in group["params"]:
                state = thing.state.get(parameter, {})
                yield "parameter", _bytes(parameter)
                yield "state", repr(sorted((key, _brief(value)) for key, value in state.items())).encode()
        hooks = {key: len(value) for key, value in vars(thing).items() if key.endswith("_hooks")}
        yield "hooks", repr(sorted(hooks.items())).encode()
        yield "attributes", repr(sorted(vars(thing))).encode()
    elif hasattr(thing, "state_dict"):
        yield type(thing).__name__, repr(_brief(thing.state_dict())).encode()


def _brief(value: Any) -> Any:
    """Return something whose `repr` is equal if and only if the value is."""
    if isinstance(value, Tensor):
        return hashlib.sha256(_bytes(value)).hexdigest()
    if isinstance(value, dict):
        return {str(key): _brief(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_brief(each) for each in value]
    return repr(value) if isinstance(value, (bool, int, float, str, type(None))) else type(value).__name__


def _bytes(tensor: Tensor) -> bytes:
    if not is_measurable(tensor):
        return b"no values"
    plain = values(tensor).cpu().contiguous()
    header = f"{tensor.dtype}{tuple(tensor.shape)}".encode()
    return header + plain.reshape(-1).view(torch.uint8).numpy().tobytes() if plain.numel() else header
