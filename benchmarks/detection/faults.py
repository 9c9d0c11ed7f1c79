"""Faults of real training runs in tiny versions, each with repairs that hide it and repairs that are right.

The identifiers are those of the course's catalogue; a star marks the ones that its detection goals are set on.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from detection.case import Case
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset, get_worker_info

CE = functional.cross_entropy


@dataclass(frozen=True)
class Fault:
    """A fault: `make(variant)` builds its case for "broken", for a wrong fix, and for a right one."""

    ident: str
    title: str
    layer: str
    causes: tuple[str, ...]
    make: Callable[[str], Case]
    wrong: tuple[str, ...]
    right: tuple[str, ...]
    starred: bool


FAULTS: list[Fault] = []


def fault(
    ident: str,
    title: str,
    layer: str,
    *causes: str,
    wrong: tuple[str, ...] = (),
    right: tuple[str, ...] = ("right",),
    star: bool = False,
) -> Callable[[Callable[[str], Case]], Callable[[str], Case]]:
    """Register the function that builds the cases of a fault."""

    def register(make: Callable[[str], Case]) -> Callable[[str], Case]:
        FAULTS.append(Fault(ident, title, layer, causes, make, wrong, right, star))
        return make

    return register


def noise(*shape: int, seed: int = 0) -> torch.Tensor:
    """Return normal numbers that are the same at every call."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def whole(rows: int, classes: int, seed: int = 1) -> torch.Tensor:
    """Return class indices that hold every class."""
    return torch.arange(rows)[torch.randperm(rows, generator=torch.Generator().manual_seed(seed))] % classes


