"""Tracebacks of real failures become short, keep what a person needs, and everything else passes unchanged."""

import random
import time
import traceback
from pathlib import Path

import pytest
import torch
from torch import nn

import rerail
from rerail.cli import execute
from rerail.cli.settings import Settings

torch.set_num_threads(1)
TRACES = Path(__file__).parent / "traces"

EXPECTED = {  # what the short text must hold: the first cause, own frames, shapes
    "anomaly": ["PowBackward0", "anomaly.py:12 in main", "the forward call behind it", "anomaly.py:7 in forward"],
    "chain": ["FileNotFoundError", "last.ckpt", "direct cause of ConfigError", "while that was handled KeyError"],
    "colab": ["4x3 and 5x2", "/tmp/ipython-input-1234-567.py:2", ": model(x)", "3 library frames (torch)"],
    "compiled": ["must have same reduction dim", "[4, 3] X [5, 2]", "compiled.py:4 in step", "compiled.py:7 in main"],
    "deep": ["RuntimeError: mat1 and mat2", "4x3 and 5x2", "deep.py:7 in forward", "77 library frames (torch)", "entered by torch/nn/modules/module.py:1778", "raised in torch/nn/modules/linear.py:134"],
    "endless": ["RecursionError: maximum recursion depth", "endless.py:18 in <module>", "endless.py:11 in twice", "65 more own frames", "72 library frames"],
    "graph_break": ["Unsupported: Data-dependent branching", "graph_break.py:10 in main", "graph_break.py:5 in step: if x.sum() > 0:"],
    "group": ["KeyError: 'label'", "group.py:3 in load", "another member", "size of tensor a (3)", "two rows failed"],
    "inplace": ["[torch.FloatTensor [2, 4]]", "version 1; expected version 0", "inplace.py:18 in main: loss.backward()", "the forward call behind it: /home/ada/inplace.py:10 in forward: h = torch.sigmoid(self.a(x))"],
    "interrupted": ["KeyboardInterrupt", "interrupted.py:10 in train", "entered by torch/_tensor.py:623 in backward"],
    "keras": ["Exception encountered when calling Net.call()", "fit_keras.py:14 in call", "(8, 20)", "(8, 16)", "dtype=float32", "training=True"],
    "launched": ["4x3 and 5x2", "ddp.py:21 in train", "the same in 1 more process", "ChildFailedError: ddp.py FAILED"],
    "lightning": ["4x3 and 4x2", "fit.py:8 in training_step", "library frames (lightning, torch)"],
    "nested_group": ["KeyError: 'label'", "nested_group.py:11 in load", "direct cause of LoadFailed: row 1", "another member of the group: RuntimeError", "2x3 and 4x5", "reported by ExceptionGroup"],
    "notebook": ["4x3 and 5x2", "In[1]:8 in Net.forward: return self.out(x)", "loss = model(x).sum()"],
    "pool": ["KeyError: 'text'", 'pool.py:4 in tokenize: return row["text"].split()', "direct cause of", "pool.py:9"],
    "sparse": ["NotImplementedError: Could not run 'aten::ne.Scalar'", "sparse.py:5 in guard", "SparseCPU"],
    "spawn": ["shape '[5]' is invalid for input of size 12", "spawn.py:4 in work", "Process 1 terminated"],
    "state_dict": ["Missing key(s)", "[10, 8]) from checkpoint", "[12, 8])", "[10]) from", "state.py:5 in resume", "another failure: RuntimeError"],
    "tensorflow": ["Graph execution error", "label value of 12 which is outside the valid range of [0, 10)", "fit.py:12 in <module>", "(keras, tensorflow)"],
    "torchrun": ["8x5 and 4x2", "launched.py:7 in train", "the same in 1 more process", "ChildFailedError: launched.py FAILED"],
    "worker": ["ValueError: row 5 has shape (3, 7)", "worker.py:9 in load", "DataLoader worker process 0"],
}  # fmt: skip

HEADER = "Traceback (most recent call last):\n"
LIBRARY = "".join(
    f'  File "/usr/lib/python3.11/site-packages/torch/nn/modules/module.py", line {line}, in _call_impl\n    run()\n'
    for line in range(1, 9)
)


def own(function: str, line: int = 5, path: str = "/home/ada/train.py") -> str:
    return f'  File "{path}", line {line}, in {function}\n    loss = step(batch)\n    ~~~~~^^^^^^^\n'


def failure(message: str, function: str = "train") -> str:
    return HEADER + own(function) + LIBRARY + message + "\n"


def corpus() -> dict[str, str]:
    return {path.stem: path.read_text("utf-8") for path in sorted(TRACES.glob("*.txt"))}


