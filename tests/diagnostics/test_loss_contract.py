"""The loss contract: each broken pairing is named, its wrong fixes too; right losses in many forms are ok."""

import pytest
import torch
from torch import nn
from torch.nn import functional

import rerail

GENERATOR = torch.Generator().manual_seed(5)
LOGITS = torch.randn(16, 4, generator=GENERATOR)
LABELS = torch.randint(0, 4, (16,), generator=GENERATOR)
COLUMN = torch.randn(16, 1, generator=GENERATOR)
NUMBERS = torch.randn(16, generator=GENERATOR)
BITS = torch.randint(0, 2, (16,), generator=GENERATOR).float()
CE = functional.cross_entropy


def asked(loss_fn, output, target, **settings):
    before = rerail.digest(output, target)
    report = rerail.check_loss_contract(loss_fn, output, target, **settings)
    assert rerail.digest(output, target) == before
    return report


def residual(output, target):
    return (output - target).square().mean()


def expanded(output, target):
    rows = len(target)
    return functional.mse_loss(output.expand(rows, rows), target.expand(rows, rows))


def squeezed(output, target):
    return (output.squeeze() - target).square().mean()


BROADCAST = {
    "by hand": residual,
    "absolute": lambda o, t: (o - t).abs().mean(),
    "summed": lambda o, t: ((t - o) ** 2).sum() / len(t),
    "mse_loss": functional.mse_loss,
    "a module": nn.MSELoss(),
    "smooth": functional.smooth_l1_loss,
}


@pytest.mark.parametrize("loss_fn", BROADCAST.values(), ids=BROADCAST)
def test_a_column_against_a_vector_is_named(loss_fn):
    report = asked(loss_fn, COLUMN, NUMBERS)

    assert report.causes == ("values.broadcast",), report
    assert report.findings[0].evidence["result"] == "(16, 16)"


def test_a_picture_of_one_pixel_against_a_vector_is_named():
    assert asked(residual, torch.randn(4, 3, 1, 1), torch.randn(4, 3)).causes == ("values.broadcast",)


@pytest.mark.parametrize("loss_fn", [residual, nn.MSELoss()])
def test_sides_of_one_shape_are_ok(loss_fn):
    assert asked(loss_fn, COLUMN, NUMBERS[:, None]).status == "ok"
    assert asked(loss_fn, COLUMN[:, 0], NUMBERS).status == "ok"
    assert asked(lambda o, t: loss_fn(o.squeeze(1), t), COLUMN, NUMBERS).status == "ok"


def test_a_pairwise_loss_on_purpose_is_ok():
    def contrastive(output, target):
        distance = (output - output.T).abs()
        same = (target[:, None] == target[None]).float()
        return (distance * same).mean()

    assert asked(contrastive, COLUMN, NUMBERS).status == "ok"


DOUBLE = {
    "softmax": lambda o, t: CE(o.softmax(1), t),
    "softmax and a temperature": lambda o, t: CE((o * 10).softmax(1), t),
    "a module": lambda o, t: nn.CrossEntropyLoss()(nn.Softmax(-1)(o), t),
}


@pytest.mark.parametrize("loss_fn", DOUBLE.values(), ids=DOUBLE)
def test_softmax_before_cross_entropy_is_named_with_its_floor(loss_fn):
    report = asked(loss_fn, LOGITS, LABELS)

    assert report.causes == ("values.softmax_before_cross_entropy",)
    assert report.findings[0].evidence["floor"] == pytest.approx(0.7437, abs=1e-4)


def test_a_model_that_ends_with_softmax_is_named():
    assert asked(CE, LOGITS.softmax(1), LABELS).causes == ("values.softmax_before_cross_entropy",)
    assert asked(CE, LOGITS.softmax(0), LABELS).causes == ("values.softmax_over_rows",)


