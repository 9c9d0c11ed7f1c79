"""The records of two runs agree in every entry, and the runs go different ways."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from rerail.checks import Edit, Failed, Trap, function
from rerail.evidence import Evidence

LAYER, MINUTES, ORDER, POINTS = "process", 15, 1, 2
GRADED = ("record",)
RECORDED = {
    "differing/*": "the entries of the record that change when the run differs in this one thing; the five about another"
    " file, layout, process, object and names of their own must stay blank",
    "entries": "the record of the run",
    "evaluating": "the entry `mode` of a model in evaluation mode",
    "touched": "what of the run making a record changed",
}
BASELINE = "check_every_difference_shows"
HINTS = (
    "observe: in the two runs of the script, compare the model's `state_dict()` entry by entry with `torch.equal`, then"
    " the optimizer's. What differs, in how many of its numbers, and at which places?",
    "locate: the record sees a state only through `digest`. Print what exactly it takes the fingerprint of",
    "explain: what does `print(torch.arange(1001.0))` show, and what `print(torch.tensor([1.00001, 1.00002]))`? A text"
    " that was made for readers stands in for 3000 numbers",
    "shape of the fix: go down through mappings and lists to each tensor, and let every one of its numbers, its dtype"
    " and its shape enter the fingerprint, with the name under which it stands",
)

Run = tuple[Any, Any, Any, Any]

ENVIRONMENT = ("python", "torch", "device", "dtype", "threads", "mode")
STATES = ("weights", "optimizer", "schedule", "order", "random")

# what is done to a second run, and the entry in which it must show
DIFFERENCES = {
    "one weight in the middle of its tensor is another": "weights",
    "one of three weights differs in its last bit": "weights",
    "one of three weights has the other sign": "weights",
    "one number of a buffer in double precision differs in its last bit": "weights",
    "two weights have changed places": "weights",
    "two layers have changed places": "weights",
    "a buffer of zeros holds whole numbers": "weights",
    "a buffer of zeros is in double precision": "weights",
    "a buffer has another shape": "weights",
    "a layer has another name": "weights",
    "all momentum is gone": "optimizer",
    "the momentum in the middle of its tensor is 0": "optimizer",
    "one number of the momentum differs in its last bit": "optimizer",
    "the momenta of two layers have changed places": "optimizer",
    "the rate differs in its last bit": "optimizer",
    "the schedule is one step further": "schedule",
    "the first rates of two groups have changed places": "schedule",
    "one more order of the rows has been drawn": "order",
    "the rows are shuffled from another seed": "order",
    "one more random number has been drawn": "random",
}
ELSEWHERE = "the same state in another process"
# what is done to a second run that must not show
EQUALS = (
    "the same state in other objects",
    "a state that was written to a file and read again",
    "the same numbers in another layout of memory",
    "names that are equal, in texts of their own",
    ELSEWHERE,
)


def cases(seed: int) -> list[dict[str, Any]]:
    """Tables with more numbers than a thousand at each edge, than a thousand, and with fewer; two optimizers."""
    return [
        {"rows": 2600, "columns": 1, "optimizer": "SGD", "seed": 0},
        {"rows": 41, "columns": 37, "optimizer": "Adam", "seed": seed},
        {"rows": 9, "columns": 5, "optimizer": "SGD", "seed": seed + 1},
    ]


def probe(script: Any, batch: dict[str, Any]) -> dict[str, Any]:
    """Record the entries of one run, and which of them change with each difference."""
    import torch

    start = torch.get_rng_state()
    run = built(batch)
    kept = untouched(run)
    first = entries(script, run)
    now = untouched(run)
    differing = {}
    for name in (*DIFFERENCES, *EQUALS):
        torch.set_rng_state(start)
        another = altered(built(batch), name, batch)
        differing[name] = changed(first, entries(script, another, process=name if name == ELSEWHERE else ""))
    run[0].eval()
    return {
        "touched": " and ".join(name for name, before in kept.items() if now[name] != before),
        "entries": json.dumps({name: first.get(name) for name in (*ENVIRONMENT, "command", *STATES)}),
        "evaluating": entries(script, run).get("mode"),
        "differing": differing,
    }


def entries(script: Any, run: Run, process: str = "") -> dict[str, str]:
    """Make a record and return its entries as text; `hash` answers as it does in a process of that name."""
    from rerail.probes import Unusable, described

    if "hash" not in vars(script) or getattr(script.hash, "salted", False):
        script.hash = hash_of(process)
    made = script.record(*run)
    if not isinstance(made, dict):
        raise Unusable(f"what `record` returns must be a mapping, got {described(made)}")
    try:
        return {str(name): json.dumps(value) for name, value in made.items()}
    except (TypeError, ValueError, RecursionError) as error:
        raise Unusable(f"what `record` returns must be what json can write: {error}") from None


def hash_of(process: str) -> Callable[[Any], int]:
    """Imitate the built-in `hash` of one process: that of texts and bytes is another in each."""

    def salted(value: Any) -> int:
        if isinstance(value, str | bytes | memoryview):
            return hash((process, bytes(value) if isinstance(value, memoryview) else value))
        return hash(tuple(map(salted, value))) if isinstance(value, tuple) else hash(value)

    salted.salted = True  # type: ignore[attr-defined]
    return salted


def changed(first: dict[str, str], second: dict[str, str]) -> str:
    """Name the entries that differ between two records."""
    names = [name for name in (*first, *second) if first.get(name) != second.get(name)]
    return " ".join(dict.fromkeys(names))


def untouched(run: Run) -> dict[str, Any]:
    """Take down what making a record must leave as it is."""
    import pickle
    import random

    import numpy as np
    import torch

    model, optimizer, schedule, order = run
    states = [model.state_dict(), optimizer.state_dict(), schedule.state_dict()]
    gradients = [parameter.grad for parameter in model.parameters()]
    printing = {name: str(value) for name, value in np.get_printoptions().items()}
    return {
        "the run": (frozen(states), frozen(gradients), [part.training for part in model.modules()]),
        "the order of the rows": frozen(order.get_state()),
        "the random numbers": (
            frozen(torch.get_rng_state()),
            random.getstate(),
            pickle.dumps(np.random.get_state()),
        ),
        "the way in which numbers are printed": (vars(torch._tensor_str.PRINT_OPTS).copy(), printing),
        "a setting of torch": (
            torch.get_default_dtype(),
            torch.get_num_threads(),
            torch.is_grad_enabled(),
            torch.are_deterministic_algorithms_enabled(),
        ),
    }


def frozen(state: Any) -> Any:
    """Turn a state into plain values that compare."""
    import torch

    if isinstance(state, torch.Tensor):
        return str(state.dtype), tuple(state.shape), state.detach().contiguous().numpy().tobytes()
    if isinstance(state, dict):
        return [(name, frozen(part)) for name, part in state.items()]
    return [frozen(part) for part in state] if isinstance(state, list | tuple) else repr(state)


def built(batch: dict[str, Any]) -> Run:
    """Make a run in mid-training: a table, two layers of one shape, buffers, momentum with a nan in it."""
    import torch

    generator = torch.Generator().manual_seed(batch["seed"])

    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    model = torch.nn.Module()
    model.table = torch.nn.Parameter(drawn(batch["rows"], batch["columns"]))
    model.first = torch.nn.Parameter(drawn(2, 3))
    model.second = torch.nn.Parameter(drawn(2, 3))
    model.bias = torch.nn.Parameter(drawn(3))
    model.register_buffer("seen", torch.zeros(4))
    model.register_buffer("mean", drawn(3).double())
    kinds = {"SGD": {"momentum": 0.9}, "Adam": {}}
    layers = [model.first, model.second, model.bias]
    groups = [{"params": [model.table]}, {"params": layers, "lr": 0.02}]
    optimizer = getattr(torch.optim, batch["optimizer"])(groups, lr=0.1, **kinds[batch["optimizer"]])
    for parameter in model.parameters():
        momentum = 0.1 * drawn(*parameter.shape)
        optimizer.state[parameter] = {"momentum_buffer": momentum}
        if batch["optimizer"] == "Adam":
            optimizer.state[parameter] = {
                "step": torch.tensor(7.0),
                "exp_avg": momentum,
                "exp_avg_sq": momentum.square(),
            }
    table = momentum_of(optimizer, model.table)
    table[len(table) // 2 + 1] = float("nan")
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=40)
    order = torch.Generator().manual_seed(5)
    torch.randperm(50, generator=order)
    return model, optimizer, schedule, order


def momentum_of(optimizer: Any, parameter: Any) -> Any:
    """Return the tensor of a parameter's momentum, whatever the optimizer calls it."""
    state = optimizer.state[parameter]
    return state.get("momentum_buffer", state.get("exp_avg"))