@pytest.mark.parametrize("name", EXPECTED)
def test_a_long_trace_becomes_short_and_keeps_what_counts(name):
    text = corpus()[name]

    short = rerail.minify_traceback(text)

    assert len(short.splitlines()) < 15
    assert len(short) < len(text)
    for part in EXPECTED[name]:
        assert part in short, short


def test_every_trace_of_the_corpus_is_expected():
    assert set(corpus()) == set(EXPECTED)


def test_a_path_is_read():
    path = TRACES / "deep.txt"

    assert rerail.minify_traceback(path) == rerail.minify_traceback(path.read_text("utf-8"))


def test_an_exception_is_taken_as_well_as_its_text():
    model = nn.Sequential(*(nn.Sequential(nn.Sequential(nn.Identity())) for _ in range(3)), nn.Linear(5, 2))
    with pytest.raises(RuntimeError) as caught:
        model(torch.zeros(4, 3))

    short = rerail.minify_traceback(caught.value)

    assert short.startswith("RuntimeError: mat1 and mat2 shapes cannot be multiplied (4x3 and 5x2)\n")
    assert f"{Path(__file__).name}:" in short
    assert short == rerail.minify_traceback("".join(traceback.format_exception(caught.value)))


@pytest.mark.parametrize(
    "text",
    [
        "", "\n", "loss 0.3\n" * 100, "Error: nothing\n" * 20, "\x00\x01", "a" * 100_000, "File names: train.py\n" * 30,
        'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\n    f()\nValueError: x\n',
        "the word Traceback alone\n" * 20, "[rank0]: step 3\n" * 20, "\r\nwindows\r\nlines\r\n" * 10, HEADER * 20,
        "the docs say: Traceback (most recent call last):\nNote: nothing failed\n" * 20,
    ],
)  # fmt: skip
def test_what_is_no_long_traceback_passes_unchanged(text):
    assert rerail.minify_traceback(text) == text


def test_a_thousand_random_logs_pass_unchanged():
    generator = random.Random(1)
    for _ in range(1000):
        lines = (generator.randbytes(generator.randrange(60)).decode("latin-1") for _ in range(generator.randrange(60)))
        text = "\n".join(lines)

        assert rerail.minify_traceback(text) == text
        assert rerail.traceback_signature(text) == ""


def test_ten_thousand_broken_texts_never_raise():
    generator = random.Random(0)
    traces = [text.splitlines() for text in corpus().values()]
    for number in range(10_000):
        lines = list(generator.choice(traces))
        begin = generator.randrange(len(lines))
        lines = lines[begin // 2 : begin // 2 + generator.randrange(1, 60)]
        for _ in range(generator.randrange(4)):
            position = generator.randrange(len(lines))
            kind = generator.randrange(6)
            if kind == 0 and len(lines) > 1:
                del lines[position]
            elif kind == 1:
                lines.insert(position, lines[generator.randrange(len(lines))])
            elif kind == 2:
                lines[position] = lines[position][: generator.randrange(len(lines[position]) + 1)]
            elif kind == 3:
                lines.insert(position, generator.randbytes(20).decode("latin-1"))
            elif kind == 4:
                lines[position] += generator.randbytes(4).decode("utf-8", "surrogateescape")
            else:
                lines += generator.choice(traces)[:20]
        text = "\n".join(lines)
        limit = generator.choice([6, 8, 15, 40])

        short = rerail.minify_traceback(text, limit=limit)

        assert isinstance(short, str), number
        assert short == text or len(short.splitlines()) < limit, number
        rerail.traceback_signature(text)


FRAME = '  File "/a/b.py", line 3, in f\n'
GROUP = "  + Exception Group Traceback (most recent call last):\n"


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(HEADER + FRAME * 30_000, id="frames"),
        pytest.param(failure("ValueError: x") * 1_200, id="failures"),
        pytest.param(HEADER + FRAME * 20 + " " * 500_000 + "~" * 500_000, id="marks"),
        pytest.param(GROUP + "\n" * 20 + "+" + "-" * 1_000_000, id="a rule"),
        pytest.param(GROUP + "  +---------------- 1 ----------------\n  | ValueError: x\n" * 18_000, id="members"),
        pytest.param(failure("ValueError: " + 'got aError("x ' * 70_000), id="quotes"),
        pytest.param(failure("ValueError: x\n" + "1x" * 500_000), id="shapes"),
        pytest.param(failure("ValueError: x\n" + "[1, 2, " * 140_000), id="open brackets"),
        pytest.param("".join(f"[rank{n}]: {HEADER}[rank{n}]: ValueError: x\n" for n in range(15_000)), id="ranks"),
        pytest.param(HEADER + FRAME * 20 + "\x1b[" * 500_000, id="escapes"),
    ],
)
def test_a_megabyte_takes_no_time(text):
    begin = time.process_time()
    rerail.minify_traceback(text)

    assert time.process_time() - begin < 5  # 0.5 s at most on an idle core: a guard against a search that explodes


