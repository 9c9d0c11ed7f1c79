"""The environment: a record that changes nothing, a diff that finds everything, failures sorted by whose they are."""

import copy
import json
import pickle
import random
import subprocess
import sys
import textwrap
import time
import warnings

import numpy
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import rerail


def run_of(momentum: float = 0.0):
    torch.manual_seed(0)
    model = nn.Linear(50, 50)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for parameter in model.parameters():
        optimizer.state[parameter]["momentum_buffer"] = torch.full_like(parameter, momentum)
    generator = torch.Generator().manual_seed(1)
    loader = DataLoader(TensorDataset(torch.arange(10)), shuffle=True, generator=generator)
    return {"model": model, "optimizer": optimizer, "loader": loader}


def test_a_record_changes_nothing_and_two_of_one_state_are_equal():
    run = run_of()
    before = rerail.digest(run["model"], run["optimizer"])

    one, two = rerail.env_record(**run), rerail.env_record(**run)

    assert rerail.digest(run["model"], run["optimizer"]) == before
    assert one.digest == two.digest
    assert rerail.env_diff(one, two).status == "ok"
    assert len(str(one).splitlines()) <= 15


def test_a_record_names_what_a_run_depends_on():
    held = rerail.env_record(extra={"precision": "bf16"}).to_dict()

    assert held["packages"]["torch"] == torch.__version__
    assert held["paths"]["torch"].endswith("torch")
    assert held["device"]["default_dtype"] == "float32"
    assert held["device"]["threads"] == 1
    assert held["determinism"]["deterministic_algorithms"] is False
    assert held["extra"] == {"precision": "bf16"}
    assert rerail.EnvRecord.from_dict(json.loads(json.dumps(held))).digest


def test_one_element_of_a_large_state_makes_a_difference():
    one = rerail.env_record(**run_of())
    changed = run_of()
    changed["optimizer"].state[changed["model"].weight]["momentum_buffer"][25, 25] = 1e-9

    report = rerail.env_diff(one, rerail.env_record(**changed))

    assert report.causes == ("process.state_differs",)
    assert report.findings[0].where == ("states.optimizer",)


def test_another_data_order_another_dtype_and_other_threads_are_named():
    run = run_of()
    one = rerail.env_record(**run)
    next(iter(run["loader"]))
    torch.set_default_dtype(torch.float64)
    try:
        two = rerail.env_record(**run)
    finally:
        torch.set_default_dtype(torch.float32)

    report = rerail.env_diff(one, two)

    assert set(report.causes) == {"process.environment_differs", "process.state_differs"}
    assert {place for finding in report.findings for place in finding.where} >= {
        "device.default_dtype",
        "states.data_order",
    }


def test_secrets_of_a_command_line_are_masked(monkeypatch):
    monkeypatch.setattr(
        sys, "argv", ["train.py", "--api-key=abc123", "--hub_token", "xyz789", "https://me:pass@host/x"]
    )

    text = rerail.env_record().to_json()

    assert not any(secret in text for secret in ("abc123", "xyz789", "pass@"))
    assert "--api-key=***" in text


@pytest.mark.parametrize(
    ("words", "secret"),
    [
        (["--password", "swordfish words"], "swordfish"),
        (["wandb.api_key=swordfish"], "swordfish"),
        (["HF_TOKEN=swordfish"], "swordfish"),
        (["redis://:swordfish@host"], "swordfish"),
        (["https://swordfish@github.com/x"], "swordfish"),
        (["https://host/x?token=swordfish&page=2"], "swordfish"),
        (["--config", '{"api_key": "swordfish", "lr": 1}'], "swordfish"),
        (["name=foo token=swordfish"], "swordfish"),
        (["hf_swordfishswordfish"], "swordfish"),
        (["--header", "Authorization: Bearer swordfish"], "swordfish"),
    ],
    ids=str,
)
def test_a_secret_in_any_form_is_masked(monkeypatch, words, secret):
    monkeypatch.setattr(sys, "argv", ["train.py", *words])

    told = {"api_key": "swordfish"} if words[0] == "--password" else {"note": words[-1]}  # bare, no form gives it away
    record = rerail.env_record(extra=told)

    assert secret not in record.to_json() + str(record)


