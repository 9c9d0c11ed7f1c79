"""Healthy runs on which every check must be silent: twelve kinds of model, five variations, and known look-alikes."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import torch
from detection.case import Case
from detection.faults import CE, noise, whole
from torch import nn
from torch.nn import functional

VARIATIONS = ("another seed", "three times the rate", "another optimizer", "summed loss", "bf16 autocast")
Kind = Callable[[int], Case]
KINDS: dict[str, Callable[[int, str], Case]] = {}
LOOK_ALIKES: dict[str, Callable[[], Case]] = {}


def kind(name: str) -> Any:
    """Register a kind of model: a function of seed and reduction."""

    def register(make: Callable[[int, str], Case]) -> Callable[[int, str], Case]:
        KINDS[name] = make
        return make

    return register


def look_alike(name: str) -> Any:
    """Register a healthy case that a naive rule takes for a fault."""

    def register(make: Callable[[], Case]) -> Callable[[], Case]:
        LOOK_ALIKES[name] = make
        return make

    return register


def healthy_cases() -> Iterator[tuple[str, str, Callable[[], Case]]]:
    """Give name, variation and maker of every healthy run."""
    for name, make in KINDS.items():
        for variation in VARIATIONS:
            yield name, variation, lambda make=make, variation=variation: varied(make, variation)
    for name, alone in LOOK_ALIKES.items():
        yield name, "look-alike", alone


def varied(make: Callable[[int, str], Case], variation: str) -> Case:
    """Build a case in one variation, with the loop that trains it."""
    reduction = "sum" if variation == "summed loss" else "mean"
    case = make(7 if variation == "another seed" else 0, reduction)
    rate = 3e-3 if variation == "three times the rate" else 1e-3
    return looped(case, rate, variation)


def looped(case: Case, rate: float = 1e-3, variation: str = "") -> Case:
    """Give a case a step, a loop and an evaluation, if it has none."""
    model, loss_fn, batch = case.model, case.loss_fn, case.batch
    assert model is not None
    if case.optimizer is None:
        sizes = 64 if variation == "summed loss" else 1
        parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        if variation == "another optimizer":
            case.optimizer = torch.optim.SGD(parameters, lr=10 * rate / sizes, momentum=0.9)
        else:
            case.optimizer = torch.optim.AdamW(parameters, lr=rate)
    forward = case.forward or (lambda module, rows: module(*rows[:-1]))

    def loss_of() -> torch.Tensor:
        assert loss_fn is not None
        with torch.autocast("cpu", torch.bfloat16, enabled=variation == "bf16 autocast"):
            output = forward(model, batch)
            if isinstance(output, torch.Tensor) and output.dtype == torch.bfloat16:
                output = output.float()
            loss: torch.Tensor = loss_fn(output, batch[-1])
        return loss

    def step() -> torch.Tensor:
        case.optimizer.zero_grad()
        loss = loss_of()
        loss.backward()
        case.optimizer.step()
        return loss

    def evaluate() -> float:
        modes = {module: module.training for module in model.modules()}
        model.eval()
        with torch.no_grad():
            loss = loss_of().item()
        for module, training in modes.items():
            module.training = training
        return loss

    case.step, case.monitored, case.evaluate = case.step or step, case.monitored or step, case.evaluate or evaluate
    if case.contract is None and isinstance(batch[-1], torch.Tensor) and loss_fn is not None:
        output = forward(model, batch)
        if isinstance(output, torch.Tensor):
            case.contract = (loss_fn, output, batch[-1])
    return case


def ce(reduction: str) -> Callable[..., torch.Tensor]:
    """Return cross entropy with a reduction."""
    return lambda output, target: CE(output, target, reduction=reduction)


def mse(reduction: str) -> Callable[..., torch.Tensor]:
    """Return the squared error with a reduction."""
    return lambda output, target: functional.mse_loss(output, target, reduction=reduction)


@kind("MLP")
def _(seed: int, reduction: str) -> Case:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 5))
    return Case(model, loss_fn=ce(reduction), batch=(noise(32, 8, seed=seed), whole(32, 5)))


@kind("CNN with batch norm")
def _(seed: int, reduction: str) -> Case:
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(64, 5),
    )
    return Case(model, loss_fn=ce(reduction), batch=(noise(16, 1, 8, 8, seed=seed), whole(16, 5)))


class Residual(nn.Module):
    """A block whose last norm starts at zero."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(width, width, 3, padding=1), nn.Conv2d(width, width, 3, padding=1)
        self.norms = nn.ModuleList([nn.BatchNorm2d(width), nn.BatchNorm2d(width)])
        nn.init.zeros_(self.norms[1].weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norms[0](self.first(x)).relu()
        return (x + self.norms[1](self.second(y))).relu()


@kind("residual network")
def _(seed: int, reduction: str) -> Case:
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), Residual(8), Residual(8), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, 5)
    )
    return Case(model, loss_fn=ce(reduction), batch=(noise(16, 1, 8, 8, seed=seed), whole(16, 5)))