def test_one_bug_has_one_signature_on_another_line_and_machine():
    text = corpus()["deep"]
    elsewhere = text.replace("/home/ada/", "/Users/bob/work/").replace("line 13,", "line 99,").replace("4x3", "8x3")
    ranked = "".join(f"[rank3]: {line}\n" for line in text.splitlines())

    assert rerail.traceback_signature(text) == rerail.traceback_signature(elsewhere)
    assert rerail.traceback_signature(text) == rerail.traceback_signature(ranked)
    assert rerail.traceback_signature(text) != rerail.traceback_signature(corpus()["lightning"])
    assert rerail.traceback_signature("no trace") == ""


def test_a_recursion_has_one_signature_at_any_depth():
    lines = corpus()["endless"].splitlines()
    begin = next(index for index, line in enumerate(lines) if "in twice" in line)
    deeper = [*lines[:begin], *lines[begin : begin + 6] * 40, *lines[begin:]]

    assert rerail.traceback_signature("\n".join(deeper)) == rerail.traceback_signature("\n".join(lines))


def test_a_name_that_is_no_unicode_has_a_signature():
    assert rerail.traceback_signature(failure("ValueError: \udcff", "f\udcff")).startswith("ValueError-")


def test_what_the_log_says_around_a_traceback_is_left_out():
    log = "INFO:root:start\n" * 20 + failure("ValueError: first (2, 3)") + "2026-01-01 10:00:00,123 INFO saving\n" * 20

    short = rerail.minify_traceback(log)

    assert short == rerail.minify_traceback(failure("ValueError: first (2, 3)"))
    assert "INFO" not in short


@pytest.mark.parametrize("between", ["", "step 3 loss 0.5\n", "\n", "Exception in thread Thread-1 (loop):\n"])
def test_two_failures_of_one_log_are_not_taken_for_a_chain(between):
    log = failure("ValueError: first (2, 3)") + between + failure("RuntimeError: second (4x5)", "evaluate")

    short = rerail.minify_traceback(log)

    assert short.startswith("ValueError: first (2, 3)\n  /home/ada/train.py:5 in train")
    assert short.splitlines()[-1] == "another failure: RuntimeError: second (4x5) (/home/ada/train.py:5)"


def test_many_failures_are_counted():
    names = "abcdef"
    log = failure("ValueError: x") * 3 + "".join(failure(f"KeyError: '{name}'", name) for name in names)

    short = rerail.minify_traceback(log).splitlines()

    assert short[-4].startswith("the same in 2 more")
    assert short[-3:] == [
        "another failure: KeyError: 'a' (/home/ada/train.py:5)",
        "... 4 more failures",
        "another failure: KeyError: 'f' (/home/ada/train.py:5)",
    ]


def test_the_members_of_a_large_group_are_counted():
    errors = [ValueError(f"row {number} has shape ({number}, 3)") for number in range(12)]
    with pytest.raises(ExceptionGroup) as caught:
        raise ExceptionGroup("loading failed", errors)

    short = rerail.minify_traceback(caught.value).splitlines()

    assert short[0] == "ValueError: row 0 has shape (0, 3)"
    assert "another member of the group: ValueError: row 1 has shape (1, 3)" in short
    assert "... 9 more exceptions of this group" in short  # of 11 others and the group itself, three are told
    assert short[-1].startswith("reported by ExceptionGroup: loading failed (12 sub-exceptions)")


@pytest.mark.parametrize(
    "prefix", ["2026-11-02T09:14:21.133Z ", "2026-11-02 09:14:21,133 ", "3: ", "[rank3]: ", "(fit pid=31) "]
)
def test_what_a_collector_of_logs_writes_before_each_line_is_taken_away(prefix):
    text = failure("ValueError: x (2, 3)")

    assert rerail.minify_traceback("".join(prefix + line for line in text.splitlines(True))) == (
        rerail.minify_traceback(text)
    )


def test_wrong_syntax_is_told_with_its_line():
    text = "loading\n" * 15 + HEADER + own("<module>")
    text += '  File "/home/ada/broken.py", line 2\n    def f(:\n          ^\nSyntaxError: invalid syntax\n'

    short = rerail.minify_traceback(text)

    assert short.startswith("SyntaxError: invalid syntax\n")
    assert "/home/ada/broken.py:2: def f(:" in short


def test_a_repeated_frame_is_counted():
    text = HEADER + own("<module>") + own("f", 3) * 3 + "  [Previous line repeated 993 more times]\n" + LIBRARY
    text += "RecursionError: maximum recursion depth exceeded\n"

    assert "train.py:3 in f (995 times more): loss = step(batch)" in rerail.minify_traceback(text)