@pytest.mark.parametrize(
    "words", [["--tokenizer", "gpt2"], ["--max-tokens=512"], ["--key-dim", "64"], ["data/tokens.bin"]]
)
def test_what_only_sounds_like_a_secret_stays(monkeypatch, words):
    monkeypatch.setattr(sys, "argv", ["train.py", *words])

    assert rerail.env_record().to_dict()["command"] == " ".join(["train.py", *words])


@pytest.mark.parametrize("part", ["x", "key-", "a://", "?a-"])
def test_a_long_argument_is_masked_in_no_time(monkeypatch, part):
    monkeypatch.setattr(sys, "argv", ["train.py", part * 50_000])
    began = time.process_time()

    rerail.env_record(extra={"note": part * 10_000})

    assert time.process_time() - began < 3


def test_a_record_survives_json_copies_and_pickles():
    record = rerail.env_record(**run_of(), extra={"note": "two\nlines"})

    for other in (
        rerail.EnvRecord.from_dict(json.loads(record.to_json())), copy.deepcopy(record), pickle.loads(pickle.dumps(record)),
    ):  # fmt: skip
        assert other.digest == record.digest
        assert rerail.env_diff(record, other).status == "ok"
    assert len(str(record).splitlines()) <= 15


def test_a_record_draws_from_no_generator_and_reads_no_batch():
    run = run_of()
    run["scheduler"] = torch.optim.lr_scheduler.StepLR(run["optimizer"], 1)
    run["scaler"] = torch.amp.GradScaler("cpu")
    generators = (torch.get_rng_state, numpy.random.get_state, random.getstate, run["loader"].generator.get_state)
    before = [repr(read()) for read in generators]

    held = rerail.env_record(**run).to_dict()["states"]

    assert [repr(read()) for read in generators] == before
    assert {
        "python_random",
        "numpy_random",
        "torch_random",
        "model",
        "optimizer",
        "scheduler",
        "scaler",
        "data_order",
    } == set(held)


def state(value):
    class Holder:
        def state_dict(self):
            return value

    return rerail.env_record(model=Holder()).to_dict()["states"]["model"]


def sparse(index):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.sparse_coo_tensor([[index]], [1.0], (3,))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        pytest.param(sparse(0), sparse(2), id="place in a sparse tensor"),
        pytest.param(b"1", b"2", id="bytes"),
        pytest.param(torch.float32, torch.float64, id="dtypes"),
        pytest.param(torch.zeros(2, 3), torch.zeros(3, 2), id="shapes"),
        pytest.param(torch.tensor([1 + 1j]).conj(), torch.tensor([1 + 1j]), id="conjugates"),
        pytest.param(numpy.array(["a", None]), numpy.array(["b", None]), id="arrays of objects"),
        pytest.param(["a", "bc"], ["ab", "c"], id="texts that join to the same"),
        pytest.param([b"a", b"bc"], [b"ab", b"c"], id="bytes that join to the same"),
        pytest.param({"a": [1, torch.ones(1)]}, {"a": [1, torch.zeros(1)]}, id="nested"),
    ],
)
def test_states_that_differ_have_other_digests(one, other):
    assert state(one) == state(copy.deepcopy(one))
    assert state(one) != state(other)


class Broken:
    def state_dict(self):
        raise OSError("gone")


@pytest.mark.parametrize(
    "model",
    [nn.LazyLinear(2), nn.Linear(2, 2, device="meta"), Broken(), object()],
    ids=lambda each: type(each).__name__,
)
def test_what_has_no_state_to_read_is_recorded_and_breaks_nothing(model):
    assert rerail.env_record(model=model).to_dict()["states"]["model"]


def test_a_precision_set_by_its_new_name_is_recorded():
    before = torch.backends.cuda.matmul.fp32_precision
    one = rerail.env_record()
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    try:
        two = rerail.env_record()
    finally:
        torch.backends.cuda.matmul.fp32_precision = before

    assert "device.fp32_precision" in rerail.env_diff(one, two).findings[0].where