def altered(run: Run, name: str, batch: dict[str, Any]) -> Run:
    """Do to a run what a name of DIFFERENCES or EQUALS says."""
    import io

    import torch

    model, optimizer, schedule, order = run
    middle = batch["rows"] // 2
    with torch.no_grad():
        if name == "one weight in the middle of its tensor is another":
            model.table[middle, 0] += 1
        elif name == "one of three weights differs in its last bit":
            next_number(model.bias, 1)
        elif name == "one of three weights has the other sign":
            model.bias[2] *= -1
        elif name == "one number of a buffer in double precision differs in its last bit":
            next_number(model.mean, 2)
        elif name == "two weights have changed places":
            swap(model.table[middle], model.table[middle + 1])
        elif name == "two layers have changed places":
            swap(model.first, model.second)
        elif name == "a buffer of zeros holds whole numbers":
            model.seen = torch.zeros(4, dtype=torch.int32)
        elif name == "a buffer of zeros is in double precision":
            model.seen = torch.zeros(4, dtype=torch.float64)
        elif name == "a buffer has another shape":
            model.seen = torch.zeros(2, 2)
        elif name == "a layer has another name":
            names = {"second": "other"}
            model._parameters = {names.get(key, key): value for key, value in model._parameters.items()}
        elif name == "all momentum is gone":
            optimizer.state.clear()
        elif name == "the momentum in the middle of its tensor is 0":
            momentum_of(optimizer, model.table)[4:-4] = 0
        elif name == "one number of the momentum differs in its last bit":
            next_number(momentum_of(optimizer, model.table)[:, 0], middle - 1)
        elif name == "the momenta of two layers have changed places":
            swap(momentum_of(optimizer, model.first), momentum_of(optimizer, model.second))
        elif name == "the rate differs in its last bit":
            optimizer.param_groups[0]["lr"] = 0.1 + 2**-56
        elif name == "the first rates of two groups have changed places":
            schedule.base_lrs = schedule.base_lrs[::-1]
        elif name == "the schedule is one step further":
            schedule.last_epoch += 1
        elif name == "one more order of the rows has been drawn":
            torch.randperm(50, generator=order)
        elif name == "the rows are shuffled from another seed":
            order.manual_seed(6)
        elif name == "one more random number has been drawn":
            torch.rand(1)
        elif name == "a state that was written to a file and read again":
            for part in (model, optimizer, schedule):
                file = io.BytesIO()
                torch.save(part.state_dict(), file)
                part.load_state_dict(torch.load(io.BytesIO(file.getvalue())))
        elif name == "the same numbers in another layout of memory":
            for parameter in model.parameters():
                parameter.data = strided(parameter.data)
        elif name == "names that are equal, in texts of their own":
            for state in optimizer.state.values():
                for key in list(state):
                    state["".join(list(key))] = state.pop(key)
    return run


