"""The gradient path: each fault is found in its tiny version, wrong fixes are still flagged, look-alikes are not."""

import pytest
import torch
from torch import nn
from torch.nn import functional

import rerail

GENERATOR = torch.Generator().manual_seed(1)
X = torch.randn(32, 6, generator=GENERATOR)
LABELS = torch.randint(0, 3, (32,), generator=GENERATOR)
CE = functional.cross_entropy


def mlp(activation=nn.ReLU, depth: int = 2, width: int = 16) -> nn.Sequential:
    torch.manual_seed(0)
    layers = [nn.Linear(6, width), activation()]
    for _ in range(depth - 2):
        layers += [nn.Linear(width, width), activation()]
    return nn.Sequential(*layers, nn.Linear(width, 3))


def asked(model, loss_fn=CE, batch=(X, LABELS), **settings):
    optimizer = settings.get("optimizer")
    before = rerail.digest(model, optimizer)
    report = rerail.gradient_report(model, loss_fn, batch, **settings)
    assert rerail.digest(model, optimizer) == before
    assert str(report).count("\n") < 15
    return report


class Bert(nn.Module):
    """A body and a head, with what may go wrong between them."""

    def __init__(self, between=lambda features: features):
        super().__init__()
        torch.manual_seed(0)
        self.body, self.head, self.between = nn.Linear(6, 8), nn.Linear(8, 3), between

    def forward(self, x):
        return self.head(self.between(torch.tanh(self.body(x))))


CUTS = {
    "detach": lambda features: features.detach(),
    "data": lambda features: features.data,
    "numpy": lambda features: torch.from_numpy(features.detach().numpy()),
    "no_grad": torch.no_grad()(lambda features: features * 1.0),
    "tensor": lambda features: torch.tensor(features.tolist()),
}


@pytest.mark.parametrize("cut", CUTS.values(), ids=CUTS)
def test_a_cut_in_the_middle_is_a_fault_where_the_optimizer_trains_what_is_behind(cut):
    model = Bert(cut)

    report = asked(model, optimizer=torch.optim.SGD(model.parameters(), lr=1.0))

    assert report.status == "fault"
    assert report.findings[0].cause == "gradient_path.cut"
    assert report.findings[0].where == ("body.weight", "body.bias")
    assert report.facts["none"] == 2


def test_a_cut_is_a_question_where_nobody_trains_what_is_behind():
    model = Bert(CUTS["detach"])

    assert asked(model, optimizer=torch.optim.SGD(model.head.parameters(), lr=1.0)).status == "suspicious"
    assert asked(model).status == "suspicious"
    model.body.requires_grad_(False)
    assert asked(model).status == "ok"


def test_a_healthy_model_is_ok():
    for activation in (nn.ReLU, nn.Tanh, nn.GELU, nn.Sigmoid, nn.SiLU):
        assert asked(mlp(activation, depth=3)).status == "ok"


def argmax_loss(output, target):
    return (output.argmax(1) != target).float().mean()


@pytest.mark.parametrize(
    "loss_fn", [argmax_loss, lambda o, t: CE(o, t).detach(), lambda o, t: torch.tensor(CE(o, t).item())]
)
def test_a_loss_without_graph_is_a_fault(loss_fn):
    assert asked(mlp(), loss_fn).causes == ("gradient_path.loss_without_graph",)


@pytest.mark.parametrize(
    "loss_fn",
    [
        lambda o, t: argmax_loss(o, t).requires_grad_(True),
        lambda o, t: torch.tensor(argmax_loss(o, t).item(), requires_grad=True),
    ],
)
def test_a_loss_that_was_marked_to_require_gradients_is_still_a_fault(loss_fn):
    assert asked(mlp(), loss_fn).causes == ("gradient_path.leaf_loss",)


class Listed(nn.Module):
    def __init__(self, wrap):
        super().__init__()
        torch.manual_seed(0)
        self.blocks = wrap([nn.Linear(6, 6), nn.Linear(6, 6)])
        self.head = nn.Linear(6, 3)

    def forward(self, x):
        for block in self.blocks.values() if isinstance(self.blocks, dict) else self.blocks:
            x = torch.relu(block(x))
        return self.head(x)


class Helper:
    def __init__(self, layers):
        self.layers = layers

    def __iter__(self):
        return iter(self.layers)


@pytest.mark.parametrize("wrap", [list, tuple, lambda layers: dict(enumerate(layers)), Helper])
@pytest.mark.parametrize("by_hand", [False, True], ids=["as it is", "given to the optimizer by hand"])
def test_layers_in_a_plain_container_are_a_fault(wrap, by_hand):
    model = Listed(wrap)
    parameters = [*model.parameters()]
    if by_hand:
        blocks = model.blocks.values() if isinstance(model.blocks, dict) else model.blocks
        parameters += [parameter for block in blocks for parameter in block.parameters()]

    report = asked(model, optimizer=torch.optim.SGD(parameters, lr=0.1))

    assert report.status == "fault"
    assert report.causes == ("gradient_path.unregistered_parameters",)
    assert report.findings[0].evidence == {"unregistered": 4, "registered": 2}
    assert report.findings[0].where[0].startswith("blocks")


