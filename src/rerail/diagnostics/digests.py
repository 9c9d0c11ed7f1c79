"""Digests of what a resumed run must find again, read without drawing a number or a batch."""

from __future__ import annotations

import contextlib
import hashlib
import random
import sys
from collections.abc import Iterator, Mapping
from typing import Any


def states_of(torch: Any, **things: Any) -> Iterator[tuple[str, str]]:
    """Give name and digest of every state, read without drawing from a generator."""
    yield "python_random", hash_of(repr(random.getstate()).encode())
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        yield "numpy_random", hash_of(repr(numpy_random.get_state(legacy=False)).encode())
    if torch is not None:
        yield "torch_random", hash_of(torch.get_rng_state().numpy().tobytes())
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            yield "cuda_random", hash_of(*(state.numpy().tobytes() for state in torch.cuda.get_rng_state_all()))
    for name, thing in things.items():
        if thing is None:
            continue
        if name == "loader":
            yield "data_order", _loader(thing)
        else:
            yield name, _state(thing)


def _state(thing: Any) -> str:
    """Return the digest of a state, or why there is none: a record never fails for what it was given."""
    read = getattr(thing, "state_dict", None) or getattr(thing, "get_weights", None)  # of torch, of Keras
    if not callable(read):
        return f"not read: {type(thing).__name__} has no state_dict"
    try:
        return hash_of(*_bytes(read()))
    except Exception as error:  # a state of somebody's own class
        return f"not read: {type(error).__name__}"


def _loader(loader: Any) -> str:
    """Digest what decides the order of the data: generators and their states, samplers, epoch, sizes."""
    batches = getattr(loader, "batch_sampler", None)
    parts: list[Any] = [getattr(loader, name, None) for name in ("batch_size", "num_workers", "drop_last")]
    seen: list[Any] = []
    for thing in (loader, getattr(loader, "sampler", None), batches, getattr(batches, "sampler", None)):
        if thing is None or any(thing is each for each in seen):
            continue
        seen.append(thing)
        parts += [type(thing).__name__, *(repr(getattr(thing, name, None)) for name in ("epoch", "seed", "batch_size"))]
        parts += [getattr(thing, name, None) for name in ("indices", "weights")]
        generator = getattr(thing, "generator", None)
        if generator is not None and hasattr(generator, "get_state"):
            parts.append(generator.get_state())
    with contextlib.suppress(TypeError, NotImplementedError):
        parts.append(len(loader.dataset) if hasattr(loader, "dataset") else None)
    return hash_of(*_bytes(parts))


def _bytes(state: Any) -> Iterator[bytes]:
    """Give every value of a nested state as bytes: of a tensor dtype, shape and content, and never its text."""
    if hasattr(state, "untyped_storage"):
        yield from _tensor_bytes(state)
    elif hasattr(state, "dtype") and hasattr(state, "tobytes"):  # of NumPy; an array of objects holds their addresses
        yield f"{state.dtype}{state.shape}".encode()
        yield repr(state.tolist()).encode() if state.dtype.hasobject else state.tobytes()
    elif isinstance(state, Mapping):
        for key, value in state.items():
            yield repr(key).encode()
            yield from _bytes(value)
    elif isinstance(state, (list, tuple)) and all(type(value) in (int, float, str) for value in state):
        yield repr(state).encode()  # such as the indices of a sampler, in one go
    elif isinstance(state, (list, tuple)):
        yield f"{len(state)}".encode()
        for value in state:
            yield from _bytes(value)
    elif isinstance(state, (bytes, bytearray)):
        yield bytes(state)
    else:
        text = repr(state)
        yield (text if " at 0x" not in text else type(state).__name__).encode()  # an address is of one process


def _tensor_bytes(tensor: Any) -> Iterator[bytes]:
    """Give dtype, shape and content of a tensor; of a lazy one or one on the meta device, that it has no content."""
    if "Uninitialized" in type(tensor).__name__ or tensor.device.type == "meta":
        yield f"{type(tensor).__name__} without values".encode()
        return
    plain = tensor.detach().cpu()
    yield f"{plain.dtype}{tuple(plain.shape)}".encode()
    if plain.is_sparse:
        plain = plain.coalesce()
        yield from _tensor_bytes(plain.indices())
        plain = plain.values()
    elif plain.is_quantized:
        yield repr(plain.qscheme()).encode()
        plain = plain.int_repr()
    elif str(plain.layout) != "torch.strided":
        plain = plain.to_dense()
    flat = plain.resolve_conj().resolve_neg().contiguous().reshape(-1)
    yield flat.view(sys.modules["torch"].uint8).numpy().tobytes() if flat.numel() else b""


def hash_of(*parts: bytes) -> str:
    """Return a short hexadecimal digest of some bytes."""
    hashed = hashlib.sha256()
    for part in parts:
        hashed.update(f"{len(part)}:".encode())  # so that no two states run into one another
        hashed.update(part)
    return hashed.hexdigest()[:12]