class Sequence(nn.Module):
    """An LSTM over rows of equal length."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(4, 32, num_layers=2, dropout=0.1, batch_first=True), nn.Linear(32, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.head(self.lstm(x)[0][:, -1])
        return scores


@kind("LSTM")
def _(seed: int, reduction: str) -> Case:
    torch.manual_seed(seed)
    return Case(Sequence(), loss_fn=ce(reduction), batch=(noise(16, 7, 4, seed=seed), whole(16, 5)))


class Transformer(nn.Module):
    """Two encoder layers over padded tokens; the padding is masked, and not scored."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.positions = nn.Embedding(12, 32, padding_idx=0), nn.Parameter(torch.randn(9, 32) * 0.1)
        layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, norm_first=True)
        self.encoder, self.head = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(32, 12)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.encoder(self.embedding(ids) + self.positions, src_key_padding_mask=ids == 0)
        scores: torch.Tensor = self.head(x).transpose(1, 2)
        return scores


@kind("transformer with padding")
def _(seed: int, reduction: str) -> Case:
    torch.manual_seed(seed)
    ids = torch.randint(1, 12, (8, 9), generator=torch.Generator().manual_seed(seed))
    ids[0, 6:] = ids[3, 4:] = ids[5, 8:] = 0
    loss_fn = lambda output, target: CE(output, target, ignore_index=0, reduction=reduction)  # noqa: E731
    settings = {"check_loss_contract": {"ignore": 0, "class_dim": 1}}
    return Case(Transformer(), loss_fn=loss_fn, batch=(ids, ids.clone()), settings=settings)