def test_a_module_list_is_ok_and_a_teacher_in_a_list_too():
    model = Listed(nn.ModuleList)
    model.teacher = [nn.Linear(6, 3).requires_grad_(False)]

    assert asked(model).status == "ok"


def test_parameters_of_the_loss_are_not_foreign():
    class Temperature(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(()))

        def forward(self, output, target):
            return CE(output * self.scale, target)

    assert asked(mlp(), Temperature()).status == "ok"


def test_constant_initialisation_is_a_fault_and_stays_one_with_another_dtype():
    model = mlp(nn.Tanh)
    for parameter in model.parameters():
        nn.init.constant_(parameter, 0.1)

    assert asked(model).causes == ("tiny_batch.constant_initialisation",)
    assert "tiny_batch.constant_initialisation" in asked(model.double(), batch=(X.double(), LABELS)).causes


def test_constant_initialisation_with_dropout_against_the_symmetry_is_still_flagged():
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Dropout(0.5), nn.Linear(16, 3))
    nn.init.constant_(model[0].weight, 0.1)
    nn.init.constant_(model[0].bias, 0.0)

    assert "tiny_batch.constant_initialisation" in asked(model).causes


def test_a_single_layer_that_starts_at_zero_is_ok():
    model = nn.Linear(6, 3)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)

    assert asked(model).status == "ok"


def test_an_adapter_whose_second_factor_starts_at_zero_is_ok():
    class Lora(nn.Module):
        def __init__(self):
            super().__init__()
            self.base = nn.Linear(6, 3).requires_grad_(False)
            self.a, self.b = nn.Parameter(torch.randn(2, 6)), nn.Parameter(torch.zeros(3, 2))

        def forward(self, x):
            return self.base(x) + x @ self.a.T @ self.b.T

    report = asked(Lora())

    assert report.status == "ok", report
    assert report.facts["zero"] == 1


def test_embedding_rows_that_no_row_uses_are_ok():
    model = nn.Sequential(nn.Embedding(10, 8), nn.Flatten(), nn.Linear(16, 3))

    assert asked(model, batch=(torch.randint(0, 2, (32, 2)), LABELS)).status == "ok"


def test_a_last_rectifier_that_never_fires_is_a_fault():
    model = nn.Sequential(mlp(), nn.ReLU())
    nn.init.constant_(model[0][2].bias, -100.0)

    report = asked(model, nn.functional.mse_loss, (X, torch.rand(32, 3)))

    assert report.findings[0].cause == "gradient_path.all_gradients_zero"
    assert "0 on the whole batch" in str(report)


def test_hidden_units_that_never_fire_are_named():
    model = mlp()
    nn.init.constant_(model[0].bias, -100.0)
    with torch.no_grad():
        model[0].bias[0] = 1.0

    report = asked(model)

    assert "gradient_path.dead_units" in report.causes
    assert report.findings[0].where[0].startswith("1 (") or report.findings[0].where[0] == "1"


def test_a_saturated_hidden_layer_is_named_and_a_saturated_output_is_not():
    model = mlp(nn.Tanh, depth=3)
    with torch.no_grad():
        model[0].weight *= 1000

    assert "gradient_path.saturated_units" in asked(model).causes
    converged = nn.Sequential(nn.Linear(6, 3), nn.Sigmoid())
    with torch.no_grad():
        converged[0].weight *= 1000
    assert (
        "gradient_path.saturated_units" not in asked(converged, nn.functional.mse_loss, (X, torch.rand(32, 3))).causes
    )


def test_ten_sigmoid_layers_vanish_also_with_a_loss_times_a_thousand():
    deep = mlp(nn.Sigmoid, depth=10)

    assert asked(deep).causes == ("gradient_path.vanishing_gradient",)
    assert asked(deep, lambda o, t: 1000 * CE(o, t)).causes == ("gradient_path.vanishing_gradient",)
    assert asked(mlp(nn.ReLU, depth=10)).status == "ok"


def test_a_large_norm_of_a_summed_loss_is_ok():
    report = asked(mlp(), lambda o, t: functional.cross_entropy(o, t, reduction="sum") * 100)

    assert report.status == "ok"


def root_at_zero(output, target):
    return torch.sqrt((output * 0).pow(2).sum()) + CE(output, target)


@pytest.mark.parametrize("loss_fn", [root_at_zero, lambda o, t: torch.nan_to_num(root_at_zero(o, t))])
def test_a_gradient_that_is_not_finite_is_a_fault(loss_fn):
    report = asked(mlp(), loss_fn)

    assert report.causes == ("gradient_path.non_finite_gradient",)
    assert "first_nonfinite" in str(report)


def test_a_loss_that_is_not_finite_is_a_fault():
    assert asked(mlp(), lambda o, t: (o * 0).log().mean()).findings[0].cause == "values.non_finite_loss"


