"""Histories: what a curve can show is told, healthy curves of many kinds are left alone, garbage gets an answer."""

import json
import math
import random

import numpy as np
import pytest
import torch

import rerail

SEED = [  # the history of the course's source
    {"train_loss": 0.72, "validation_loss": 0.70, "gradient_norm": 1.2},
    {"train_loss": 0.31, "validation_loss": 0.44, "gradient_norm": 3.8},
    {"train_loss": 0.08, "validation_loss": 0.91, "gradient_norm": 180.0},
]


def causes(records, **settings):
    return rerail.diagnose_history(records, **settings).causes


def test_the_history_of_the_source_gives_its_two_signals():
    assert causes(SEED) == ("evaluation.overfit_signal", "update.growing_gradient_norm")
    assert rerail.diagnose_history(SEED).status == "suspicious"  # signals, not causes


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf, np.float32("nan"), torch.tensor(math.inf)])
def test_every_number_that_is_not_finite_is_named_by_row_and_field(number):
    rows = [dict(row) for row in SEED]
    rows[2]["gradient_norm"] = number
    rows[1]["extra"] = number

    report = rerail.diagnose_history(rows)

    assert report.findings[0].cause == "values.non_finite_history"
    assert report.findings[0].where == ("row 1, extra", "row 2, gradient_norm")


def test_truth_values_texts_and_missing_values_are_no_numbers():
    rows = [{"loss": 1.0, "note": "nan", "flag": True, "missing": None}, {"loss": 0.9, "note": "inf"}]

    assert rerail.diagnose_history(rows).status == "ok"


def curve(**fields):
    return [dict(zip(fields, values, strict=True)) for values in zip(*fields.values(), strict=True)]


STEPS = np.arange(40)
DECAY = 1.4 * np.exp(-STEPS / 10) + 0.05