def next_number(values: Any, place: int) -> None:
    """Move one number by its last bit."""
    import torch

    values[place] = torch.nextafter(values[place], values[place] + 1)


def swap(one: Any, other: Any) -> None:
    """Exchange the values of two tensors in place."""
    kept = one.clone()
    one.copy_(other)
    other.copy_(kept)


def strided(values: Any) -> Any:
    """Return equal numbers that stand in every other place of a longer memory."""
    import torch

    wide = torch.full((*values.shape, 2), 7.0)
    wide[..., 0] = values
    return wide[..., 0]


def _made(run: Evidence) -> dict[str, Any]:
    made: dict[str, Any] = json.loads(run.entries)
    return made


def check_making_a_record_touches_nothing(run: Evidence) -> None:
    """making a record leaves the run, its random numbers and all settings as they are"""
    if run.touched:
        raise Failed(f"after the record was made, {run.touched} was not what it had been before")


def check_equal_states_have_equal_records(run: Evidence) -> None:
    """two runs in equal states have equal records"""
    for name in EQUALS:
        if run.differing[name]:
            raise Failed(f"the record changes with {name}", show={"entries that change": run.differing[name]})


def check_every_difference_shows(run: Evidence) -> None:
    """whatever differs in a state shows in the entry of its part"""
    hidden = [name for name, entry in DIFFERENCES.items() if entry not in run.differing[name].split()]
    if hidden:
        entry = DIFFERENCES[hidden[0]]
        raise Failed(
            f"{len(hidden)} of {len(DIFFERENCES)} differences between two runs do not show; one of them: {hidden[0]}",
            show={entry: _made(run)[entry], f"{entry}, of the other run": _made(run)[entry]},
        )