class Stateful(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell, self.head, self.state = nn.GRUCell(6, 8), nn.Linear(8, 3), torch.zeros(32, 8)

    def forward(self, x):
        self.state = self.cell(x, self.state)
        return self.head(self.state)


def carried(detach: bool, retain: bool = True):
    model = Stateful()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)

    def step():
        if detach:
            model.state = model.state.detach()
        loss = CE(model(X), LABELS)
        loss.backward(retain_graph=retain)
        return loss

    before = rerail.digest(model, optimizer)
    report = rerail.graph_growth(step, model=model, optimizer=optimizer)
    assert rerail.digest(model, optimizer) == before
    return report


def test_a_state_carried_without_detach_is_a_fault_with_and_without_retain_graph():
    assert carried(detach=False).causes == ("gradient_path.graph_grows",)
    assert carried(detach=False, retain=False).causes == ("gradient_path.graph_grows",)


def test_a_state_that_is_detached_is_ok():
    report = carried(detach=True, retain=False)

    assert report.status == "ok"
    assert len(set(report.facts["nodes"])) == 1


def test_a_running_loss_that_keeps_every_graph_is_a_fault():
    model, total = mlp(), [0]

    def step():
        total[0] = total[0] + CE(model(X), LABELS)
        return total[0]

    assert rerail.graph_growth(step, model=model).causes == ("gradient_path.graph_grows",)


def exp_then_write(output, target):
    grown = output.exp()
    grown += 1
    return grown.log().mean()


def exp_then_write_in_secret(output, target):
    grown = output.exp()
    grown.data += 1
    return grown.log().mean()


def exp_out_of_place(output, target):
    return (output.exp() + 1).log().mean()


def test_a_write_that_backward_notices_is_named():
    report = asked(mlp(), exp_then_write)

    assert report.causes == ("gradient_path.changed_in_place",)
    assert not asked(mlp(), exp_out_of_place).causes


def check(model, loss_fn, batch=(X, LABELS)):
    before = rerail.digest(model)
    report = rerail.gradient_check(model, loss_fn, batch)
    assert rerail.digest(model) == before
    return report


def test_a_write_that_backward_does_not_notice_is_found_by_differences():
    assert check(mlp(nn.Tanh), exp_then_write_in_secret).causes == ("gradient_path.wrong_gradient",)
    assert check(mlp(nn.Tanh), exp_out_of_place).status == "ok"


def test_a_nan_replaced_on_its_way_back_is_found_by_differences():
    def patched(output, target):
        kept = output.relu() * 0 + output.abs()
        kept.register_hook(torch.zeros_like)
        return kept.sqrt().mean()

    assert check(mlp(nn.Tanh), patched).causes == ("gradient_path.wrong_gradient",)


def test_dropout_is_drawn_alike_for_both_ends():
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Dropout(0.5), nn.Linear(16, 3))

    assert check(model, CE).status == "ok"


GARBAGE = {
    "no module": ("model", CE, (X, LABELS)),
    "no parameters": (nn.Tanh(), CE, (X, LABELS)),
    "lazy": (nn.LazyLinear(3), CE, (X, LABELS)),
    "meta": (nn.Linear(6, 3, device="meta"), CE, (X, LABELS)),
    "no batch": (nn.Linear(6, 3), CE, None),
    "an empty batch": (nn.Linear(6, 3), CE, ()),
    "another shape": (nn.Linear(6, 3), CE, (torch.zeros(2, 5), LABELS)),
    "a loss a row": (nn.Linear(6, 3), lambda o, t: CE(o, t, reduction="none"), (X, LABELS)),
    "a loss that is a number": (nn.Linear(6, 3), lambda o, t: CE(o, t).item(), (X, LABELS)),
    "no loss": (nn.Linear(6, 3), None, {"input": X}),
    "a loss that raises": (nn.Linear(6, 3), lambda o, t: 1 / 0, (X, LABELS)),
}


@pytest.mark.parametrize(("model", "loss_fn", "batch"), GARBAGE.values(), ids=GARBAGE)
@pytest.mark.parametrize("function", ["gradient_report", "gradient_check"])
def test_what_cannot_be_followed_is_unknown_in_one_sentence(function, model, loss_fn, batch):
    report = getattr(rerail, function)(model, loss_fn, batch)

    assert report.status == "unknown"
    assert len(report.findings) == 1
    assert "\n" not in report.findings[0].says


def test_a_frozen_model_has_no_gradient_path():
    assert rerail.gradient_report(mlp().requires_grad_(False), CE, (X, LABELS)).status == "not_applicable"


def test_mappings_tied_sparse_and_complex_parameters_are_followed():
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(10, 4, sparse=True)
            self.again = self.embedding
            self.phase = nn.Parameter(torch.randn(4, dtype=torch.complex64))

        def forward(self, ids):
            return (self.again(ids) * self.phase).abs()

    report = rerail.gradient_report(Odd(), lambda o, t: (o - t).square().mean(), {"ids": torch.arange(8), "y": 1.0})

    assert report.status == "ok", report
    assert report.rows[0][0] in ("phase", "embedding.weight = again.weight")
    assert report.facts["call"] == "model(**batch without 'y')"


def test_a_report_plots_prints_and_gives_json():
    report = asked(mlp())

    assert report.plot().get_xlabel() == "norm"
    assert "0.weight" in report.verbose()
    assert '"status": "ok"' in report.to_json()