def mlp(out: int = 4, *last: nn.Module, width: int = 32, features: int = 6) -> nn.Sequential:
    """Return a small network, the same at every call."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(features, width), nn.Tanh(), nn.Linear(width, out), *last)


def trained(
    model: nn.Module,
    loss_fn: Any,
    batch: Any,
    *,
    rate: float = 1e-3,
    kind: Any = torch.optim.Adam,
    order: str = "zero forward backward step",
    **more: Any,
) -> Case:
    """Return a case whose step does what `order` says: zero, forward, backward, clip, step, in any order."""
    optimizer = kind([parameter for parameter in model.parameters() if parameter.requires_grad], lr=rate)
    held: dict[str, Any] = {}

    def step() -> Any:
        for word in order.split():
            if word == "zero":
                optimizer.zero_grad()
            elif word == "forward":
                held["loss"] = loss_fn(model(*batch[:-1]), batch[-1])
            elif word == "backward":
                held["loss"].backward()
            elif word == "clip":
                nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            elif word == "step":
                optimizer.step()
        return held["loss"]

    output = model(*batch[:-1])
    contract = (loss_fn, output, batch[-1])
    return Case(model, optimizer, loss_fn, batch, step=step, contract=contract, **more)


# data


@fault(
    "D01",
    "Scaler fitted before the split",
    "data",
    "data.fit_reads_test_rows",
    "data.test_rows_fit_themselves",
    wrong=("a second scaler on the test rows",),
    right=("fit on train", "no scaler"),
    star=True,
)
def _(variant: str) -> Case:
    def prepare(train: Any, test: Any) -> Any:
        if variant == "no scaler":
            return train, test
        rows = np.concatenate([train, test]) if variant == "broken" else train
        other = test if variant.startswith("a second") else rows
        return (train - rows.mean(0)) / rows.std(0), (test - other.mean(0)) / other.std(0)

    random = np.random.default_rng(0)
    return Case(fit=(prepare, random.normal(size=(40, 3)), random.normal(size=(20, 3)) + 5))


@fault(
    "D02",
    "Same patient in train and validation",
    "data",
    "data.groups_in_both_splits",
    wrong=("exact duplicates removed",),
    right=("split by group",),
    star=True,
)
def _(variant: str) -> Case:
    random = np.random.default_rng(0)
    rows, groups = random.normal(size=(200, 4)), np.repeat(np.arange(40), 5)
    order = np.arange(200) if variant == "split by group" else random.permutation(200)
    train, validation = order[:150], order[150:]
    return Case(
        splits=(rows[train], rows[validation]),
        settings={"split_audit": {"group": (groups[train], groups[validation])}},
    )


@fault(
    "D03",
    "Test rows are a subset of the training rows",
    "data",
    "data.rows_in_both_splits",
    wrong=("duplicates removed inside each split", "another seed"),
    right=("removed before the split",),
)
def _(variant: str) -> Case:
    rows = np.random.default_rng(0).normal(size=(100, 4))
    both = np.concatenate([rows, rows])
    if variant == "removed before the split":
        both = np.unique(both, axis=0)
    order = np.random.default_rng(1 if variant == "another seed" else 2).permutation(len(both))
    train, test = both[order[: len(both) * 3 // 4]], both[order[len(both) * 3 // 4 :]]
    if variant.startswith("duplicates"):
        train, test = np.unique(train, axis=0), np.unique(test, axis=0)
    return Case(splits=(train, test))


class Rows(Dataset[Any]):
    """Rows with a transform."""

    def __init__(self, rows: torch.Tensor, transform: Any = None) -> None:
        self.rows, self.transform = rows, transform

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Any:
        row = self.rows[index]
        return row if self.transform is None else self.transform(row)


@fault(
    "D04",
    "random_split gives validation the augmentation",
    "data",
    "data.evaluation_reads_are_random",
    "data.training_reads_are_fixed",
    wrong=("the shared transform switched off",),
    right=("two datasets, same indices",),
    star=True,
)
def _(variant: str) -> Case:
    def jitter(row: torch.Tensor) -> torch.Tensor:
        return row + torch.randn(row.shape)

    train = Rows(noise(40, 3), None if variant.startswith("the shared") else jitter)
    validation = Rows(train.rows) if variant.startswith("two") else train
    splits = Subset(train, range(30)), Subset(validation, range(30, 40))
    return Case(splits=splits, settings={"split_audit": {"augmented": True}})


@fault(
    "D06",
    "The last rows of sorted labels are the validation set",
    "data",
    "data.labels_differ_between_splits",
    wrong=("shuffled after the cut",),
    right=("permuted before",),
)
def _(variant: str) -> Case:
    labels, rows = np.repeat([0, 1, 2], 40), np.random.default_rng(0).normal(size=(120, 3))
    order = np.random.default_rng(0).permutation(120) if variant.startswith("permuted") else np.arange(120)
    labels, rows = labels[order], rows[order]
    inner = np.random.default_rng(1).permutation(96) if variant.startswith("shuffled") else np.arange(96)
    return Case(splits=((rows[:96][inner], labels[:96][inner]), (rows[96:], labels[96:])))


class Live(Dataset[Any]):
    """A dataset with a generator that is made once, or in the worker."""

    def __init__(self, variant: str) -> None:
        self.variant, self.generator = variant, np.random.default_rng(0)

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> Any:
        if self.variant == "right":
            return torch.rand(2)
        if self.variant == "the index as the seed":
            return torch.as_tensor(np.random.default_rng(index).random(2))
        return torch.as_tensor(self.generator.random(2))


@fault(
    "D07",
    "Workers repeat the augmentation every epoch",
    "data",
    "data.same_randomness_every_epoch",
    wrong=("the index as the seed",),
)
def _(variant: str) -> Case:
    return Case(loaders=(DataLoader(Live(variant), 4, num_workers=2),), settings={"reads_audit": {"augmented": True}})


class Stream(IterableDataset[Any]):
    """A stream of twelve ids, sharded by worker or not."""

    def __init__(self, variant: str) -> None:
        self.variant = variant

    def __iter__(self) -> Any:
        info = get_worker_info()
        if self.variant == "sharded" and info is not None:
            return iter(range(info.id, 12, info.num_workers))
        return iter(range(12))


@fault(
    "D08",
    "IterableDataset replicated per worker",
    "data",
    "data.items_repeated",
    wrong=("stopped after twelve items",),
    right=("sharded",),
    star=True,
)
def _(variant: str) -> Case:
    limit = {"max_batches": 12} if variant.startswith("stopped") else {}
    return Case(loaders=(DataLoader(Stream(variant), num_workers=2),), settings={"reads_audit": {"epochs": 1, **limit}})


@fault("D17", "Validation loader with drop_last", "data", "data.rows_never_read", wrong=("a smaller batch",))
def _(variant: str) -> Case:
    size = 8 if variant == "a smaller batch" else 16
    loader = DataLoader(TensorDataset(noise(21, 2)), size, drop_last=variant != "right")
    return Case(loaders=(loader,), settings={"reads_audit": {"evaluation": True}})


# values


def _regression(variant: str) -> tuple[nn.Module, Any, tuple[torch.Tensor, torch.Tensor]]:
    x, y = noise(16, 6), noise(16, seed=3)
    model = mlp(1)
    losses = {
        "expanded to silence the warning": lambda o, t: functional.mse_loss(o.expand(16, 16), t.expand(16, 16)),
        "a column selected": lambda o, t: (o[:, 0] - t).square().mean(),
    }
    loss_fn = losses.get(variant, lambda o, t: (o - t).square().mean())
    return model, loss_fn, (x, y[:, None] if variant == "targets as a column" else y)


@fault(
    "S01",
    "Predictions [N,1] against targets [N]",
    "values",
    "values.broadcast",
    wrong=("expanded to silence the warning", "a smaller rate"),
    right=("targets as a column", "a column selected"),
    star=True,
)
def _(variant: str) -> Case:
    model, loss_fn, batch = _regression(variant)
    return trained(model, loss_fn, batch, rate=1e-4 if variant == "a smaller rate" else 1e-3)


@fault("S02", "Targets [B,3] against outputs [B,3,1,1]", "values", "values.broadcast", wrong=("summed",))
def _(variant: str) -> Case:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 3, 4), nn.Flatten() if variant == "right" else nn.Identity())
    reduction = "sum" if variant == "summed" else "mean"
    return trained(model, lambda o, t: functional.l1_loss(o, t, reduction=reduction), (noise(4, 1, 4, 4), noise(4, 3)))


@fault(
    "S03",
    "Softmax before CrossEntropyLoss",
    "values",
    "values.softmax_before_cross_entropy",
    "values.nll_without_log",
    wrong=("ten times the rate", "a temperature", "NLLLoss on probabilities"),
    right=("logits", "log_softmax"),
    star=True,
)
def _(variant: str) -> Case:
    last = {"logits": nn.Identity(), "log_softmax": nn.LogSoftmax(1)}.get(variant, nn.Softmax(1))
    loss_fn = {
        "NLLLoss on probabilities": functional.nll_loss,
        "a temperature": lambda o, t: CE((o.log() * 2).softmax(1), t),
    }.get(variant, CE)
    return trained(mlp(4, last), loss_fn, (noise(12, 6), whole(12, 4)), rate=1e-2 if variant[:3] == "ten" else 1e-3)


@fault(
    "S04",
    "Sigmoid before the with-logits loss",
    "values",
    "values.sigmoid_before_logits_loss",
    wrong=("pos_weight",),
    right=("logits", "BCELoss on probabilities"),
)
def _(variant: str) -> Case:
    weight = torch.tensor(3.0) if variant == "pos_weight" else None
    model = mlp(1) if variant == "logits" else mlp(1, nn.Sigmoid())
    loss_fn = (
        functional.binary_cross_entropy
        if variant.startswith("BCE")
        else (lambda o, t: functional.binary_cross_entropy_with_logits(o, t, pos_weight=weight))
    )
    return trained(model, loss_fn, (noise(16, 6), whole(16, 2).float()[:, None]))


@fault(
    "S06",
    "KL divergence of probabilities",
    "values",
    "values.kl_of_probabilities",
    wrong=("abs", "clamp", "swapped"),
    right=("log_softmax", "log_target"),
    star=True,
)
def _(variant: str) -> Case:
    def loss_fn(student: torch.Tensor, teacher: torch.Tensor) -> torch.Tensor:
        if variant == "log_softmax":
            return functional.kl_div(student.log_softmax(1), teacher.softmax(1), reduction="batchmean")
        if variant == "log_target":
            return functional.kl_div(
                student.log_softmax(1), teacher.log_softmax(1), reduction="batchmean", log_target=True
            )
        sides = (teacher, student) if variant == "swapped" else (student, teacher)
        loss = functional.kl_div(sides[0].softmax(1), sides[1].softmax(1), reduction="batchmean")
        return loss.abs() if variant == "abs" else loss.clamp(min=0) if variant == "clamp" else loss

    case = trained(mlp(4), loss_fn, (noise(12, 6), noise(12, 4, seed=5)))
    case.settings = {"check_loss_contract": {"kind": "divergence"}, "overfit_batch": {"floor": 0.0}}
    return case


class Softmax(nn.Module):
    """A classifier that ends with a softmax over some dimension."""

    def __init__(self, dim: int, renormalised: bool) -> None:
        super().__init__()
        self.net, self.dim, self.renormalised = mlp(4), dim, renormalised

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores = self.net(x).softmax(self.dim)
        return scores / scores.sum(1, keepdim=True) if self.renormalised else scores


@fault(
    "S08", "softmax over the batch", "values", "values.softmax_over_rows", "values.rows_mix", wrong=("renormalised",)
)
def _(variant: str) -> Case:
    model = Softmax(1 if variant == "right" else 0, variant == "renormalised")
    return trained(model, lambda o, t: functional.nll_loss(o.clamp_min(1e-9).log(), t), (noise(8, 6), whole(8, 4)))


TOKENS = torch.randint(1, 5, (4, 8), generator=torch.Generator().manual_seed(2))
TOKENS[0, 6:] = TOKENS[1, 4:] = TOKENS[3, 7:] = 0  # padding


class Tagger(nn.Module):
    """Scores for each token."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.head = nn.Embedding(5, 16), nn.Linear(16, 5)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.head(self.embedding(ids))
        return scores