def test_the_first_optimizer_of_a_process_is_no_difference(tmp_path):
    code = """
        import torch, rerail
        one = rerail.env_record()
        torch.optim.SGD([torch.zeros(1)], lr=0.1)
        print(rerail.env_diff(one, rerail.env_record()).status)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], cwd=tmp_path, capture_output=True, text=True, check=True
    )

    assert done.stdout.strip() == "ok"


def test_command_and_revision_are_facts_and_no_finding():
    held = rerail.env_record().to_dict()
    other = {**held, "process": {**held["process"], "revision": "another", "command": "another.py"}}

    report = rerail.env_diff(held, other)

    assert report.status == "ok"
    assert report.facts["process.revision"].endswith("| another")


@pytest.mark.parametrize("pair", [(None, 3), ({}, {}), ({"a": 1}, {}), ("text", [])], ids=str)
def test_what_is_no_record_is_unknown_in_one_sentence(pair):
    report = rerail.env_diff(*pair)

    assert report.status == "unknown"
    assert "a record must be" in report.findings[0].says


def test_a_repository_is_read_and_not_written(tmp_path, monkeypatch):
    def git(*words):
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b.c", *words], cwd=tmp_path, check=True)

    (tmp_path / "train.py").write_text("1")
    git("init", "-q")
    git("add", ".")
    git("commit", "-qm", "first")
    (tmp_path / "train.py").touch()  # the index is stale: a plain `git status` would write it anew
    monkeypatch.chdir(tmp_path)
    index = (tmp_path / ".git" / "index").read_bytes()

    clean = rerail.env_record().to_dict()["process"]["revision"]
    (tmp_path / "train.py").write_text("2")
    changed = rerail.env_record().to_dict()["process"]["revision"]

    assert len(clean) == 12
    assert changed == f"{clean}+changes"
    assert (tmp_path / ".git" / "index").read_bytes() == index


def test_a_file_beside_the_script_that_shadows_a_library_is_named(tmp_path):
    for name in ("colorsys", "safetensors", "my_model", "tests"):  # of the library, of a package, of nobody, of many
        (tmp_path / f"{name}.py").write_text("")
    (tmp_path / "train.py").write_text("from rerail.diagnostics.machine import shadowing\nprint(sorted(shadowing()))")
    done = subprocess.run([sys.executable, tmp_path / "train.py"], cwd="/", capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[('colorsys', './colorsys.py'), ('safetensors', './safetensors.py')]"


def test_a_record_needs_no_torch_and_no_repository(tmp_path):
    code = """
        import sys
        from rerail.diagnostics.environment import env_record
        record = env_record()
        assert "torch" not in sys.modules
        print(record.to_dict()["process"]["revision"])
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], cwd=tmp_path, capture_output=True, text=True, check=True
    )

    assert done.stdout.strip() == "None"


def test_a_file_that_shadows_a_library_is_named(tmp_path, monkeypatch):
    (tmp_path / "keras.py").write_text("")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    record = rerail.env_record()

    assert record.to_dict()["paths"]["keras"] == "./keras.py"
    assert "process.library_shadowed" in rerail.env_diff(record, record).causes


def error_of(code: str) -> BaseException:
    try:
        exec(compile(code, "/home/ada/train.py", "exec"), {})
    except BaseException as error:
        return error
    raise AssertionError("nothing was raised")