RIGHT_CLASSES = {
    "cross_entropy": CE,
    "a module": nn.CrossEntropyLoss(),
    "log_softmax first": lambda o, t: CE(o.log_softmax(1), t),
    "nll": lambda o, t: functional.nll_loss(o.log_softmax(1), t),
    "by hand": lambda o, t: -o.log_softmax(1)[torch.arange(len(t)), t].mean(),
    "smoothed": lambda o, t: CE(o, t, label_smoothing=0.1),
    "weighted": lambda o, t: CE(o, t, weight=torch.tensor([1.0, 2.0, 3.0, 4.0])),
    "summed": lambda o, t: CE(o, t, reduction="sum"),
    "focal": lambda o, t: ((1 - (-CE(o, t, reduction="none")).exp()) ** 2 * CE(o, t, reduction="none")).mean(),
}


@pytest.mark.parametrize("loss_fn", RIGHT_CLASSES.values(), ids=RIGHT_CLASSES)
def test_right_class_losses_are_ok(loss_fn):
    report = asked(loss_fn, LOGITS, LABELS)

    assert report.status == "ok", report
    assert report.facts["kind"] == "class indices"


@pytest.mark.parametrize("change", [lambda o: o, lambda o: o.softmax(1)], ids=["scores", "probabilities"])
def test_nll_without_logarithm_is_named(change):
    assert asked(lambda o, t: functional.nll_loss(change(o), t), LOGITS, LABELS).causes == ("values.nll_without_log",)


@pytest.mark.parametrize("labels", [LABELS + 1, LABELS - 1], ids=["one too high", "one too low"])
def test_labels_out_of_range_are_named_before_the_loss_meets_them(labels):
    assert asked(CE, LOGITS, labels).causes == ("values.labels_out_of_range",)


WITH_LOGITS = functional.binary_cross_entropy_with_logits


def test_a_sigmoid_before_the_logits_loss_is_a_fault_where_the_graph_shows_it():
    scores = NUMBERS.clone().requires_grad_()

    assert asked(WITH_LOGITS, scores.sigmoid(), BITS).status == "fault"
    assert asked(WITH_LOGITS, scores.sigmoid().detach(), BITS).causes == ("values.sigmoid_before_logits_loss",)
    assert asked(lambda o, t: WITH_LOGITS(o.sigmoid(), t, pos_weight=torch.tensor(3.0)), scores, BITS).causes == (
        "values.sigmoid_before_logits_loss",
    )


@pytest.mark.parametrize("loss_fn", [WITH_LOGITS, lambda o, t: functional.binary_cross_entropy(o.sigmoid(), t)])
def test_right_binary_losses_are_ok(loss_fn):
    assert asked(loss_fn, NUMBERS, BITS).status == "ok"


def test_binary_labels_of_one_and_two_are_named():
    assert asked(WITH_LOGITS, NUMBERS, BITS + 1).causes == ("values.labels_out_of_range",)


OTHER = torch.randn(16, 4, generator=GENERATOR)
KL = functional.kl_div
WRONG_KL = {
    "probabilities": lambda s, t: KL(s.softmax(1), t.softmax(1), reduction="batchmean"),
    "abs": lambda s, t: KL(s.softmax(1), t.softmax(1), reduction="batchmean").abs(),
    "clamped": lambda s, t: KL(s.softmax(1), t.softmax(1), reduction="batchmean").clamp(min=0),
    "swapped": lambda s, t: KL(t.softmax(1), s.softmax(1), reduction="batchmean"),
    "a constant": lambda s, t: KL(s.softmax(1), t.softmax(1), reduction="batchmean") + 1.5,
}


@pytest.mark.parametrize("loss_fn", WRONG_KL.values(), ids=WRONG_KL)
def test_a_divergence_of_probabilities_is_named(loss_fn):
    assert asked(loss_fn, LOGITS, OTHER, kind="divergence").causes == ("values.kl_of_probabilities",)