def check_each_entry_speaks_of_its_own_part(run: Evidence) -> None:
    """an entry changes with its own part and with no other"""
    for name, entry in DIFFERENCES.items():
        others = [other for other in run.differing[name].split() if other in STATES and other != entry]
        if others:
            raise Failed(f"where {name}, the entry of another part changes", show={"entries that change": others})


def check_environment_is_kept(run: Evidence, reference: Evidence) -> None:
    """the record still tells versions, paths, device, dtype, threads and mode"""
    made, before = _made(run), _made(reference)
    for name in (*ENVIRONMENT, "command", *STATES):
        if made[name] is None or (name in ENVIRONMENT and made[name] != before[name]):
            raise Failed(
                f"the entry {name!r} is not what it was", show={"this code": made[name], "it was": before[name]}
            )
    if run.evaluating != reference.evaluating:
        raise Failed(
            "the entry 'mode' does not tell that a model is in evaluation mode",
            show={"this code": run.evaluating, "it was": reference.evaluating},
        )


SHIPPED = "    return hashlib.sha256(repr(state).encode()).hexdigest()[:12]\n"


def _digest(source: str) -> list[Edit]:
    """Rewrite the fingerprint."""
    return [function("digest", source)]


ACCEPTED: dict[str, list[Edit]] = {
    "bytes, with dtype and shape, in one stream": _digest(
        """
def digest(state):
    stream = hashlib.sha256()

    def write(part):
        if isinstance(part, torch.Tensor):
            stream.update(f"{part.dtype}{tuple(part.shape)}".encode())
            stream.update(part.detach().cpu().numpy().tobytes())
        elif isinstance(part, dict):
            stream.update(f"mapping {len(part)};".encode())
            for name, value in part.items():
                write(name)
                write(value)
        elif isinstance(part, (list, tuple)):
            stream.update(f"list {len(part)};".encode())
            for value in part:
                write(value)
        else:
            stream.update(f"{part!r};".encode())

    write(state)
    return stream.hexdigest()
"""
    ),
    "lists, with dtype and shape": _digest(
        """
def digest(state):
    if isinstance(state, torch.Tensor):
        state = [state.dtype, state.shape, state.tolist()]
    elif isinstance(state, dict):
        state = [(name, digest(part)) for name, part in state.items()]
    elif isinstance(state, (list, tuple)):
        state = [digest(part) for part in state]
    return hashlib.sha256(repr(state).encode()).hexdigest()[:12]
"""
    ),
    "leaves of the tree and their names": _digest(
        """
def digest(state):
    leaves = torch.utils._pytree.tree_leaves_with_path(state)
    text = ""
    for path, leaf in leaves:
        if isinstance(leaf, torch.Tensor):
            leaf = leaf.dtype, tuple(leaf.shape), leaf.flatten().tolist()
        text += f"{path} {leaf!r}\\n"
    return hashlib.md5(text.encode()).hexdigest()
"""
    ),
    "nothing is shortened": _digest(
        """
def digest(state):
    if isinstance(state, torch.Tensor):
        return [str(state.dtype), list(state.shape), state.tolist()]
    if isinstance(state, dict):
        return [[str(name), digest(part)] for name, part in state.items()]
    if isinstance(state, (list, tuple)):
        return [digest(part) for part in state]
    return repr(state)
"""
    ),
    "a printer of its own": [
        (
            SHIPPED,
            """    import pprint

    class Printer(pprint.PrettyPrinter):
        def format(self, part, context, levels, level):
            if isinstance(part, torch.Tensor):
                exact = part.dtype, part.shape, part.numpy().tobytes().hex()
                return repr(exact), True, False
            return super().format(part, context, levels, level)

    text = Printer(sort_dicts=False).pformat(state)
    return hashlib.sha256(text.encode()).hexdigest()[:12]
""",
        )
    ],
    "tensors replaced before the state is printed": [
        (SHIPPED, SHIPPED.replace("repr(state)", "repr(in_full(state))")),
        (
            "def record(model,",
            """def in_full(state):
    if isinstance(state, dict):
        return {name: in_full(part) for name, part in state.items()}
    if isinstance(state, (list, tuple)):
        return type(state)(in_full(part) for part in state)
    if isinstance(state, torch.Tensor):
        array = state.detach().numpy()
        crc = zlib.crc32(array.tobytes())
        return array.dtype.str, array.shape, crc, hashlib.sha1(array.tobytes()).hexdigest()
    return state


def record(model,""",
        ),
        ("import sys\n", "import sys\nimport zlib\n"),
    ],
}
RECURSION = """
def digest(state):
    if isinstance(state, torch.Tensor):
        return TENSOR
    if isinstance(state, dict):
        state = [(name, digest(part)) for name, part in state.items()]
    elif isinstance(state, (list, tuple)):
        state = [digest(part) for part in state]
    return hashlib.sha256(repr(state).encode()).hexdigest()[:12]
"""


