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
            "evaluation.best_epoch_by_wrong_direction", id="stopped by another metric",
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


@pytest.mark.parametrize("text", ["{", "[1, 2", "no table", "a,b\nx,y\n", '{"a": 1}\nno json', "\0\1"])
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