RIGHT_KL = {
    "log input": lambda s, t: KL(s.log_softmax(1), t.softmax(1), reduction="batchmean"),
    "both logs": lambda s, t: KL(s.log_softmax(1), t.log_softmax(1), reduction="batchmean", log_target=True),
    "by hand": lambda s, t: (t.softmax(1) * (t.log_softmax(1) - s.log_softmax(1))).sum(1).mean(),
}


@pytest.mark.parametrize("loss_fn", RIGHT_KL.values(), ids=RIGHT_KL)
def test_right_divergences_are_ok(loss_fn):
    assert asked(loss_fn, LOGITS, OTHER, kind="divergence").status == "ok"


def test_a_divergence_by_hand_of_the_wrong_form_is_named_by_itself():
    def wrong(student, teacher):
        return (teacher.softmax(1) * (teacher.log_softmax(1) - student.softmax(1))).sum(1).mean()

    assert asked(wrong, LOGITS, OTHER, kind="divergence").causes == ("values.divergence_of_itself",)


def test_a_target_in_the_wrong_form_is_named():
    report = asked(lambda s, t: KL(s.log_softmax(1), t.log_softmax(1)), LOGITS, OTHER, kind="divergence")

    assert report.causes == ("values.kl_target_form",)


TOKENS = torch.randint(1, 5, (3, 7), generator=GENERATOR)
TOKENS[0, 5:] = TOKENS[1, 4:] = 0  # padding
SCORES = torch.randn(3, 7, 5, generator=GENERATOR)


def over_padding(output, target):
    return CE(output.transpose(1, 2), target)


def masked_but_mean(output, target):
    each = CE(output.transpose(1, 2), target, reduction="none")
    return (each * (target != 0)).mean()


def ignored(output, target):
    return CE(output.transpose(1, 2), target, ignore_index=0)


def masked_mean(output, target):
    each = CE(output.transpose(1, 2), target, reduction="none")
    return (each * (target != 0)).sum() / (target != 0).sum()


def down_weighted(output, target):
    weight = torch.tensor([0.1, 1.0, 1.0, 1.0, 1.0])
    return CE(output.transpose(1, 2), target, weight=weight)


@pytest.mark.parametrize(
    ("loss_fn", "cause"),
    [
        (over_padding, "values.loss_reads_padding"),
        (down_weighted, "values.loss_reads_padding"),
        (masked_but_mean, "values.mean_over_padding"),
    ],
)
def test_a_loss_that_counts_padding_is_named(loss_fn, cause):
    assert cause in asked(loss_fn, SCORES, TOKENS, ignore=0).causes


@pytest.mark.parametrize("loss_fn", [ignored, masked_mean])
def test_a_loss_that_ignores_padding_is_ok(loss_fn):
    assert asked(loss_fn, SCORES, TOKENS, ignore=0).status == "ok"


def test_a_mask_may_be_an_argument_of_the_loss():
    def masked(output, target, mask):
        return (((output - target) ** 2) * mask).sum() / mask.sum()

    def mean(output, target, mask):
        return (((output - target) ** 2) * mask).mean()

    values, goal = torch.randn(3, 7, generator=GENERATOR), torch.randn(3, 7, generator=GENERATOR)
    mask = TOKENS != 0
    assert asked(masked, values, goal, mask=mask).status == "ok"
    assert asked(mean, values, goal, mask=mask).causes == ("values.mean_over_padding",)


def shifted(times: int):
    def loss(output, target):
        for _ in range(times):
            output, target = output[:, :-1], target[:, 1:]
        return CE(output.flatten(0, 1), target.flatten())

    return loss


FULL = torch.randint(0, 5, (4, 12), generator=GENERATOR)
FULL_SCORES = torch.randn(4, 12, 5, generator=GENERATOR)


def test_labels_shifted_once_are_ok_and_otherwise_named():
    assert asked(shifted(1), FULL_SCORES, FULL, kind="next token").status == "ok"
    assert asked(shifted(2), FULL_SCORES, FULL, kind="next token").causes == ("values.labels_shifted_twice",)
    assert asked(shifted(0), FULL_SCORES, FULL, kind="next token").causes == ("values.labels_not_shifted",)
    assert asked(shifted(0), FULL_SCORES, FULL).status == "ok"  # shifted before the loss