@pytest.mark.parametrize(
    ("failure", "cause"),
    [
        (error_of("import a_package_that_is_not_there"), "process.dependency_failure"),
        (error_of("from torch import a_name_that_is_not_there"), "process.dependency_failure"),
        (error_of("import torch\ntorch.a_function_of_another_version"), "process.dependency_failure"),
        (error_of("import torch\ntorch.zeros(4, 3) @ torch.zeros(5, 2)"), "process.training_failure"),
        (error_of("{}['label']"), "process.training_failure"),
        (error_of("raise MemoryError"), "process.resource_failure"),
        ("RuntimeError: CUDA out of memory. Tried to allocate 2 GiB", "process.resource_failure"),
        ("ImportError: libcudnn.so.9: cannot open shared object file: No such file", "process.dependency_failure"),
        ("A module that was compiled using NumPy 1.x cannot be run in NumPy 2", "process.dependency_failure"),
        ("OSError: [Errno 28] No space left on device", "process.resource_failure"),
        (
            "torch._inductor.exc.InductorError: InvalidCxxCompiler: No working C++ compiler",
            "process.dependency_failure",
        ),
    ],
    ids=str,
)
def test_a_failure_is_told_by_whose_it_is(failure, cause):
    assert rerail.classify_failure(failure).causes == (cause,), rerail.classify_failure(failure)


def trace(source, error):
    return (
        f'Traceback (most recent call last):\n  File "/home/ada/train.py", line 3, in <module>\n    {source}\n{error}\n'
    )


CIRCLE = "(most likely due to a circular import)"


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        pytest.param("UserWarning: No module named 'apex'\n" + trace("f(x)", "ValueError: shape"), "training", id="warned before"),
        pytest.param(trace("import apex", "ModuleNotFoundError: No module named 'apex'") + "slower without\n" + trace("f(x)", "ValueError: shape"), "training", id="caught and logged before"),
        pytest.param(trace("import flash", "ModuleNotFoundError: No module named 'flash'") + "\nDuring handling of the above exception, another exception occurred:\n\n" + trace("g()", "RuntimeError: install it"), "dependency", id="told in other words"),
        pytest.param("CUDA out of memory, retrying\n" + trace("f(x)", "ValueError: shape"), "training", id="recovered before"),
        pytest.param(trace("retry(MemoryError)", "ValueError: shape"), "training", id="an error named in the source"),
        pytest.param(trace("except KeyboardInterrupt: f()", "ValueError: shape"), "training", id="an interrupt in the source"),
        pytest.param(trace("x.cuda()", "RuntimeError: CUDA error: device-side assert triggered"), "training", id="assert on the device"),
        pytest.param(trace("next(it)", "StopIteration"), "training", id="an error without a message"),
        pytest.param(trace("from . import a", "ImportError: attempted relative import with no known parent package"), "own_import", id="relative"),
        pytest.param(trace("from net import A", "ImportError: cannot import name 'A' from 'net' (/home/ada/net.py)"), "own_import", id="own name"),
        pytest.param(trace("import net", f"ImportError: cannot import name 'A' from partially initialized module 'net' {CIRCLE} (/home/ada/net.py)"), "own_import", id="own circle"),
        pytest.param(trace("import random", f"ImportError: cannot import name 'x' from partially initialized module 'random' {CIRCLE} (/home/ada/random.py)"), "shadowed", id="random.py"),
        pytest.param(trace("torch.nn", f"AttributeError: partially initialized module 'torch' has no attribute 'nn' {CIRCLE}"), "shadowed", id="torch.py"),
        pytest.param(trace("from x import y", "ImportError: cannot import name 'y' from 'x' (/v/lib/python3.11/site-packages/x/__init__.py)"), "dependency", id="name of a library"),
        pytest.param(trace("np.bool", "AttributeError: module 'numpy' has no attribute 'bool'."), "dependency", id="removed name"),
        pytest.param(trace("tf.Session", "AttributeError: module 'tensorflow' has no attribute 'Session'"), "dependency", id="library of another machine"),
        pytest.param(trace("x.numpy()", "RuntimeError: Numpy is not available"), "dependency", id="numpy"),
        pytest.param(trace("x.cuda()", "RuntimeError: Found no NVIDIA driver on your system."), "dependency", id="driver"),
        pytest.param(trace("import x", "ImportError: version `GLIBCXX_3.4.29' not found"), "dependency", id="glibcxx"),
        pytest.param(trace("fit()", "tensorflow.errors_impl.ResourceExhaustedError: OOM when allocating"), "resource", id="tensorflow"),
        pytest.param(trace("for b in l:", "RuntimeError: DataLoader worker (pid 3) is killed by signal: Killed. "), "resource", id="worker"),
        pytest.param("epoch 3\n/bin/sh: line 1: 77 Killed", "resource", id="killed"),
        pytest.param("*** JOB 3 CANCELLED AT 2024 DUE TO TIME LIMIT ***", "resource", id="time"),
        pytest.param(ExceptionGroup("g", [ImportError("x.so: undefined symbol: y")]), "dependency", id="in a group"),
        pytest.param(trace("f()", "KeyError: 'a'") + "\nDuring handling of the above exception, another exception occurred:\n\n"
                     + trace("g()", "RuntimeError: CUDA out of memory."), "resource", id="while another was handled"),
    ],
)  # fmt: skip
def test_a_failure_is_told_by_its_last_error_alone(text, cause):
    report = rerail.classify_failure(text)

    names = {"shadowed": "process.library_shadowed", "own_import": "process.own_import_failure"}
    assert report.causes == (names.get(cause, f"process.{cause}_failure"),), report


