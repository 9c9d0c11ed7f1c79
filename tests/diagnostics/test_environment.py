"""The environment: a record that changes nothing, a diff that finds everything, failures sorted by whose they are."""

import json
import subprocess
import sys
import textwrap

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
    [(KeyboardInterrupt(), "not_applicable"), ("", "unknown"), ("step 3 loss 0.5", "unknown"), ("  \n", "unknown")],
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
