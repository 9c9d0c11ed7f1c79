"""Tracebacks of real failures become short, keep what a person needs, and everything else passes unchanged."""

import random
import time
from pathlib import Path

import pytest
import torch
from torch import nn

import rerail

TRACES = Path(__file__).parent / "traces"

EXPECTED = {  # what the short text must hold: the first cause, own frames, shapes
    "deep": ["RuntimeError: mat1 and mat2", "4x3 and 5x2", "deep.py:7 in forward", "77 library frames (torch)"],
    "worker": ["ValueError: row 5 has shape (3, 7)", "worker.py:9 in load", "DataLoader worker process 0"],
    "compiled": ["must have same reduction dim", "[4, 3] X [5, 2]", "compiled.py:4 in step", "compiled.py:7 in main"],
    "group": ["KeyError: 'label'", "group.py:3 in load", "another member", "size of tensor a (3)", "two rows failed"],
    "sparse": ["NotImplementedError: Could not run 'aten::ne.Scalar'", "sparse.py:5 in guard", "SparseCPU"],
    "anomaly": ["PowBackward0", "anomaly.py:12 in main", "the forward call behind it", "anomaly.py:7 in forward"],
    "chain": ["FileNotFoundError", "last.ckpt", "direct cause of ConfigError", "while that was handled KeyError"],
    "spawn": ["shape '[5]' is invalid for input of size 12", "spawn.py:4 in work", "Process 1 terminated"],
    "lightning": ["4x3 and 4x2", "fit.py:8 in training_step", "library frames (lightning, torch)"],
    "notebook": ["4x3 and 5x2", "In[1]:8 in Net.forward: return self.out(x)", "loss = model(x).sum()"],
    "keras": ["Exception encountered when calling Net.call()", "fit_keras.py:14 in call", "(8, 20)", "(8, 16)"],
    "ranks": ["4x3 and 5x2", "ddp.py:21 in train", "the same in 1 more process", "ChildFailedError"],
}


@pytest.mark.parametrize("name", EXPECTED)
def test_a_long_trace_becomes_short_and_keeps_what_counts(name):
    text = (TRACES / f"{name}.txt").read_text("utf-8")

    short = rerail.minify_traceback(text)

    assert len(short.splitlines()) < 15
    assert len(short) < len(text)
    for part in EXPECTED[name]:
        assert part in short, short


def test_every_trace_of_the_corpus_is_expected():
    assert {path.stem for path in TRACES.glob("*.txt")} == set(EXPECTED)


def test_an_exception_is_taken_as_well_as_its_text():
    model = nn.Sequential(*(nn.Sequential(nn.Sequential(nn.Identity())) for _ in range(3)), nn.Linear(5, 2))
    with pytest.raises(RuntimeError) as caught:
        model(torch.zeros(4, 3))

    short = rerail.minify_traceback(caught.value)

    assert short.startswith("RuntimeError: mat1 and mat2 shapes cannot be multiplied (4x3 and 5x2)\n")
    assert f"{Path(__file__).name}:" in short


@pytest.mark.parametrize(
    "text",
    [
        "", "\n", "loss 0.3\n" * 100, "Error: nothing\n" * 20, "\x00\x01", "a" * 100_000, "File names: train.py\n" * 30,
        'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\n    f()\nValueError: x\n',
        "the word Traceback alone\n" * 20, "[rank0]: step 3\n" * 20, "\r\nwindows\r\nlines\r\n" * 10,
    ],
)  # fmt: skip
def test_what_is_no_long_traceback_passes_unchanged(text):
    assert rerail.minify_traceback(text) == text


def test_ten_thousand_broken_texts_never_raise():
    generator = random.Random(0)
    corpus = [(TRACES / f"{name}.txt").read_text("utf-8").splitlines() for name in EXPECTED]
    for number in range(10_000):
        lines = list(generator.choice(corpus))[: generator.randrange(1, 60)]
        for _ in range(generator.randrange(4)):
            position = generator.randrange(len(lines))
            kind = generator.randrange(5)
            if kind == 0:
                del lines[position]
            elif kind == 1:
                lines.insert(position, lines[generator.randrange(len(lines))])
            elif kind == 2:
                lines[position] = lines[position][: generator.randrange(len(lines[position]) + 1)]
            elif kind == 3:
                lines.insert(position, generator.randbytes(20).decode("latin-1"))
            else:
                lines += generator.choice(corpus)[:20]
            lines = lines or [""]
        text = "\n".join(lines)

        short = rerail.minify_traceback(text)

        assert isinstance(short, str), number
        assert short == text or len(short.splitlines()) < 15, number
        rerail.traceback_signature(text)


def test_a_megabyte_takes_no_time():
    text = (TRACES / "deep.txt").read_text("utf-8")
    long = text * (1_000_000 // len(text)) + " " * 100_000 + "~" * 100_000

    begin = time.perf_counter()
    rerail.minify_traceback(long)

    assert time.perf_counter() - begin < 10  # 0.3 s on an idle core: a guard against a search that explodes


def test_one_bug_has_one_signature_on_another_line_and_machine():
    text = (TRACES / "deep.txt").read_text("utf-8")
    elsewhere = text.replace("/home/ada/", "/Users/bob/work/").replace("line 13,", "line 99,").replace("4x3", "8x3")

    assert rerail.traceback_signature(text) == rerail.traceback_signature(elsewhere)
    assert rerail.traceback_signature(text) != rerail.traceback_signature((TRACES / "lightning.txt").read_text("utf-8"))
    assert rerail.traceback_signature("no trace") == ""