@pytest.mark.parametrize(
    ("records", "settings", "cause"),
    [
        pytest.param(curve(train_loss=DECAY, val_loss=1 + np.abs(STEPS - 12) / 20), {}, "evaluation.overfit_signal", id="overfit"),
        pytest.param(curve(loss=1.0986 + 1e-4 * np.cos(STEPS)), {}, "tiny_batch.plateau_at_chance", id="ln 3, not told"),
        pytest.param(curve(loss=2.31 + 5e-3 * np.cos(STEPS)), {"classes": 10}, "tiny_batch.plateau_at_chance", id="ln 10, told"),
        pytest.param(curve(loss=0.75 + 0.3 * np.exp(-STEPS)), {"classes": 4}, "values.plateau_at_softmax_floor", id="soft"),
        pytest.param(curve(loss=np.full(40, 0.7321)), {}, "update.constant_loss", id="constant"),
        pytest.param(curve(loss=1.1 ** STEPS), {}, "update.diverging_loss", id="diverging"),
        pytest.param(curve(loss=DECAY, grad_norm=1.2 ** STEPS), {}, "update.growing_gradient_norm", id="norm"),
        pytest.param(curve(epoch=STEPS // 4, lr=np.where(STEPS < 4, 0.1, 1e-5), loss=DECAY), {}, "update.rate_collapsed", id="rate"),
        pytest.param(curve(loss=DECAY, val_loss=np.full(40, 0.5)), {}, "evaluation.validation_does_not_move", id="repeated"),
        pytest.param(
            curve(val_loss=np.abs(STEPS - 12) / 20 + 0.1), {"best": {"metric": "val_loss", "mode": "max", "epoch": 39}},
            "evaluation.best_epoch_by_wrong_direction", id="max of a loss",
        ),
        pytest.param(
            curve(acc=[0.6, 0.9, 0.8], val_loss=[0.5, 0.6, 0.4]),
            {"best": {"metric": "val_loss", "mode": "min", "epoch": 2, "stopped_on": "acc"}},
            "evaluation.stopped_on_another_metric", id="stopped by another metric",
        ),
    ],
)  # fmt: skip
def test_what_a_curve_shows_is_told(records, settings, cause):
    assert cause in causes(records, **settings), rerail.diagnose_history(records, **settings)


def healthy(kind: str, seed: int):
    noise = np.random.default_rng(seed)
    count = int(noise.integers(20, 120))
    x = np.linspace(0, 1, count)
    scale = {"summed": 1e6, "tiny": 1e-4}.get(kind, 1.0)
    train = scale * (2 * np.exp(-5 * x) + 0.3) * np.exp(0.05 * noise.normal(size=count))
    validation = train * 0.8 if kind == "dropout" else train * 1.1 * np.exp(0.05 * noise.normal(size=count))
    norm = scale * 3 * np.exp(0.4 * noise.normal(size=count))
    rate = {
        "warm-up": np.minimum(1, x * 10),
        "cosine": (1 + np.cos(np.pi * x)) / 2,
        "one cycle": np.sin(np.pi * x),
    }.get(kind, 1 + 0 * x)
    fields = {
        "epoch": np.arange(count),
        "train_loss": train,
        "val_loss": validation,
        "grad_norm": norm,
        "lr": 0.1 * rate + 1e-4,
    }
    if kind == "gan":
        fields["train_loss"] = 1 + 0.4 * np.sin(20 * x) + 0.2 * noise.normal(size=count)
        fields["val_loss"] = 1 + 0.4 * np.cos(20 * x) + 0.2 * noise.normal(size=count)
    if kind == "return":
        return {"epoch": np.arange(count), "return": 10 ** (3 * x), "grad_norm": norm}
    if kind == "spikes":
        fields["grad_norm"][count // 2] *= 100
        fields["train_loss"][count // 3] *= 5
    if kind == "finished":
        fields["train_loss"] = np.maximum(train - 1, 0)
    return fields


KINDS = ("plain", "dropout", "summed", "tiny", "warm-up", "cosine", "one cycle", "gan", "return", "spikes", "finished")


def odd_but_healthy(kind: str, seed: int):
    """Curves made without a look at the limits: what runs do that look troubled, and are not."""
    noise = np.random.default_rng([seed, len(kind), ord(kind[0])])
    count = int(noise.integers(3, 6) if kind == "short" else noise.integers(6, 150))
    x, spread = np.linspace(0, 1, count), noise.choice([0.01, 0.05, 0.1])

    def scattered(values, by=spread):
        return values * np.exp(by * noise.normal(size=count))

    train = scattered(noise.uniform(0.5, 3) * np.exp(-noise.uniform(2, 10) * x) + noise.uniform(0.02, 1))
    validation = scattered(train * noise.uniform(0.8, 1.2) + noise.uniform(0, 0.3))
    norm, rate, walk = scattered(2 + 0 * x, 0.5), 0.1 + 0 * x, np.cumsum(noise.normal(size=(2, count)), axis=1)
    if kind == "restarts":
        swing = (1 + np.cos(np.pi * ((4 * x) % 1))) / 2
        train, validation, rate = train * (1 + 0.5 * swing), validation * (1 + 0.5 * swing), 0.1 * swing + 1e-5
    elif kind == "adversaries":
        train, validation = 1 + 0.4 * np.sin(20 * x) + walk[0] / 50, 1 + 0.4 * np.sin(20 * x + seed) + walk[1] / 50
    elif kind == "few validation rows":
        validation = scattered(validation, 0.2)
    elif kind == "negative":
        train, validation = -100 * (1 - np.exp(-5 * x)) + walk[0] / 9, -98 * (1 - np.exp(-5 * x)) + walk[1] / 9
    elif kind == "bump":
        validation = validation * (1 + 0.6 * np.exp(-(((x - 0.3) / 0.05) ** 2)))
    elif kind == "late":  # the validation loss rises for long, and then falls
        validation = 1.5 + 0.3 * x * (x < 0.7) - 1.2 * (x >= 0.7) + 0.05 * noise.normal(size=count)
    elif kind == "flat":
        train, validation = scattered(noise.uniform(0.02, 1) * (1 + np.exp(-30 * x)), 0.002), validation
    elif kind == "zero initialised":
        norm = norm * (1 - np.exp(-20 * x)) + 1e-3
    elif kind == "halved rate":
        rate = 0.1 * 0.5 ** np.arange(count)
    elif kind == "value loss":
        return {
            "step": np.arange(count),
            "return": 10 ** (3 * x),
            "loss": scattered(1 + x, 0.5),
            "grad_norm": norm * (1 + 2 * x),
        }
    return {"epoch": np.arange(count), "train_loss": train, "val_loss": validation, "grad_norm": norm, "lr": rate}


ODD = (
    "short", "restarts", "adversaries", "few validation rows", "negative", "bump", "late", "flat", "zero initialised", "halved rate",
    "value loss", "plain",
)  # fmt: skip


@pytest.mark.parametrize("classes", [None, 2, 10])
def test_odd_curves_of_healthy_runs_give_no_fault_and_hardly_a_question(classes):
    reports = [
        rerail.diagnose_history(odd_but_healthy(kind, seed), classes=classes) for kind in ODD for seed in range(25)
    ]

    questions = [report for report in reports if report.status == "suspicious"]
    assert len(reports) == 300
    assert not [report for report in reports if report.status in ("fault", "unknown")]
    assert len(questions) <= 0.05 * len(reports), [str(report) for report in questions[:3]]


def test_overfitting_is_seen_in_noise():
    seen = 0
    for seed in range(100):
        noise = np.random.default_rng(seed)
        x = np.linspace(0, 1, int(noise.integers(10, 80)))
        train = (2 * np.exp(-6 * x) + 0.01) * np.exp(0.05 * noise.normal(size=len(x)))
        rises = 0.5 + 1.5 * np.exp(-15 * x) + 0.25 * np.maximum(x - 0.35, 0) / 0.65  # by half, since its best
        held_out = rises * np.exp(0.05 * noise.normal(size=len(x)))
        seen += "evaluation.overfit_signal" in causes({"train_loss": train, "val_loss": held_out})

    assert seen >= 90


@pytest.mark.parametrize("classes", [4, 10])
def test_the_floor_of_a_doubled_softmax_is_told_from_a_run_that_has_one(classes):
    inputs, targets = torch.randn(64, 20), torch.arange(64) % classes

    def losses(*last):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(20, 64), torch.nn.ReLU(), torch.nn.Linear(64, classes), *last)
        optimizer = torch.optim.Adam(model.parameters(), 1e-2)
        for _ in range(200):
            loss = torch.nn.functional.cross_entropy(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            yield loss.item()

    assert causes({"loss": list(losses(torch.nn.Softmax(-1)))}, classes=classes) == ("values.plateau_at_softmax_floor",)
    assert causes({"loss": list(losses())}, classes=classes) == ()
    assert causes({"loss": list(losses(torch.nn.LogSoftmax(-1)))}, classes=classes) == ()


def test_a_flat_loss_is_no_logarithm_where_any_number_would_be_one():
    found = [causes({"loss": level + 1e-4 * np.sin(np.arange(30))}) for level in np.linspace(5, 11, 200)]

    assert sum(map(bool, found)) <= 10  # the logarithms of counts that are in use
    assert causes({"loss": math.log(50_257) + 1e-3 * np.sin(np.arange(30))}) == ("tiny_batch.plateau_at_chance",)


class Frame:
    """What a data frame is to a reader: nan in every cell that is empty."""

    def __init__(self, **columns):
        self.columns = columns

    def to_dict(self, kind):
        assert kind == "list"
        return self.columns


NAN = math.nan


@pytest.mark.parametrize(
    ("records", "status"),
    [
        pytest.param(Frame(epoch=[0, 0, 1, 1], loss=[1, NAN, 0.5, NAN], val_loss=[NAN, 1.1, NAN, 0.6]), "ok", id="rows of two kinds"),
        pytest.param(Frame(loss=[1, 0.8, 0.6, 0.4], val_loss=[NAN, 1, NAN, 0.9]), "ok", id="validated every other row"),
        pytest.param(Frame(loss=[1, 0.8, NAN, NAN], lr=[1, 1, 1, 1]), "suspicious", id="nan to the end"),
        pytest.param(Frame(loss=[1, 0.8, math.inf, 0.4]), "fault", id="inf is no empty cell"),
        pytest.param({"loss": [1, NAN, 0.5, NAN], "val_loss": [NAN, 1.1, NAN, 0.6]}, "suspicious", id="no frame, alternating"),
        pytest.param({"loss": [1, NAN, 0.5, NAN], "val_loss": [1, 1.1, NAN, 0.6]}, "fault", id="no frame"),
    ],
)  # fmt: skip
def test_an_empty_cell_of_a_data_frame_is_no_broken_run(records, status):
    assert rerail.diagnose_history(records).status == status


VALIDATED = {
    "epoch": [1, 2, 3],
    "val_loss": [3, 1, 2.0],
    "val_acc": [0.2, 0.6, 0.4],
    "neg_mean_squared_error": [-3, -1, -2],
}


@pytest.mark.parametrize(
    ("best", "direction", "status"),
    [
        ({"metric": "val_loss", "mode": "min", "epoch": 2}, None, "ok"),  # the value of the field, not the row
        ({"metric": "val_loss", "mode": "min", "epoch": 3}, None, "suspicious"),
        ({"metric": "val_loss", "mode": "max", "epoch": 1}, None, "fault"),
        ({"metric": "val_loss", "mode": "max", "epoch": 1}, {"val_loss": "max"}, "ok"),
        ({"metric": "val_acc", "mode": "max", "epoch": 2}, None, "ok"),
        ({"metric": "val_acc", "mode": "min", "epoch": 1}, None, "fault"),
        ({"metric": "neg_mean_squared_error", "mode": "max", "epoch": 2}, None, "ok"),
        ({"metric": "val_loss", "mode": "min", "epoch": 2, "stopped_on": "val_loss"}, None, "ok"),
        ({"metric": "val_loss", "mode": "min", "epoch": 2, "stopped_on": "val_acc"}, None, "suspicious"),
        ({"metric": "val_los", "mode": "min", "epoch": 2}, None, "unknown"),
        (3, None, "unknown"),
        ({"metric": "val_loss"}, {"val_loss": "up"}, "unknown"),
        ({"metric": "val_loss"}, "min", "unknown"),
    ],
)
def test_the_best_row_is_chosen_the_right_way_round(best, direction, status):
    assert rerail.diagnose_history(VALIDATED, best=best, direction=direction).status == status


@pytest.mark.parametrize("classes", ["ten", 10.5, 0, -3, True])
def test_a_number_of_classes_is_a_whole_number(classes):
    assert rerail.diagnose_history(SEED, classes=classes).status == "unknown"


STEP = np.arange(60)


@pytest.mark.parametrize(
    ("records", "settings"),
    [
        pytest.param({"grad_norm": np.where(STEP < 18, 0.01, 1.0)}, {}, id="a norm that rose once, and stays"),
        pytest.param({"train_loss": np.select([STEP < 10, STEP < 40], [0.5, 1.5], 1.2), "val_loss": 0.5 + np.abs(STEP - 30) / 30}, {}, id="a training loss that swings"),
        pytest.param({"train_loss": np.exp(-STEP), "val_loss": 1.0 + STEP % 7}, {}, id="a validation loss that swings and comes back"),
        pytest.param({"loss": 0.78 + 4 * np.exp(-STEP)}, {"classes": 4}, id="above all that probabilities can cost"),
        pytest.param({"loss": 0.745 + 0.3 * np.exp(-STEP) - 0.1 * (STEP == 9)}, {"classes": 4}, id="once below the floor"),
        pytest.param({"train_loss": [0.7, 0.5, 0.4], "val_loss": [0.7, 0.5, 0.55]}, {}, id="three rows, a little noise"),
        pytest.param({"loss": math.log(3) + 2 * np.exp(-STEP)}, {}, id="a loss that has fallen to ln 3"),
        pytest.param({"train_loss": np.exp(-STEP), "val_loss": np.exp(-STEP) + (STEP == 59)}, {}, id="one bad row at the end"),
    ],
)  # fmt: skip
def test_what_only_resembles_a_signal_is_none(records, settings):
    assert causes(records, **settings) == ()


def test_a_run_that_falls_and_then_explodes_diverges():
    assert causes({"loss": [2.3, 1, 0.5, 0.3, 4, 8, 20]}) == ("update.diverging_loss",)


@pytest.mark.parametrize("rates", [[0.1, 1e-5, 1e-9, 1e-13, 1e-17], [1e-5, 1e-9, 1e-13, 1e-17]])
def test_a_rate_that_is_gone_after_an_epoch_is_told_without_a_field_of_epochs(rates):
    assert causes({"lr": rates}) == ("update.rate_collapsed",)
    assert causes({"lr": rates, "step": range(len(rates))}) == ()  # rows are steps: nothing says where an epoch ends


def test_rows_keep_their_number_and_name_their_epoch():
    report = rerail.diagnose_history([None, {"epoch": 7, "loss": 1.0}, {"epoch": 8, "loss": "nan"}])

    assert report.findings[0].where == ("row 2, loss",)
    assert "row 2 (epoch 8)" in report.findings[0].says


@pytest.mark.parametrize(
    "names", [("train/loss_epoch", "val/loss_epoch"), ("Train loss", "Validation loss"), ("loss", "eval_loss"), ("loss/train", "loss/val")]
)  # fmt: skip
def test_fields_are_found_by_the_names_that_loggers_give_them(names):
    falling, rising = 1 / np.arange(1, 13), 1 + 0.2 * np.arange(12)
    report = rerail.diagnose_history(dict(zip(names, (falling, rising), strict=True)))

    assert report.causes == ("evaluation.overfit_signal",)
    assert (report.facts["train"], report.facts["validation"]) == names


def test_two_rows_are_no_trend():
    report = rerail.diagnose_history(SEED[:2])

    assert report.status == "ok"
    assert report.facts["trends"] == "not judged: 3 rows are the least"


def test_healthy_curves_give_no_fault_and_hardly_a_question():
    reports = [rerail.diagnose_history(healthy(kind, seed)) for kind in KINDS for seed in range(25)]

    questions = [report for report in reports if report.status == "suspicious"]
    assert not [report for report in reports if report.status in ("fault", "unknown")]
    assert len(questions) <= 0.05 * len(reports), [str(report) for report in questions[:3]]


def test_files_of_all_kinds_are_read_alike(tmp_path):
    (tmp_path / "a.csv").write_text("epoch,train_loss,val_loss\n0,1.0,\n0,,1.1\n1,0.5,\n1,,inf\n")
    (tmp_path / "b.jsonl").write_text(
        '{"train_loss": 1.0, "val_loss": 1.1}\n\n{"train_loss": 0.5, "val_loss": Infinity}\n'
    )
    (tmp_path / "c.json").write_text(json.dumps({"train_loss": [1.0, 0.5], "val_loss": [1.1, math.inf]}))
    (tmp_path / "d.json").write_text(
        json.dumps([{"train_loss": 1.0, "val_loss": 1.1}, {"train_loss": 0.5, "val_loss": math.inf}])
    )

    for path in sorted(tmp_path.iterdir()):
        rows = rerail.read_history(path)
        assert [row["train_loss"] for row in rows] == [1.0, 0.5], path
        assert rerail.diagnose_history(path).findings[0].where == ("row 1, val_loss",), path


def test_rows_of_one_epoch_are_joined_wherever_they_stand(tmp_path):
    path = tmp_path / "metrics.csv"
    path.write_text(
        "epoch,step,train_loss_step,train_loss_epoch,val_loss\n0,49,1.0,,\n0,99,0.9,,\n0,124,,,0.8\n0,124,,0.95,\n"
        "1,149,0.7,,\n1,249,,,nan\n1,249,,0.6,\n"
    )

    assert rerail.read_history(path) == [
        {"epoch": 0, "step": 49, "train_loss_step": 1.0},
        {"epoch": 0, "step": 124, "train_loss_step": 0.9, "val_loss": 0.8, "train_loss_epoch": 0.95},
        {
            "epoch": 1,
            "step": 249,
            "train_loss_step": 0.7,
            "val_loss": pytest.approx(NAN, nan_ok=True),
            "train_loss_epoch": 0.6,
        },
    ]
    assert rerail.diagnose_history(path).findings[0].where == ("row 2, val_loss",)


def test_the_state_of_a_trainer_is_read(tmp_path):
    path = tmp_path / "trainer_state.json"
    path.write_text(
        json.dumps({"epoch": 1.0, "log_history": [{"loss": 1.0, "epoch": 1.0}, {"eval_loss": NAN, "epoch": 1.0}]})
    )

    assert rerail.diagnose_history(path).findings[0].where == ("row 0, eval_loss",)


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        "a," * 10 + "\n" + '"' + "x" * 200_000 + '"',
        "{",
        "[1, 2",
        "no table",
        "a,b\nx,y\n",
        '{"a": 1}\nno json',
        "\0\1",
    ],
)
def test_a_file_without_history_says_what_it_is(tmp_path, text):
    path = tmp_path / "log.txt"
    path.write_text(text)

    assert rerail.diagnose_history(path).status == "unknown"


@pytest.mark.parametrize(
    "records", [[], {}, None, 3, "no such file.csv", [1, 2], [{}], [{"a": "text"}], {"a": []}, object()]
)
def test_what_is_no_history_is_unknown(records):
    assert rerail.diagnose_history(records).status == "unknown"


def test_ten_thousand_odd_histories_get_an_answer():
    generator = random.Random(0)
    values = (
        0, 1, -1.5, 1e308, -1e308, 10**400, math.nan, math.inf, None, True, "text", "nan", [], {}, np.float16(3), np.int8(2),
        np.array([1, 2]), torch.tensor(2.0), torch.tensor([1.0, 2.0]), 1j, b"x",
    )  # fmt: skip
    names = ("loss", "train_loss", "val_loss", "grad_norm", "lr", "epoch", "", "x", "LOSS")
    for _ in range(10_000):
        rows = [
            {generator.choice(names): generator.choice(values) for _ in range(generator.randrange(5))}
            for _ in range(generator.randrange(8))
        ]
        report = rerail.diagnose_history(rows, classes=generator.choice((None, 0, 1, 10)))

        assert report.status in ("ok", "suspicious", "fault", "unknown")
        assert "code that was called raised" not in str(report), (rows, report)


def test_words_among_the_numbers_are_told(tmp_path):
    log = tmp_path / "log.csv"
    for cells, says in (
        (
            ("0.5", "oops", "0.2"),
            "1 cell holds no number in loss, which was read without them; the first is 'oops' in row 1",
        ),
        (("abc", "def"), "2 cells hold no number in loss"),
    ):
        log.write_text("step,loss\n" + "\n".join(f"{step},{cell}" for step, cell in enumerate(cells)) + "\n9,None")

        report = rerail.diagnose_history(log)

        assert (report.status, says in report.findings[0].says) == ("unknown", True)
    log.write_text("loss,phase\n0.5,train\nnone,train\nnan,train\n0.2,end\n")
    assert [finding.status for finding in rerail.diagnose_history(log).findings] == ["fault"], "nan is a number"