class Graph(nn.Module):
    """Two rounds of messages over edges; the nodes see each other on purpose."""

    def __init__(self, edges: torch.Tensor) -> None:
        super().__init__()
        self.register_buffer("edges", edges)
        self.layers = nn.ModuleList([nn.Linear(6, 32), nn.Linear(32, 32)])
        self.head = nn.Linear(32, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            message = layer(x)
            x = torch.zeros_like(message).index_add(0, self.edges[1], message[self.edges[0]]).relu() + message
        scores: torch.Tensor = self.head(x)
        return scores


@kind("graph network")
def _(seed: int, reduction: str) -> Case:
    torch.manual_seed(seed)
    edges = torch.randint(0, 20, (2, 60), generator=torch.Generator().manual_seed(seed))
    return Case(Graph(edges), loss_fn=ce(reduction), batch=(noise(20, 6, seed=seed), whole(20, 3)))


class Autoencoder(nn.Module):
    """A variational autoencoder; its output is a tuple."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Linear(8, 12), nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 8))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        mean, log_variance = self.encoder(x).chunk(2, 1)
        z = mean + torch.randn_like(mean) * (0.5 * log_variance).exp() if self.training else mean
        return self.decoder(z), mean, log_variance


@kind("variational autoencoder")
def _(seed: int, reduction: str) -> Case:
    torch.manual_seed(seed)

    def loss_fn(output: Any, target: torch.Tensor) -> torch.Tensor:
        decoded, mean, log_variance = output
        divergence = -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).sum(1)
        each = (decoded - target).square().sum(1) + divergence
        return each.sum() if reduction == "sum" else each.mean()

    x = noise(32, 8, seed=seed)
    return Case(Autoencoder(), loss_fn=loss_fn, batch=(x, x), settings={"overfit_batch": None})  # type: ignore[dict-item]


class Adversaries(nn.Module):
    """A generator and a discriminator, with an optimizer each."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
        self.discriminator = nn.Sequential(nn.Linear(2, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))


@kind("adversarial pair")
def _(seed: int, reduction: str) -> Case:
    torch.manual_seed(seed)
    model = Adversaries()
    pair = [torch.optim.Adam(part.parameters(), lr=1e-3) for part in (model.generator, model.discriminator)]
    real, latent = noise(32, 2, seed=seed) + 2, noise(32, 4, seed=seed + 1)
    loss_fn = lambda output, target: functional.binary_cross_entropy_with_logits(output, target, reduction=reduction)  # noqa: E731

    def step() -> torch.Tensor:
        pair[1].zero_grad()
        fake = model.generator(latent)
        loss = loss_fn(model.discriminator(real), torch.ones(32, 1)) + loss_fn(
            model.discriminator(fake.detach()), torch.zeros(32, 1)
        )
        loss.backward()
        pair[1].step()
        pair[0].zero_grad()
        fooled: torch.Tensor = loss_fn(model.discriminator(fake), torch.ones(32, 1))
        fooled.backward()
        pair[0].step()
        return fooled

    case = Case(model, pair, loss_fn, (latent, torch.ones(32, 1)), step=step, monitored=step)
    case.forward = lambda module, batch: module.discriminator(module.generator(batch[0]))
    return case


class Adapter(nn.Module):
    """A frozen layer with a low-rank addition whose second factor starts at zero."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 32), nn.Tanh()).requires_grad_(False)
        self.base = nn.Linear(32, 5).requires_grad_(False)
        self.a, self.b = nn.Parameter(torch.randn(4, 32) * 0.1), nn.Parameter(torch.zeros(5, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        features = self.body(x)
        return self.base(features) + features @ self.a.T @ self.b.T


@kind("low-rank adapter")
def _(seed: int, reduction: str) -> Case:
    torch.manual_seed(seed)
    return Case(
        Adapter(),
        loss_fn=ce(reduction),
        batch=(noise(12, 8, seed=seed), whole(12, 5)),
        settings={"overfit_batch": {"steps": 400}},
    )


class Tied(nn.Module):
    """A language model whose output weights are its embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.mixer, self.output = nn.Embedding(10, 24), nn.Linear(24, 24), nn.Linear(24, 10, bias=False)
        self.output.weight = self.embedding.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.output(torch.tanh(self.mixer(self.embedding(ids))))
        return scores.flatten(0, 1)


@kind("tied embeddings")
def _(seed: int, reduction: str) -> Case:
    torch.manual_seed(seed)
    ids = torch.arange(10)[torch.randperm(10, generator=torch.Generator().manual_seed(seed))][:8].reshape(2, 4)
    forward = lambda module, batch: module(batch[0])  # noqa: E731
    return Case(Tied(), loss_fn=ce(reduction), batch=(ids, ids.flatten()), forward=forward)


@kind("Monte-Carlo dropout")
def _(seed: int, reduction: str) -> Case:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 1))
    return Case(model, loss_fn=mse(reduction), batch=(noise(16, 8, seed=seed), noise(16, 1, seed=seed + 1)))


class Averaged(nn.Module):
    """A student and the moving average of its weights and buffers, which is what evaluation asks."""

    def __init__(self) -> None:
        super().__init__()
        self.student = nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 5))
        self.average = copy.deepcopy(self.student).requires_grad_(False).eval()

    def train(self, mode: bool = True) -> Averaged:
        super().train(mode)
        self.average.eval()
        return self

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = (self.student if self.training else self.average)(x)
        return scores


@kind("moving average of weights")
def _(seed: int, reduction: str) -> Case:
    torch.manual_seed(seed)
    model = Averaged()
    loss_fn, batch = ce(reduction), (noise(16, 8, seed=seed), whole(16, 5))
    optimizer = torch.optim.AdamW(model.student.parameters(), lr=1e-3)

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        loss: torch.Tensor = loss_fn(model(batch[0]), batch[1])
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            pairs = zip(model.average.state_dict().values(), model.student.state_dict().values(), strict=True)
            for kept, new in pairs:
                kept.copy_(kept * 0.9 + new * 0.1 if kept.is_floating_point() else new)
        return loss

    return Case(model, optimizer, loss_fn, batch, step=step, monitored=step, settings={"overfit_batch": None})  # type: ignore[dict-item]


# look-alikes: each is healthy, and fires a naive rule