@pytest.mark.parametrize("failure", [None, 3, b"text", [], object()], ids=lambda each: type(each).__name__)
def test_what_is_no_failure_is_told_in_one_sentence(failure):
    assert "a failure is an exception or the text of a log" in rerail.classify_failure(failure).findings[0].says


@pytest.mark.parametrize(
    "line",
    [
        "module 'a' requires b ",
        "partially initialized module 'a' ",
        "a" * 40,
        "cannot import name 'a' from 'b' ",
        "[0]: ",
    ],
)
@pytest.mark.parametrize("end", ["\n", ""], ids=["lines", "one line"])
def test_a_long_log_is_read_in_no_time(line, end):
    began = time.process_time()

    rerail.classify_failure((line + end) * 20_000)

    assert time.process_time() - began < 3  # 0.1 s; a pattern that looks back from each line takes minutes


def test_a_module_beside_the_failing_file_is_ones_own(tmp_path):
    (tmp_path / "utils.py").write_text("")
    text = trace("import utils", "ModuleNotFoundError: No module named 'utils'").replace(
        "/home/ada", str(tmp_path / "scripts")
    )

    assert rerail.classify_failure(text).causes == ("process.own_import_failure",)
    (tmp_path / "utils.py").unlink()
    assert rerail.classify_failure(text).causes == ("process.dependency_failure",)


def test_an_import_of_ones_own_is_no_dependency(tmp_path, monkeypatch):
    (tmp_path / "mymodels").mkdir()
    monkeypatch.chdir(tmp_path)

    assert rerail.classify_failure("ModuleNotFoundError: No module named 'mymodels.net'").causes == (
        "process.own_import_failure",
    )


def test_the_line_of_ones_own_code_is_named():
    assert rerail.classify_failure(error_of("x = 1\n{}['label']")).findings[0].where == ("/home/ada/train.py:2",)


@pytest.mark.parametrize(
    ("failure", "status"),
    [
        (KeyboardInterrupt(), "not_applicable"),
        ("", "unknown"),
        ("step 3 loss 0.5", "unknown"),
        ("  \n", "unknown"),
        ("epoch 3: Killed monsters 5, reward 3", "unknown"),
        (trace("f()", "KeyboardInterrupt"), "not_applicable"),
        (SystemExit(0), "not_applicable"),
    ],
)
def test_what_is_no_failure_is_no_fault(failure, status):
    assert rerail.classify_failure(failure).status == status


def test_a_report_to_paste_holds_what_a_reader_needs():
    def side(scale):
        def make():
            model = nn.Linear(2, 1)
            return rerail.Setup(model, None, lambda: model(torch.ones(1, 2)).sum() * scale)

        return make

    comparison = rerail.compare_steps(
        side(torch.inf), side(1.0), symptom=lambda trial: abs(trial.losses[0]) > 1e9, repeats=2
    )

    text = rerail.run_report(comparison, command="python train.py --tiny")

    for part in (
        "python train.py --tiny",
        "torch",
        "Baseline: finished, loss",
        "2 of 2 run(s)",
        "0 of 2 run(s)",
        "Not exercised",
    ):
        assert part in text, text