@pytest.mark.parametrize(
    ("path", "package"),
    [
        (r"C:\Users\ada\anaconda3\Lib\site-packages\torch\nn\modules\module.py", "torch"),
        (r"C:\Python311\Lib\threading.py", "python"),
        ("/usr/lib/python3.11/threading.py", "python"),
        ("/opt/conda/bin/torchrun", "torchrun"),
        ("<frozen runpy>", "python"),
        ("/home/ada/pytorch/torch/nn/modules/module.py", "torch"),
        ("/tmp/torchinductor_ada/ab/cabc.py", "torch"),
    ],
)
def test_a_library_is_known_by_its_path(path, package):
    text = HEADER + own("train") + own("run", path=path) * 5 + "ValueError: x\n"

    assert f"5 library frames ({package})" in rerail.minify_traceback(text)


@pytest.mark.parametrize("path", ["/home/ada/lib/model.py", "/home/ada/torch_models/nn.py", "<stdin>", "train.py"])
def test_own_code_is_not_taken_for_a_library(path):
    text = HEADER + own("first", path=path) + LIBRARY + "ValueError: x\n"

    assert f"{path}:5 in first" in rerail.minify_traceback(text)
    assert "8 library frames (torch)" in rerail.minify_traceback(text)


def test_native_frames_are_dropped_and_the_numbers_of_a_long_message_stay():
    message = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 is full. " + "More. " * 60
    native = "Exception raised from malloc at /x.cpp:43 (most recent call first):\nframe #0: c10::Error + 0x96 (0x7f)\n"

    short = rerail.minify_traceback(failure(message + "\n" + native + "on cuda:1 as torch.bfloat16"))

    assert "Tried to allocate 2.00 GiB" in short
    assert "frame #0" not in short and "0x96" not in short
    assert "cuda:1" in short and "torch.bfloat16" in short


def test_what_the_dispatcher_adds_to_every_call_is_dropped():
    message = (
        "NotImplementedError: Could not run 'aten::mm' with arguments from the 'Meta' backend. This could be because "
        "the operator doesn't exist for this backend, or was omitted during the build. 'aten::mm' is only available "
        "for these backends: [CPU, CUDA].\n\nCPU: registered at /x/RegisterCPU.cpp:3 [kernel]\n"
    )

    short = rerail.minify_traceback(failure(message))

    assert short.startswith(
        "NotImplementedError: Could not run 'aten::mm' with arguments from the 'Meta' backend.\n  /home/ada/train.py"
    )


def test_a_traceback_that_another_process_sent_is_told_without_its_quotes():
    assert '"""' not in rerail.minify_traceback(corpus()["pool"])


def test_a_notebook_names_an_exception_of_any_name():
    line = f"{'StopTraining':42}{HEADER}"
    code = "".join(f"      {number} x = {number}\n" for number in range(1, 9))
    text = f"{line}Cell In[3], line 9\n{code}----> 9 fit(x)\n\nCell In[2], line 5, in fit(x)\n{code}----> 9 stop()\n\n"

    short = rerail.minify_traceback(text + "StopTraining: at (3, 4)\n")

    assert short == "StopTraining: at (3, 4)\n  Cell In[3]:9: fit(x)\n  Cell In[2]:5 in fit: stop()\n"


def test_shapes_of_lines_that_have_no_place_are_named():
    lines = "\n".join(f"\tsize mismatch for layer {n}: torch.Size([{n}, 7])" for n in range(20))

    short = rerail.minify_traceback(failure("RuntimeError: Error(s) in loading state_dict:\n" + lines))

    assert len(short.splitlines()) < 15
    assert "also named: torch.Size([" in short


def test_a_log_that_powershell_wrote_is_read(tmp_path, capfdbinary):
    (tmp_path / "log").write_bytes(failure("ValueError: x (2, 3)").encode("utf-16"))
    (tmp_path / "quiet").write_bytes("loss 0.3\n".encode("utf-16"))

    assert execute(["minify", str(tmp_path / "log")], Settings()) == 0
    assert capfdbinary.readouterr().out.startswith(b"ValueError: x (2, 3)")
    assert execute(["minify", str(tmp_path / "quiet")], Settings()) == 0
    assert capfdbinary.readouterr().out == (tmp_path / "quiet").read_bytes()


def test_of_a_chain_both_ends_are_named():
    try:
        try:
            raise RuntimeError("size mismatch")
        except RuntimeError:
            raise TypeError("in the words of the report")  # noqa: B904
    except TypeError as error:
        says = rerail.classify_failure(error).findings[0].says

    assert "RuntimeError: size mismatch" in says
    assert says.endswith("and last TypeError: in the words of the report")