def small(*last: nn.Module, out: int = 4) -> nn.Sequential:
    """Return a small network without dropout or statistics."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, out), *last)


CLASSES = (noise(12, 6), whole(12, 4))


@look_alike("H01 eval mode in a model that knows no modes")
def _() -> Case:
    model = small()
    model.eval()
    return looped(Case(model, loss_fn=CE, batch=CLASSES))


@look_alike("H05 labels shifted inside the loss")
def _() -> Case:
    ids = torch.randint(0, 5, (4, 12), generator=torch.Generator().manual_seed(2))
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(5, 16), nn.Linear(16, 5))
    loss_fn = lambda o, t: CE(o[:, :-1].flatten(0, 1), t[:, 1:].flatten())  # noqa: E731
    settings: Any = {"check_loss_contract": {"kind": "next token"}, "overfit_batch": None}
    return looped(Case(model, loss_fn=loss_fn, batch=(ids, ids), settings=settings))


@look_alike("H11 no softmax before cross entropy")
def _() -> Case:
    return looped(Case(small(), loss_fn=CE, batch=CLASSES))


@look_alike("H12 log_softmax before cross entropy")
def _() -> Case:
    return looped(Case(small(nn.LogSoftmax(1)), loss_fn=CE, batch=CLASSES))


@look_alike("H13 first scaled steps skipped")
def _() -> Case:
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**126)

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        loss = CE(model(CLASSES[0]), CLASSES[1])
        scaler.scale(loss * 100).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss

    return Case(model, optimizer, CE, CLASSES, step=step, scaler=scaler, monitored=step)


@look_alike("H14 additive mask of -inf")
def _() -> Case:
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.layer, self.head = nn.Linear(4, 16), nn.Linear(16, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.layer(x)
            mask = torch.triu(torch.full((5, 5), -torch.inf), 1)
            mixed: torch.Tensor = self.head(((y @ y.transpose(1, 2)) + mask).softmax(-1) @ y)
            return mixed[:, -1]

    settings: Any = {"overfit_batch": {"steps": 600}}
    return looped(Case(Masked(), loss_fn=CE, batch=(noise(8, 5, 4), whole(8, 4)), settings=settings))


@look_alike("H15 norm 1000 of a summed loss")
def _() -> Case:
    loss_fn = lambda o, t: 100 * CE(o, t, reduction="sum")  # noqa: E731
    return looped(Case(small(), loss_fn=loss_fn, batch=CLASSES), 1e-3)


@look_alike("H16 clipping in every step")
def _() -> Case:
    model = small()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        loss = CE(model(CLASSES[0]), CLASSES[1])
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.01)
        optimizer.step()
        return loss

    return Case(model, optimizer, CE, CLASSES, step=step, monitored=step)


@look_alike("H17 embedding rows that the batch does not use")
def _() -> Case:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(50, 16), nn.Flatten(), nn.Linear(32, 4))
    ids = torch.stack([torch.arange(12) % 4, torch.arange(12) % 3], 1)
    return looped(Case(model, loss_fn=CE, batch=(ids, torch.arange(12) % 4)), 1e-2)


@look_alike("H19 single layer that starts at zero")
def _() -> Case:
    model = nn.Linear(6, 4)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    return looped(Case(model, loss_fn=CE, batch=(noise(4, 6), torch.arange(4))))


@look_alike("H20 training loss above validation loss")
def _() -> Case:
    history = [{"epoch": n, "train_loss": 1.2 / (n + 1) + 0.4, "val_loss": 1.0 / (n + 1) + 0.3} for n in range(20)]
    return Case(history=history)


@look_alike("H21 pairwise distances by broadcasting")
def _() -> Case:
    def loss_fn(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        distance = (output[:, None] - output[None]).square().sum(-1)
        same = (target[:, None] == target[None]).float()
        return (distance * same + (1 - distance).relu() * (1 - same)).mean()

    settings: Any = {"check_loss_contract": {"kind": "scalars"}, "overfit_batch": None}
    return looped(Case(small(), loss_fn=loss_fn, batch=CLASSES, settings=settings))


@look_alike("H22 (time, rows) layout that is meant")
def _() -> Case:
    class TimeFirst(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.lstm, self.head = nn.LSTM(3, 16), nn.Linear(16, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            scores: torch.Tensor = self.head(self.lstm(x.transpose(0, 1))[0][-1])
            return scores

    return looped(Case(TimeFirst(), loss_fn=CE, batch=(noise(12, 5, 3), whole(12, 4))), 1e-2)


@look_alike("H24 probabilities as the target of a divergence")
def _() -> Case:
    loss_fn = lambda o, t: functional.kl_div(o.log_softmax(1), t.softmax(1), reduction="batchmean")  # noqa: E731
    settings: Any = {"check_loss_contract": {"kind": "divergence"}, "overfit_batch": {"floor": 0.0}}
    return looped(Case(small(), loss_fn=loss_fn, batch=(noise(12, 6), noise(12, 4, seed=5)), settings=settings))


@look_alike("H26 frozen backbone outside the optimizer")
def _() -> Case:
    model = small()
    model[0].requires_grad_(False)
    return looped(Case(model, loss_fn=CE, batch=CLASSES), 1e-2)


@look_alike("H27 one tensor under two names")
def _() -> Case:
    model = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 4))
    model[2].weight = model[0].weight
    return looped(Case(model, loss_fn=CE, batch=(noise(6, 6), torch.arange(6) % 4)), 1e-2)


@look_alike("gradient accumulation over eight iterations")
def _() -> Case:
    model = small()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    count = {"iterations": 0}

    def iteration() -> torch.Tensor:
        loss = CE(model(CLASSES[0]), CLASSES[1])
        (loss / 8).backward()
        count["iterations"] += 1
        if count["iterations"] % 8 == 0:
            optimizer.step()
            optimizer.zero_grad()
        return loss

    def window() -> None:
        for _ in range(8):
            iteration()

    return Case(model, optimizer, CE, CLASSES, step=window, monitored=iteration)


@look_alike("warm-up from rate 0")
def _() -> Case:
    case = looped(Case(small(), loss_fn=CE, batch=CLASSES))
    case.optimizer.param_groups[0]["lr"] = 0.0
    return case


@look_alike("contrastive loss over the batch")
def _() -> Case:
    def loss_fn(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        unit = functional.normalize(output, dim=1)
        return CE(unit @ functional.normalize(target, dim=1).T / 0.1, torch.arange(len(target)))

    settings: Any = {"check_loss_contract": {"kind": "scalars"}, "overfit_batch": None}
    return looped(Case(small(), loss_fn=loss_fn, batch=(noise(12, 6), noise(12, 4, seed=5)), settings=settings))


@look_alike("prior in the last bias: all first logits in one narrow range")
def _() -> Case:
    model = small(out=1)
    nn.init.constant_(model[2].bias, -3.0)
    loss_fn = functional.binary_cross_entropy_with_logits
    return looped(Case(model, loss_fn=loss_fn, batch=(noise(16, 6), (whole(16, 8) == 0).float()[:, None])), 1e-2)


@look_alike("triplet loss on embeddings, labels beyond their dimension")
def _() -> Case:
    labels = torch.arange(15) * 3
    loss_fn = lambda o, t: functional.triplet_margin_loss(o[:5], o[5:10], o[10:15])  # noqa: E731
    settings: Any = {"overfit_batch": None}
    return looped(Case(small(out=8), loss_fn=loss_fn, batch=(noise(15, 6), labels), settings=settings))


@look_alike("branch whose gain starts at zero")
def _() -> Case:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.branch, self.gain, self.head = nn.Linear(6, 6), nn.Parameter(torch.zeros(6)), nn.Linear(6, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            scores: torch.Tensor = self.head(x + self.gain * torch.tanh(self.branch(x)))
            return scores

    return looped(Case(Scaled(), loss_fn=CE, batch=(noise(4, 6), torch.arange(4))), 1e-2)


@look_alike("two heads, one output of which the loss does not use")
def _() -> Case:
    class Heads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.body, self.one, self.two = nn.Linear(6, 32), nn.Linear(32, 4), nn.Linear(32, 1)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            features = self.body(x).relu()
            return self.one(features), self.two(features)

    loss_fn = lambda o, t: CE(o[0], t) + o[1].square().mean()  # noqa: E731
    return looped(Case(Heads(), loss_fn=loss_fn, batch=CLASSES), 1e-2)


@look_alike("penalty on the gradient of the inputs")
def _() -> Case:
    model = small(out=1)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    x = noise(12, 6)

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        given = x.clone().requires_grad_()
        output = model(given)
        slope = torch.autograd.grad(output.sum(), given, create_graph=True)[0]
        loss = output.square().mean() + ((slope.norm(dim=1) - 1) ** 2).mean()
        loss.backward()
        optimizer.step()
        return loss

    return Case(model, optimizer, functional.mse_loss, (x, noise(12, 1, seed=3)), step=step, monitored=step)