def test_a_view_where_a_transposition_was_needed_is_named():
    wrong = asked(lambda o, t: CE(o.view(4, 5, 12), t), FULL_SCORES, FULL)
    right = asked(lambda o, t: CE(o.transpose(1, 2), t), FULL_SCORES, FULL)

    assert wrong.causes == ("values.perfect_prediction_costs",)
    assert right.status == "ok"


def test_a_view_is_named_also_where_length_and_classes_agree():
    square, labels = torch.randn(4, 5, 5, generator=GENERATOR), FULL[:, :5]

    assert asked(CE, square, labels).status == "unknown"
    assert asked(CE, square, labels, class_dim=2).causes == ("values.perfect_prediction_costs",)
    assert asked(CE, square, labels, class_dim=1).status == "ok"


def test_targets_that_the_last_activation_cannot_reach_are_named():
    scores = NUMBERS.clone().requires_grad_()

    assert asked(residual, scores.sigmoid(), NUMBERS * 50).causes == ("values.unreachable_targets",)
    assert asked(residual, scores.relu(), NUMBERS).causes == ("values.unreachable_targets",)
    assert asked(residual, scores.sigmoid(), NUMBERS.sigmoid()).status == "ok"
    assert asked(residual, scores * 1.0, NUMBERS * 50).status == "ok"


def test_one_unit_of_softmax_and_many_labels_of_softmax_are_named():
    many = torch.tensor([[1.0, 1.0, 0.0, 0.0]] * 16)

    assert asked(residual, COLUMN.softmax(1), NUMBERS[:, None]).causes == ("values.softmax_over_one_unit",)
    report = asked(functional.binary_cross_entropy, LOGITS.softmax(1), many)
    assert report.causes == ("values.softmax_for_many_labels",)
    assert asked(functional.binary_cross_entropy, LOGITS.sigmoid(), many).status == "ok"


def test_three_classes_through_one_unit_are_named():
    three = torch.randint(0, 3, (16, 1), generator=GENERATOR).float()

    assert asked(WITH_LOGITS, COLUMN, three).causes == ("values.labels_out_of_range",)


GARBAGE = {
    "no tensors": (residual, [1.0], [2.0]),
    "no rows": (residual, torch.zeros(0, 1), torch.zeros(0)),
    "a loss that raises": (lambda o, t: 1 / 0, COLUMN, NUMBERS),
    "shapes that do not fit": (residual, torch.zeros(3, 2), torch.zeros(7, 5)),
    "a loss that is a number": (lambda o, t: 1.0, COLUMN, NUMBERS),
    "a loss that is none": (lambda o, t: None, COLUMN, NUMBERS),
    "everything ignored": (lambda o, t: CE(o, t, ignore_index=0), LOGITS, torch.zeros(16, dtype=torch.long)),
}


@pytest.mark.parametrize(("name", "given"), GARBAGE.items(), ids=GARBAGE)
def test_what_cannot_be_checked_is_unknown_in_one_sentence(name, given):
    report = rerail.check_loss_contract(*given, ignore=0 if name == "everything ignored" else None)

    assert report.status == "unknown"
    assert len(report.findings) == 1


@pytest.mark.parametrize("squash", [torch.sigmoid, torch.tanh, torch.relu])
def test_scores_that_an_activation_bounds_are_suspicious(squash):
    scores = LOGITS.clone().requires_grad_()

    assert asked(CE, squash(scores), LABELS).causes == ("values.scores_squashed",)
    assert asked(CE, scores * 1.0, LABELS).status == "ok"


def test_a_metric_loss_on_embeddings_is_not_taken_for_a_class_loss():
    def triplet(output, target):
        return functional.triplet_margin_loss(output[:5], output[5:10], output[10:15])

    assert asked(triplet, LOGITS, LABELS * 100).status == "ok"