def _tensors_by(expression: str) -> list[Edit]:
    """Go down to the tensors, and stand for each by an expression."""
    return _digest(RECURSION.replace("TENSOR", expression))


TRAPS: dict[str, Trap] = {
    "more numbers on the page": Trap(
        [("WORDS, REVIEWS, LENGTH", "torch.set_printoptions(threshold=10**6)\nWORDS, REVIEWS, LENGTH")],
        "check_every_difference_shows",
        "every number is in the text now, with four digits: what is lost below 0.0001 is still lost",
    ),
    "more digits, everywhere": Trap(
        [(SHIPPED, "    torch.set_printoptions(precision=17)\n" + SHIPPED)],
        "check_making_a_record_touches_nothing",
        "from the first record on the whole process prints its tensors in another way",
    ),
    "the text of the array": Trap(
        _tensors_by("str(state.numpy()) + str(state.dtype)"),
        "check_every_difference_shows",
        "numpy leaves out the middle of a long array too, and digits from the ninth on",
    ),
    "sums of the tensors": Trap(
        _tensors_by("str((state.dtype, state.shape, state.double().sum().item()))"),
        "check_every_difference_shows",
        "two numbers that change places leave the sum as it is; with one nan in it every sum is nan",
    ),
    "a checksum that takes no account of places": Trap(
        _tensors_by("str((state.dtype, state.shape, sorted(map(repr, state.flatten().tolist()))))"),
        "check_every_difference_shows",
        "the same numbers at other places are another state",
    ),
    "rounded, to be safe": Trap(
        _tensors_by("str((state.dtype, state.shape, state.double().numpy().round(6).tolist()))"),
        "check_every_difference_shows",
        "two runs that agree to six digits are near to each other; the record is asked whether they are the same",
    ),
    "the numbers alone": Trap(
        _tensors_by("repr(state.tolist())"),
        "check_every_difference_shows",
        "a tensor of four zeros reads [0.0, 0.0, 0.0, 0.0] in single and in double precision",
    ),
    "the bytes alone": Trap(
        _tensors_by("hashlib.sha256(state.numpy().tobytes()).hexdigest()"),
        "check_every_difference_shows",
        "sixteen bytes of zero are four floats, four whole numbers, or two rows of two",
    ),
    "tensors one by one, without their names": Trap(
        _digest(
            """
def digest(state):
    leaves = torch.utils._pytree.tree_leaves(state)
    texts = [str((x.dtype, x.shape, x.tolist())) if isinstance(x, torch.Tensor) else repr(x) for x in leaves]
    return hashlib.sha256("".join(sorted(texts)).encode()).hexdigest()[:12]
"""
        ),
        "check_every_difference_shows",
        "two layers of one shape that have changed places give the same texts",
    ),
    "the hash of Python": Trap(
        _tensors_by("hash((str(state.dtype), state.shape, state.numpy().tobytes()))"),
        "check_equal_states_have_equal_records",
        "Python salts the hash of bytes in every process anew: the record of the same state is another tomorrow",
    ),
    "the tensor itself": Trap(
        _tensors_by("hash(state)"),
        "check_equal_states_have_equal_records",
        "the hash of a tensor is its address: no run is the same as any other, not even as itself read from a file",
    ),
    "the bytes of the file": Trap(
        [
            (
                SHIPPED,
                "    file = io.BytesIO()\n    torch.save(state, file)\n    return hashlib.sha256(file.getvalue()).hexdigest()[:12]\n",
            ),
            ("import hashlib\n", "import hashlib\nimport io\n"),
        ],
        "check_equal_states_have_equal_records",
        "a file holds the memory behind a tensor, also what the tensor does not show, and which objects are shared",
    ),
    "a time in the record": Trap(
        [
            (SHIPPED, "    state = state, time.perf_counter()\n" + SHIPPED),
            ("import sys\n", "import sys\nimport time\n"),
        ],
        "check_equal_states_have_equal_records",
        "now no two records agree, and the record tells nothing any more",
    ),
    "draw a few numbers and look at them": Trap(
        [
            (
                '"order": digest(order.get_state()),',
                '"order": digest(torch.randperm(900, generator=order)),',
            ),
            ('"random": digest(torch.get_rng_state()),', '"random": digest(torch.rand(900)),'),
        ],
        "check_making_a_record_touches_nothing",
        "what the record draws the run does not get: a recorded run takes another course than one that is not",
    ),
    "everything in every entry": Trap(
        [
            *_tensors_by("str((state.dtype, state.shape, state.tolist()))"),
            ("digest(model.state_dict())", "digest([model.state_dict(), optimizer.state_dict()])"),
        ],
        "check_each_entry_speaks_of_its_own_part",
        "a lost momentum now reads as another set of weights",
    ),
    "the state alone": Trap(
        [
            *_tensors_by("str((state.dtype, state.shape, state.tolist()))"),
            (
                '        "threads": torch.get_num_threads(),\n        "mode": "training" if model.training else "evaluation",\n',
                "",
            ),
        ],
        "check_environment_is_kept",
        "equal states go different ways on other numbers of threads, and in evaluation mode",
    ),
    "what stands in the state, without the names": Trap(
        _digest(
            """
def digest(state):
    if isinstance(state, torch.Tensor):
        state = [state.dtype, state.shape, state.tolist()]
    elif isinstance(state, dict):
        state = [digest(part) for part in state.values()]
    elif isinstance(state, (list, tuple)):
        state = [digest(part) for part in state]
    return hashlib.sha256(repr(state).encode()).hexdigest()[:12]
"""
        ),
        "check_every_difference_shows",
        "the weights of a layer that has another name are not loaded by those who know it by the old one",
    ),
    "lists in an order that does not depend on theirs": Trap(
        _digest(
            """
def digest(state):
    if isinstance(state, torch.Tensor):
        state = [state.dtype, state.shape, state.tolist()]
    elif isinstance(state, dict):
        state = [(name, digest(part)) for name, part in state.items()]
    elif isinstance(state, (list, tuple)):
        state = sorted(digest(part) for part in state)
    return hashlib.sha256(repr(state).encode()).hexdigest()[:12]
"""
        ),
        "check_every_difference_shows",
        "the first of a list of rates is that of the first group",
    ),
}