@fault(
    "S09",
    "Loss averaged over padding",
    "values",
    "values.loss_reads_padding",
    "values.mean_over_padding",
    wrong=("masked, divided by all", "padding weighted 0.1"),
    right=("ignore_index", "masked mean"),
    star=True,
)
def _(variant: str) -> Case:
    def loss_fn(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        scores = output.transpose(1, 2)
        if variant == "ignore_index":
            return CE(scores, target, ignore_index=0)
        if variant == "padding weighted 0.1":
            return CE(scores, target, weight=torch.tensor([0.1, 1, 1, 1, 1]))
        if variant.startswith("masked"):
            each = CE(scores, target, reduction="none") * (target != 0)
            return each.mean() if "all" in variant else each.sum() / (target != 0).sum()
        return CE(scores, target)

    case = trained(Tagger(), loss_fn, (TOKENS, TOKENS))
    case.settings = {"check_loss_contract": {"ignore": 0}}
    return case


class Attention(nn.Module):
    """Attention over tokens with a mask over keys, over queries, inverted, or none."""

    def __init__(self, mask: str, pad: torch.Tensor) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.head, self.mask, self.pad = nn.Embedding(5, 8), nn.Linear(8, 5), mask, pad

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embedding(ids)
        scores = x @ x.transpose(1, 2) / 8**0.5
        if self.mask == "keys":
            scores = scores.masked_fill(self.pad[:, None], -torch.inf)
        elif self.mask == "queries":
            scores = scores.masked_fill(self.pad[:, :, None], -1e4)
        elif self.mask == "inverted":
            scores = scores.masked_fill(~self.pad[:, None], -1e4)
        mixed: torch.Tensor = self.head(scores.softmax(-1) @ x)
        return mixed


def _masked(mask: str) -> Case:
    pad = TOKENS == 0
    case = trained(Attention(mask, pad), lambda o, t: CE(o.transpose(1, 2), t, ignore_index=0), (TOKENS, TOKENS))
    case.settings = {"check_values": {"padding": pad}, "check_loss_contract": {"ignore": 0}}
    return case


@fault("S10", "Padding mask over queries", "values", "values.model_reads_padding", wrong=("no mask",))
def _(variant: str) -> Case:
    return _masked({"right": "keys", "no mask": "none"}.get(variant, "queries"))


@fault("S11", "Attention mask inverted", "values", "values.model_reads_padding", wrong=("mask dropped",))
def _(variant: str) -> Case:
    return _masked({"right": "keys", "mask dropped": "none"}.get(variant, "inverted"))


@fault(
    "S13",
    "Causal labels shifted twice",
    "values",
    "values.labels_shifted_twice",
    wrong=("a lower temperature",),
    right=("shifted once", "shifted in the loss only"),
    star=True,
)
def _(variant: str) -> Case:
    tokens = torch.randint(0, 5, (4, 12), generator=torch.Generator().manual_seed(2))

    def loss_fn(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        if variant == "a lower temperature":
            output = output * 2
        for _ in range(1 if variant.startswith("shifted") else 2):
            output, target = output[:, :-1], target[:, 1:]
        return CE(output.flatten(0, 1), target.flatten())

    case = trained(Tagger(), loss_fn, (tokens, tokens))
    case.settings = {"check_loss_contract": {"kind": "next token"}, "overfit_batch": None}  # type: ignore[dict-item]
    return case


@fault(
    "S14",
    "view where permute was needed",
    "values",
    "values.perfect_prediction_costs",
    wrong=("a larger weight",),
    right=("transpose", "flattened"),
    star=True,
)
def _(variant: str) -> Case:
    tokens = torch.randint(0, 5, (4, 12), generator=torch.Generator().manual_seed(2))

    def loss_fn(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        if variant == "transpose":
            return CE(output.transpose(1, 2), target)
        if variant == "flattened":
            return CE(output.flatten(0, 1), target.flatten())
        return CE(output.reshape(4, 5, 12), target) * (10 if variant == "a larger weight" else 1)

    return trained(Tagger(), loss_fn, (tokens, tokens))


class Recurrent(nn.Module):
    """An LSTM that takes rows for time, or not."""

    def __init__(self, batch_first: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.lstm, self.head = nn.LSTM(3, 16, batch_first=batch_first), nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.head(self.lstm(x)[0][:, -1])
        return scores


@fault("S15", "LSTM fed [batch, time] without batch_first", "values", "values.rows_mix", wrong=("shuffling off",))
def _(variant: str) -> Case:
    return trained(Recurrent(variant == "right"), CE, (noise(8, 5, 3), whole(8, 4)))


@fault(
    "S18", "Softmax over one unit", "values", "values.softmax_over_one_unit", wrong=("more layers",), right=("sigmoid",)
)
def _(variant: str) -> Case:
    last = nn.Sigmoid() if variant == "sigmoid" else nn.Softmax(1)
    model = mlp(1, last, width=64 if variant == "more layers" else 32)
    return trained(model, functional.binary_cross_entropy, (noise(16, 6), whole(16, 2).float()[:, None]))


@fault(
    "S19",
    "Activation that cannot reach the targets",
    "values",
    "values.unreachable_targets",
    wrong=("a larger network",),
    right=("linear head", "targets scaled"),
)
def _(variant: str) -> Case:
    model = mlp(1) if variant == "linear head" else mlp(1, nn.Sigmoid(), width=128 if variant[:8] == "a larger" else 32)
    goal = noise(16, 1, seed=3) * 20 + 50
    goal = goal.sub(goal.min()).div(goal.max() - goal.min()).mul(0.8).add(0.1) if variant == "targets scaled" else goal
    return trained(model, functional.mse_loss, (noise(16, 6), goal / (50 if variant == "linear head" else 1)))


@fault(
    "S22",
    "Softmax head for many labels",
    "values",
    "values.softmax_for_many_labels",
    wrong=("class weights",),
    right=("sigmoid",),
)
def _(variant: str) -> Case:
    many = (noise(16, 4, seed=4) > -0.5).float()
    weight = torch.tensor([1.0, 2.0, 1.0, 2.0]) if variant == "class weights" else None
    model = mlp(4, nn.Sigmoid() if variant == "sigmoid" else nn.Softmax(1))
    return trained(model, lambda o, t: functional.binary_cross_entropy(o, t, weight=weight), (noise(16, 6), many))


# tiny batch


class EpochLoop:
    """A loop that validates in the middle of an epoch."""

    def __init__(self, variant: str) -> None:
        torch.manual_seed(0)
        self.variant = variant
        self.model = nn.Sequential(nn.Linear(6, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 4))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-2)
        self.x, self.y = noise(12, 6), whole(12, 4)

    def __call__(self) -> torch.Tensor:
        self.optimizer.zero_grad()
        loss = CE(self.model(self.x), self.y)
        loss.backward()
        self.optimizer.step()
        self.validate()
        return loss.detach()

    def validate(self) -> float:
        modes = {module: module.training for module in self.model.modules()}
        if self.variant != "no_grad instead of eval":
            self.model.eval()
        with torch.no_grad():
            loss = CE(self.model(self.x + 3), self.y).item()
        if self.variant == "modes restored":
            for module, training in modes.items():
                module.training = training
        elif self.variant == "train after validation":
            self.model.train()
        return loss


@fault(
    "T01",
    "train() only at epoch start, eval() inside",
    "tiny batch",
    "tiny_batch.trains_in_eval_mode",
    "evaluation.train_mode",
    wrong=("no_grad instead of eval", "a smaller rate"),
    right=("modes restored", "train after validation"),
    star=True,
)
def _(variant: str) -> Case:
    loop = EpochLoop(variant)
    settings = {"overfit_batch": {"step": loop, "optimizer": loop.optimizer, "steps": 60}}
    return Case(loop.model, loop.optimizer, CE, (loop.x, loop.y), evaluate=loop.validate, settings=settings)


@fault(
    "T03",
    "Constant initialisation",
    "tiny batch",
    "tiny_batch.constant_initialisation",
    wrong=("a larger rate", "float64", "dropout"),
    right=("random", "orthogonal"),
    star=True,
)
def _(variant: str) -> Case:
    model = mlp(3, width=16)
    if variant == "dropout":
        model = nn.Sequential(model[0], model[1], nn.Dropout(0.5), model[2])
    if variant == "orthogonal":
        nn.init.orthogonal_(model[0].weight)
    elif variant != "random":
        for parameter in model.parameters():
            nn.init.constant_(parameter, 0.1)
    x = noise(12, 6)
    if variant == "float64":
        model, x = model.double(), x.double()
    return trained(model, CE, (x, whole(12, 3)), rate=1.0 if variant == "a larger rate" else 1e-2)


@fault("T04", "Learning rate far too large", "update", "update.rate_too_large", wrong=("clipped at the same rate",))
def _(variant: str) -> Case:
    order = "zero forward backward clip step" if variant.startswith("clipped") else "zero forward backward step"
    rate = 0.05 if variant == "right" else 500.0
    return trained(mlp(3), CE, (noise(12, 6), whole(12, 3)), rate=rate, kind=torch.optim.SGD, order=order)


@fault("T05", "Learning rate far too small", "update", "update.rate_too_small", wrong=("another architecture",))
def _(variant: str) -> Case:
    width = 64 if variant == "another architecture" else 32
    rate = 0.05 if variant == "right" else 1e-7
    return trained(mlp(3, width=width), CE, (noise(12, 6), whole(12, 3)), rate=rate, kind=torch.optim.SGD)


# gradient path


class Blocks(nn.Module):
    """A network whose hidden blocks stand in a list of some kind."""

    def __init__(self, variant: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        blocks = [nn.Linear(6, 6), nn.Linear(6, 6)]
        self.blocks: Any = nn.ModuleList(blocks) if variant == "ModuleList" else blocks
        if variant == "add_module":
            for number, block in enumerate(blocks):
                self.add_module(f"block{number}", block)
        self.head = nn.Linear(6, 128 if variant == "a larger head" else 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = torch.tanh(block(x))
        return self.head(x)[:, :4]


@fault(
    "G01",
    "Sub-modules in a plain list",
    "gradient path",
    "gradient_path.unregistered_parameters",
    wrong=("parameters given to the optimizer by hand", "a larger head"),
    right=("ModuleList", "add_module"),
    star=True,
)
def _(variant: str) -> Case:
    model = Blocks(variant)
    case = trained(model, CE, (noise(12, 6), whole(12, 4)), rate=1e-2)
    if "by hand" in variant:
        case.optimizer.add_param_group({"params": [p for block in model.blocks for p in block.parameters()]})
    return case


@fault(
    "G02",
    "argmax inside the loss",
    "gradient path",
    "gradient_path.loss_without_graph",
    "gradient_path.leaf_loss",
    wrong=("requires_grad_ on the loss", "torch.tensor with requires_grad"),
    right=("cross entropy", "expected errors"),
    star=True,
)
def _(variant: str) -> Case:
    def loss_fn(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        if variant == "cross entropy":
            return CE(output, target)
        if variant == "expected errors":
            return 1 - output.softmax(1)[torch.arange(len(target)), target].mean()
        wrong = (output.argmax(1) != target).float().mean()
        if variant == "requires_grad_ on the loss":
            return wrong.requires_grad_(True)
        return torch.tensor(wrong.item(), requires_grad=True) if variant != "broken" else wrong

    case = trained(mlp(4), loss_fn, (noise(12, 6), whole(12, 4)))
    case.settings = {"overfit_batch": None}  # type: ignore[dict-item]
    case.contract = None if variant != "cross entropy" else case.contract
    case.step = case.step if variant not in ("broken",) else None
    return case


class Cut(nn.Module):
    """An encoder and a head, with a cut between."""

    def __init__(self, variant: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.encoder, self.head, self.variant = nn.Linear(6, 16), nn.Linear(16, 4), variant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        features = torch.tanh(self.encoder(x))
        if self.variant == "right":
            return self.head(features)
        if self.variant == "torch instead of numpy":
            return self.head(features.square())
        if self.variant == "numpy instead of detach":
            features = torch.from_numpy(features.detach().numpy())
        return self.head(features.detach() if self.variant != "data instead of detach" else features.data)


@fault(
    "G03",
    "detach in the middle of the model",
    "gradient path",
    "gradient_path.cut",
    wrong=("a larger rate", "numpy instead of detach", "data instead of detach"),
    right=("right", "torch instead of numpy"),
    star=True,
)
def _(variant: str) -> Case:
    return trained(Cut(variant), CE, (noise(12, 6), whole(12, 4)), rate=0.1 if variant[:8] == "a larger" else 1e-2)


@fault(
    "G04",
    "Recurrent state carried without detach",
    "gradient path",
    "gradient_path.graph_grows",
    wrong=("retain_graph", "smaller batches"),
    right=("detached", "no state"),
    star=True,
)
def _(variant: str) -> Case:
    torch.manual_seed(0)
    rows = 2 if variant == "smaller batches" else 4
    model = nn.ModuleDict({"cell": nn.LSTMCell(3, 8), "head": nn.Linear(8, 1)})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    x, held = noise(rows, 3), {"state": (torch.zeros(rows, 8), torch.zeros(rows, 8))}

    def step() -> torch.Tensor:
        state = held["state"]
        if variant == "detached":
            state = (state[0].detach(), state[1].detach())
        state = model["cell"](x, None if variant == "no state" else state)
        held["state"] = state
        loss = model["head"](state[0]).square().mean()
        optimizer.zero_grad()
        loss.backward(retain_graph=variant == "retain_graph")
        optimizer.step()
        return loss

    return Case(model, optimizer, growth=step)


@fault(
    "G05",
    "where hides a nan in forward",
    "gradient path",
    "gradient_path.non_finite_gradient",
    "gradient_path.non_finite_backward",
    wrong=("nan_to_num on the output", "a constant added"),
    right=("inner where", "clamped before"),
    star=True,
)
def _(variant: str) -> Case:
    def loss_fn(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        positive = output - output.detach().min()  # one row at exactly 0
        inner = torch.where(positive > 0, positive, torch.ones_like(positive)) if variant == "inner where" else positive
        inner = inner.clamp_min(1e-6) if variant == "clamped before" else inner
        roots = torch.where(positive > 0, inner.sqrt(), torch.zeros_like(positive))
        roots = torch.nan_to_num(roots) if variant.startswith("nan_to_num") else roots
        return (roots - target).square().mean() + (1e-3 if variant.startswith("a constant") else 0)

    case = trained(mlp(1), loss_fn, (noise(16, 6), noise(16, 1, seed=3)))
    case.contract, case.settings = None, {"overfit_batch": None}  # type: ignore[dict-item]
    return case


@fault(
    "G06",
    "Root of a sum of squares at zero",
    "gradient path",
    "gradient_path.non_finite_gradient",
    "gradient_path.non_finite_backward",
    wrong=("epsilon outside",),
    right=("epsilon inside", "norm"),
)
def _(variant: str) -> Case:
    def loss_fn(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        apart = output - torch.cat([output[:1], target[1:]])  # the first pair coincides
        if variant == "norm":
            return apart.norm(dim=1).mean()
        inside = 1e-12 if variant == "epsilon inside" else 0.0
        return (apart.square().sum(1) + inside).sqrt().mean() + (1e-6 if variant == "epsilon outside" else 0.0)

    case = trained(mlp(4), loss_fn, (noise(8, 6), noise(8, 4, seed=3)))
    case.contract, case.settings = None, {"overfit_batch": None}  # type: ignore[dict-item]
    return case


@fault(
    "G08",
    "Deep sigmoid stack",
    "gradient path",
    "gradient_path.vanishing_gradient",
    wrong=("loss times 1000",),
    right=("relu", "residual"),
)
def _(variant: str) -> Case:
    torch.manual_seed(0)

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(16, 16)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.layer(x)
            return x + torch.tanh(y) if variant == "residual" else y.relu() if variant == "relu" else y.sigmoid()

    model = nn.Sequential(nn.Linear(6, 16), *(Block() for _ in range(10)), nn.Linear(16, 4))
    scale = 1000 if variant.startswith("loss") else 1
    case = trained(model, lambda o, t: scale * CE(o, t), (noise(16, 6), whole(16, 4)))
    case.settings = {"overfit_batch": {"steps": 300}}
    return case


@fault(
    "S20",
    "ReLU after the last layer",
    "gradient path",
    "gradient_path.all_gradients_zero",
    "gradient_path.dead_units",
    wrong=("a smaller rate",),
    right=("no activation", "softplus"),
)
def _(variant: str) -> Case:
    last = {"no activation": nn.Identity(), "softplus": nn.Softplus()}.get(variant, nn.ReLU())
    model = mlp(1, last)
    with torch.no_grad():
        model[2].bias.fill_(-5.0)  # the unlucky start
    goal = noise(16, 1, seed=3).abs()
    return trained(model, functional.mse_loss, (noise(16, 6), goal), rate=1e-4 if variant[:3] == "a s" else 1e-2)


# update


@fault(
    "U01",
    "Gradients never cleared",
    "update",
    "update.gradients_not_cleared",
    "update.cleared_before_step",
    wrong=("clipped", "a smaller rate", "cleared between backward and step"),
    right=("cleared first", "cleared last"),
    star=True,
)
def _(variant: str) -> Case:
    order = {
        "clipped": "forward backward clip step",
        "cleared first": "zero forward backward step",
        "cleared last": "forward backward step zero",
        "cleared between backward and step": "forward backward zero step",
    }.get(variant, "forward backward step")
    rate = 1e-4 if variant == "a smaller rate" else 1e-3
    return trained(mlp(4), CE, (noise(12, 6), whole(12, 4)), rate=rate, order=order)


def _window(weight: Callable[[int, int], float], clear_inside: bool, sizes: tuple[int, ...]) -> Case:
    model = mlp(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rows = sum(sizes)
    x, y = noise(rows, 6), noise(rows, 1, seed=3)
    parts = list(zip(x.split(sizes), y.split(sizes), strict=True))

    def accumulate() -> None:
        optimizer.zero_grad()
        for part, goal in parts:
            if clear_inside:
                optimizer.zero_grad()
            (functional.mse_loss(model(part), goal) * weight(len(goal), rows)).backward()
        optimizer.step()

    def full() -> None:
        optimizer.zero_grad()
        functional.mse_loss(model(x), y).backward()

    return Case(model, optimizer, accumulate=(accumulate, full))


@fault("U02", "zero_grad inside the accumulation loop", "update", "update.accumulation_cleared", wrong=("more steps",))
def _(variant: str) -> Case:
    sizes = (2,) * 8 if variant == "more steps" else (4,) * 4
    return _window(lambda rows, all_rows: 1 / len(sizes), variant != "right", sizes)


@fault("U04", "Accumulated loss not divided", "update", "update.accumulation_not_divided", wrong=("a smaller window",))
def _(variant: str) -> Case:
    sizes = (4, 4) if variant == "a smaller window" else (4,) * 4
    return _window(lambda rows, all_rows: 1 / len(sizes) if variant == "right" else 1.0, False, sizes)


@fault(
    "U05",
    "Micro-batches of unequal size averaged equally",
    "update",
    "update.accumulation_uneven",
    wrong=("divided by the number of parts",),
    right=("by rows",),
    star=True,
)
def _(variant: str) -> Case:
    sizes = (10, 2, 2, 2)
    weights = {"by rows": lambda rows, all_rows: rows / all_rows, "broken": lambda rows, all_rows: 0.25}
    return _window(weights.get(variant, lambda rows, all_rows: 1 / len(sizes)), False, sizes)


@fault(
    "U06",
    "Clipping after the step",
    "update",
    "update.clip_after_step",
    wrong=("a smaller rate",),
    right=("before the step", "no clip"),
    star=True,
)
def _(variant: str) -> Case:
    order = {"before the step": "zero forward backward clip step", "no clip": "zero forward backward step"}
    rate = 1e-4 if variant == "a smaller rate" else 1e-3
    return trained(
        mlp(4), CE, (noise(12, 6), whole(12, 4)), rate=rate, order=order.get(variant, "zero forward backward step clip")
    )


@fault("U07", "Clipping before backward", "update", "update.clip_before_backward", wrong=("clipped twice before",))
def _(variant: str) -> Case:
    order = {"right": "zero forward backward clip step", "clipped twice before": "zero clip clip forward backward step"}
    return trained(
        mlp(4), CE, (noise(12, 6), whole(12, 4)), order=order.get(variant, "zero clip forward backward step")
    )


@fault(
    "U09",
    "Optimizer built before layers were replaced",
    "update",
    "update.stale_entries",
    wrong=("requires_grad_ on the new layer", "a larger rate"),
    right=("built after", "group added"),
    star=True,
)
def _(variant: str) -> Case:
    case = trained(mlp(4), CE, (noise(12, 6), whole(12, 4)), rate=1e-2 if variant == "a larger rate" else 1e-3)
    assert isinstance(case.model, nn.Sequential)
    case.model[2] = nn.Linear(32, 4).requires_grad_(True)
    if variant == "built after":
        return trained(case.model, CE, (noise(12, 6), whole(12, 4)))
    if variant == "group added":
        held = case.optimizer.param_groups[0]["params"]
        case.optimizer.param_groups[0]["params"] = held[:2]
        case.optimizer.add_param_group({"params": case.model[2].parameters()})
    return case


@fault(
    "U12",
    "Best weights kept by reference",
    "update",
    "update.snapshot_by_reference",
    wrong=("copy of the dictionary", "the model itself"),
    right=("deepcopy", "clones"),
    star=True,
)
def _(variant: str) -> Case:
    model = mlp(4)
    state = model.state_dict()
    kept: dict[str, Any] = {
        "copy of the dictionary": state.copy(),
        "the model itself": model,
        "deepcopy": copy.deepcopy(state),
        "clones": {name: value.clone() for name, value in state.items()},
    }
    return Case(model, snapshot=kept.get(variant, state))


@fault(
    "U13",
    "Frozen backbone still updates BatchNorm",
    "update",
    "update.frozen_statistics_move",
    wrong=("left out of the optimizer", "momentum of one layer 0"),
    right=("eval on the frozen part", "group norm"),
    star=True,
)
def _(variant: str) -> Case:
    torch.manual_seed(0)
    norm = nn.GroupNorm(4, 16) if variant == "group norm" else nn.BatchNorm1d(16)
    other = nn.Identity() if variant == "group norm" else nn.BatchNorm1d(16)
    model = nn.Sequential(nn.Sequential(nn.Linear(6, 16), norm, nn.Tanh(), other), nn.Linear(16, 4))
    model[0].requires_grad_(False)
    if variant == "momentum of one layer 0":
        norm.momentum = 0.0  # type: ignore[union-attr, assignment]
    if variant == "eval on the frozen part":
        model[0].eval()
    case = trained(model, CE, (noise(16, 6), whole(16, 4)))
    case.settings = {"overfit_batch": {"floor": 1.3}}
    return case


@fault("U14", "eval() used as freeze", "update", "update.eval_is_not_frozen", wrong=("a smaller rate",))
def _(variant: str) -> Case:
    model = mlp(4)
    model[0].eval()
    if variant == "right":
        model[0].requires_grad_(False)
    return trained(model, CE, (noise(12, 6), whole(12, 4)), rate=1e-4 if variant == "a smaller rate" else 1e-2)


@fault(
    "U15",
    "Frozen weights move through momentum",
    "update",
    "update.frozen_parameter_moves",
    wrong=("a smaller rate",),
    right=("gradients set to None", "left out"),
)
def _(variant: str) -> Case:
    model = mlp(4)
    batch = noise(12, 6), whole(12, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3 if variant == "a smaller rate" else 1e-2, momentum=0.9)

    def step() -> torch.Tensor:
        optimizer.zero_grad(set_to_none=variant == "gradients set to None")
        loss = CE(model(batch[0]), batch[1])
        loss.backward()
        optimizer.step()
        return loss

    step()
    model[0].requires_grad_(False)
    if variant == "left out":
        optimizer.param_groups[0]["params"] = list(model[2].parameters())
    return Case(model, optimizer, CE, batch, step=step)


@fault("U20", "zero_grad between backward and step", "update", "update.cleared_before_step", wrong=("a larger rate",))
def _(variant: str) -> Case:
    order = "zero forward backward step" if variant == "right" else "forward backward zero step"
    return trained(
        mlp(4), CE, (noise(12, 6), whole(12, 4)), rate=0.1 if variant[:8] == "a larger" else 1e-3, order=order
    )


# evaluation


class Evaluated(nn.Module):
    """Batch norm and dropout, as a module or as a function that may ignore the mode."""

    def __init__(self, functional_dropout: bool = False, follows_mode: bool = True) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.norm, self.head = nn.Linear(6, 16), nn.BatchNorm1d(16), nn.Linear(16, 4)
        self.functional_dropout, self.follows_mode = functional_dropout, follows_mode

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.layer(x)).relu()
        if self.functional_dropout:
            x = functional.dropout(x, 0.5, self.training or not self.follows_mode)
        scores: torch.Tensor = self.head(x)
        return scores


def _evaluation(variant: str, model: nn.Module) -> Case:
    def evaluate() -> float:
        modes = {module: module.training for module in model.modules()}
        if variant in ("restored", "inference mode", "right", "broken dropout", "averaged dropout"):
            model.eval()
        with torch.inference_mode() if variant == "inference mode" else torch.no_grad():
            passes = 3 if "averaged" in variant else 1
            loss = sum(CE(model(noise(12, 6) + 2), whole(12, 4)).item() for _ in range(passes)) / passes
        for module, training in modes.items():
            module.training = training
        return loss

    return Case(model, evaluate=evaluate)


@fault(
    "E01",
    "Validation without eval mode",
    "evaluation",
    "evaluation.train_mode",
    wrong=("averaged passes", "no_grad alone"),
    right=("restored", "inference mode"),
    star=True,
)
def _(variant: str) -> Case:
    return _evaluation(variant, Evaluated())


@fault(
    "E02",
    "F.dropout without training=self.training",
    "evaluation",
    "evaluation.dropout_ignores_eval",
    wrong=("averaged",),
)
def _(variant: str) -> Case:
    mode = {"broken": "broken dropout", "averaged": "averaged dropout"}.get(variant, variant)
    return _evaluation(mode, Evaluated(functional_dropout=True, follows_mode=variant == "right"))


SCORES = noise(30, seed=7) * 2
BITS = (SCORES + noise(30, seed=8) > 0).float()


def _accuracy(output: torch.Tensor, target: torch.Tensor, threshold: float = 0.0) -> float:
    return ((output > threshold) == (target > 0.5)).float().mean().item()


def _f1(output: torch.Tensor, target: torch.Tensor) -> float:
    guess = output > 0
    hits = (guess & (target > 0.5)).sum()
    return float(2 * hits / (guess.sum() + (target > 0.5).sum()).clamp(min=1))


def _once(metric: Callable[..., float]) -> Callable[[list[Any]], float]:
    return lambda batches: metric(torch.cat([o for o, _ in batches]), torch.cat([t for _, t in batches]))


def _mean(metric: Callable[..., float]) -> Callable[[list[Any]], float]:
    return lambda batches: sum(metric(o, t) for o, t in batches) / len(batches)


def _by_rows(metric: Callable[..., float]) -> Callable[[list[Any]], float]:
    return lambda batches: sum(metric(o, t) * len(t) for o, t in batches) / sum(len(t) for _, t in batches)


@fault(
    "E04",
    "Mean of batch means",
    "evaluation",
    "evaluation.mean_of_batch_means",
    wrong=("of rounded batches",),
    right=("by rows", "once"),
)
def _(variant: str) -> Case:
    metric = {"by rows": _by_rows(_accuracy), "once": _once(_accuracy)}.get(variant, _mean(_accuracy))
    return Case(metric=(metric, SCORES, BITS))


@fault(
    "E05",
    "Non-additive metric averaged over batches",
    "evaluation",
    "evaluation.metric_of_batches_averaged",
    wrong=("weighted by batch size",),
    right=("counts collected",),
    star=True,
)
def _(variant: str) -> Case:
    metric = {"weighted by batch size": _by_rows(_f1), "counts collected": _once(_f1)}.get(variant, _mean(_f1))
    return Case(metric=(metric, SCORES, BITS))


@fault(
    "E06", "Metric not reset between epochs", "evaluation", "evaluation.metric_not_reset", wrong=("a moving average",)
)
def _(variant: str) -> Case:
    seen: list[Any] = []

    def evaluate(batches: list[Any]) -> float:
        if variant == "right":
            seen.clear()
        seen.extend(batches)
        value = _once(_accuracy)(seen)
        return 0.9 * value + 0.1 * len(seen) if variant == "a moving average" else value

    return Case(metric=(evaluate, SCORES, BITS))


@fault(
    "E08",
    "Logits thresholded at 0.5",
    "evaluation",
    "evaluation.logits_threshold",
    wrong=("tuned on the test rows",),
    right=("at 0", "sigmoid first"),
    star=True,
)
def _(variant: str) -> Case:
    metric = {
        "tuned on the test rows": lambda o, t: _accuracy(o, t, 0.3),
        "at 0": _accuracy,
        "sigmoid first": lambda o, t: _accuracy(o.sigmoid(), t, 0.5),
    }.get(variant, lambda o, t: _accuracy(o, t, 0.5))
    return Case(metric=(_once(metric), SCORES, BITS))


@fault(
    "E09",
    "Metric guesses whether it gets logits",
    "evaluation",
    "evaluation.metric_guesses_logits",
    wrong=("larger batches",),
    right=("sigmoid first", "logits declared"),
    star=True,
)
def _(variant: str) -> Case:
    output = torch.cat([torch.linspace(0.05, 0.4, 29), torch.tensor([3.0])])

    def guessing(scores: torch.Tensor, target: torch.Tensor) -> float:
        if variant == "sigmoid first":
            scores = scores.sigmoid()
        if variant == "logits declared":
            return _accuracy(scores, target)
        logits = bool(((scores < 0) | (scores > 1)).any())
        return _accuracy(scores.sigmoid() if logits else scores, target, 0.5)

    sizes = (20, 10) if variant == "larger batches" else (14, 10, 6)
    case = Case(metric=(_by_rows(guessing), output, torch.ones(30)))
    case.settings = {"metric_check": {"sizes": sizes}}
    return case


# process: resuming and loading


class Run:
    """A program that seeds, shuffles, and steps Adam with a schedule."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = mlp(1)
        torch.manual_seed(0)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.1)
        self.scheduler = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.9)

    def step(self) -> tuple[float, torch.Tensor]:
        ids = torch.randperm(20)[:4]
        self.optimizer.zero_grad()
        loss = self.model(noise(20, 6)[ids]).square().mean()
        loss.backward()
        self.optimizer.step()
        self.scheduler.step()
        return loss.item(), ids


def _resumed(parts: tuple[str, ...], seed: int | None = None, rate: float | None = None) -> Case:
    def save(run: Run) -> dict[str, Any]:
        state: dict[str, Any] = {part: getattr(run, part).state_dict() for part in ("model", "optimizer", "scheduler")}
        return state | {"generator": torch.get_rng_state()}

    def load(run: Run, state: dict[str, Any]) -> None:
        for part in parts:
            if part == "generator":
                torch.set_rng_state(state["generator"])
            else:
                getattr(run, part).load_state_dict(state[part])
        if seed is not None:
            torch.manual_seed(seed)
        if rate is not None:
            run.optimizer.param_groups[0]["lr"] = rate

    return Case(resume=(Run, save, load))


ALL = ("model", "optimizer", "scheduler", "generator")


@fault(
    "R01",
    "Resume restores weights only",
    "process",
    "process.resume_loses_optimizer_state",
    wrong=("a smaller rate after resume",),
    right=("everything",),
    star=True,
)
def _(variant: str) -> Case:
    parts = ALL if variant == "everything" else ("model", "scheduler", "generator")
    return _resumed(parts, rate=0.01 if variant.startswith("a smaller") else None)


@fault(
    "R02",
    "Scheduler not restored",
    "process",
    "process.resume_loses_schedule",
    wrong=("the rate set by hand",),
    right=("everything",),
)
def _(variant: str) -> Case:
    parts = ALL if variant == "everything" else ("model", "optimizer", "generator")
    return _resumed(parts, rate=0.0729 if variant.startswith("the rate") else None)


@fault(
    "R04",
    "Filtered load from a nested checkpoint",
    "process",
    "process.nothing_loaded",
    wrong=("strict=False", "saved again"),
    right=("unwrapped",),
    star=True,
)
def _(variant: str) -> Case:
    torch.manual_seed(5)
    state = nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 4)).state_dict()
    held: Any = state if variant == "unwrapped" else {"state_dict": {"model": copy.deepcopy(state)}}
    model = mlp(4)

    def load() -> Any:
        if variant == "strict=False":
            return model.load_state_dict(held, strict=False)
        kept = {name: value for name, value in held.items() if name in model.state_dict()}
        return model.load_state_dict({**model.state_dict(), **kept})

    return Case(model, load=(load, held))


@fault(
    "R06",
    "Data order and RNG restart on resume",
    "process",
    "process.resume_loses_data_order",
    wrong=("the same seed again", "another seed"),
    right=("everything",),
    star=True,
)
def _(variant: str) -> Case:
    parts = ALL if variant == "everything" else ("model", "optimizer", "scheduler")
    return _resumed(parts, seed={"the same seed again": 0, "another seed": 1}.get(variant))


# precision and replicas


@fault(
    "P01",
    "Clipping scaled gradients",
    "update",
    "update.clip_scaled_gradients",
    wrong=("max_norm times the scale", "a smaller initial scale"),
    right=("unscaled first", "no clip"),
    star=True,
)
def _(variant: str) -> Case:
    model, batch = mlp(4), (noise(12, 6), whole(12, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0 if variant.startswith("a smaller") else 65536.0)

    def step() -> None:
        optimizer.zero_grad()
        scaler.scale(CE(model(batch[0]), batch[1])).backward()
        if variant == "unscaled first":
            scaler.unscale_(optimizer)
        if variant != "no clip":
            nn.utils.clip_grad_norm_(model.parameters(), 65536.0 if variant.startswith("max_norm") else 1.0)
        scaler.step(optimizer)
        scaler.update()

    return Case(model, optimizer, CE, batch, step=step, scaler=scaler)


@fault(
    "P02",
    "Pure bf16 weights do not move",
    "update",
    "update.rounded_away",
    "update.rate_too_small",
    wrong=("a larger rate", "another epsilon"),
    right=("float32 weights", "autocast"),
    star=True,
)
def _(variant: str) -> Case:
    torch.manual_seed(0)
    model: nn.Module = nn.Sequential(nn.Linear(8, 32), nn.LayerNorm(32), nn.Tanh(), nn.Linear(32, 4))
    x, y = noise(16, 8), whole(16, 4)
    low = variant not in ("float32 weights", "autocast")
    if low:
        model, x = model.to(torch.bfloat16), x.to(torch.bfloat16)

    def loss_fn(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return CE(output.float(), target)

    optimizer = torch.optim.Adam(
        model.parameters(),
        lr=3e-4 if variant == "a larger rate" else 1e-5,
        eps=1e-6 if variant == "another epsilon" else 1e-8,
    )

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=variant == "autocast"):
            loss = loss_fn(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    return Case(model, optimizer, loss_fn, (x, y), step=step)


@fault(
    "X01",
    "Forward through .module bypasses the wrapper",
    "update",
    "update.replica_gradients_differ",
    wrong=(),
    right=("the wrapper",),
    star=True,
)
def _(variant: str) -> Case:
    return Case(replicas=variant != "the wrapper")
