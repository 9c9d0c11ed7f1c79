"""What becomes of right, wrong and hostile submissions."""

from __future__ import annotations

import os
import time

import pytest
from conftest import SHIPPED

from rerail.checks import edited
from rerail.course import Exercise
from rerail.engine import LEVELS, Engine, EngineError, open_engine
from rerail.evidence import Evidence, record
from rerail.grading import Grader, Submission
from rerail.judging import mismatch, read_answer

RIGHT = SHIPPED.replace("(len(values) - 1)", "len(values)")


def with_line(line: str) -> str:
    """Return the right script with one more line before its first import."""
    return RIGHT.replace("import torch\n", f"{line}\nimport torch\n", 1)


def test_shipped_fails_with_the_numbers(verdict) -> None:
    report = verdict(SHIPPED)

    assert (report.outcome, report.reason, report.points, report.exit_code) == ("not yet", "check_mean", 0, 1)
    assert set(report.show) == {"this code", "exact"}
    assert "the grader's fixed batch: values 5" in report.message


def test_right_passes_with_its_points(verdict) -> None:
    report = verdict(RIGHT)

    assert (report.outcome, report.first, report.points, report.exit_code) == ("pass", "", 2, 0)
    assert [finding.status for finding in report.findings] == ["pass"]


HOSTILE = [
    pytest.param("", "contract", id="empty"),
    pytest.param("def mean(:", "crash: SyntaxError", id="syntax error"),
    pytest.param(b"\xff\xfe\x00mean", "crash: SyntaxError", id="no text"),
    pytest.param("raise KeyError('no')", "crash: KeyError", id="raises on import"),
    pytest.param("import time\ntime.sleep(60)", "timeout", id="sleeps"),
    pytest.param("while True: pass", "timeout", id="loops"),
    pytest.param("while True:\n    try: pass\n    except BaseException: pass", "timeout", id="swallows everything"),
    pytest.param("import sys\nsys.exit(0)", "crash: SystemExit", id="sys.exit"),
    pytest.param("import os\nos._exit(0)", "crash", id="os._exit"),
    pytest.param("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)", "crash", id="segmentation fault"),
    pytest.param("import ctypes\nctypes.string_at(0)", "crash", id="reads address 0"),
    pytest.param("x = bytearray(20 << 30)\ndef mean(values): return 0", "memory", id="20 GB"),
    pytest.param("import torch\ntorch.zeros(20 << 28)\ndef mean(values): return 0", "memory", id="20 GB tensor"),
    pytest.param("def mean(values): return values.new_full((), float('nan'))", "check_mean", id="nan"),
    pytest.param("def mean(values): return values", "unusable", id="wrong shape"),
    pytest.param("def mean(values): return '0.5 apples'", "unusable", id="a text"),
    pytest.param("def mean(values): pass", "unusable", id="nothing"),
    pytest.param("def mean(values): return mean(values)", "crash: RecursionError", id="recursion"),
    pytest.param("mean = 3", "contract", id="no function"),
    pytest.param("import os\nos.chdir('/')\nopen('f' * 300, 'w')", "crash: OSError", id="odd file"),
    pytest.param("f = open('big', 'wb')\nfor _ in range(99): f.write(bytes(1 << 20)); f.flush()", "blocked action",
                 id="fills the disk"),
    pytest.param("import os\nfor fd in range(3, 200):\n    try: os.write(fd, b'E' + bytes(99))\n    except OSError: pass\n"
                 "os._exit(0)", "unusable", id="forged evidence"),
    pytest.param("import os, struct\nfor fd in range(3, 200):\n    try: os.write(fd, struct.pack('<Q', 1 << 60))\n"
                 "    except OSError: pass\nos._exit(0)", "unusable", id="an endless message"),
    pytest.param("import os, struct, json\nc = b'C' + json.dumps({'kind': 'crash', 'frames': 3}).encode()\n"
                 "for fd in range(3, 200):\n    try: os.write(fd, struct.pack('<Q', len(c)) + c)\n"
                 "    except OSError: pass\nos._exit(0)", "unusable", id="a forged crash"),
]  # fmt: skip


@pytest.mark.parametrize(("source", "first"), HOSTILE)
def test_hostile_or_broken_is_not_yet(verdict, source: str | bytes, first: str) -> None:
    report = verdict(source)

    assert report.first.rstrip(": ") == first, report.text()
    assert (report.outcome, report.points) == ("not yet", 0)
    assert report.message


HARMLESS = [
    pytest.param("print('PASS 2 of 2 points')", id="a fake verdict on stdout"),
    pytest.param("import warnings\nwarnings.warn('careful')", id="warns"),
    pytest.param("print('x' * 10_000_000)", id="prints 10 MB"),
    pytest.param("import sys\nsys.stdout.close()", id="closes stdout"),
    pytest.param("import torch\ntorch.manual_seed(7)\ntorch.set_default_dtype(torch.float64)", id="another dtype"),
    pytest.param("import torch\ntorch.set_grad_enabled(False)", id="recording off"),
    pytest.param("import subprocess\nsubprocess.Popen(['sleep', '60'])", id="leaves a process"),
    pytest.param("import os\nos.fork() or __import__('time').sleep(60)", id="leaves a fork"),
    pytest.param("import threading, time\nthreading.Thread(target=time.sleep, args=(60,)).start()", id="leaves a thread"),
    pytest.param("import signal\n[signal.signal(s, signal.SIG_IGN) for s in (2, 15)]", id="ignores signals"),
    pytest.param("import sys\nsys.path.insert(0, '.')\nopen('numpy.py', 'w').write('raise ValueError')", id="shadows numpy"),
]  # fmt: skip


@pytest.mark.parametrize("line", HARMLESS)
def test_odd_but_right_passes(verdict, line: str) -> None:
    begin = time.monotonic()
    report = verdict(with_line(line))

    assert report.outcome == "pass", report.text()
    assert time.monotonic() - begin < 10, "what a script leaves behind must not be waited for"


def test_byte_order_mark_is_no_syntax_error(verdict) -> None:
    assert verdict(b"\xef\xbb\xbf" + RIGHT.encode()).outcome == "pass"


def test_timeout_names_the_line(verdict) -> None:
    report = verdict(RIGHT.replace("    return", "    while True: values = values + 1\n    return"))

    assert report.reason == "timeout"
    assert [frame.code.strip() for frame in report.frames] == ["while True: values = values + 1"]


def test_crash_shows_the_learners_line_and_shapes(verdict) -> None:
    report = verdict(RIGHT.replace("values.sum()", "(values @ torch.ones(3, 2)).sum()"))

    assert report.first == "crash: RuntimeError"
    assert report.frames[-1].line == 10
    assert report.names["values"] == "Tensor (5,)"


def test_trap_is_recognised_by_what_it_writes(verdict, too_large: Exercise) -> None:
    report = verdict(edited(SHIPPED, [("values.sum() / (len(values) - 1)", "0.0")]))

    assert report.says == "zero is the mean of no batch here"
    assert verdict(SHIPPED.replace("- 1", "- 2")).says == ""


def test_a_child_that_kills_the_server_hurts_nobody_else(too_large: Exercise) -> None:
    own = open_engine()
    try:
        grader = Grader(own, floor_seconds=2.0)
        killed = grader.grade(too_large, Submission(b"import os\nos.kill(os.getppid(), 9)\nos._exit(0)", "it.py"))
        after = grader.grade(too_large, Submission(RIGHT.encode(), "it.py"))
    finally:
        own.close()

    assert killed.outcome in ("not yet", "blocked")
    assert after.outcome == "pass"


def test_process_in_a_session_of_its_own_is_ended_too(verdict, tmp_path) -> None:
    note = tmp_path / "alive"
    program = f"import time; time.sleep(1); open({str(note)!r}, 'w')"
    line = f"import subprocess, sys\nsubprocess.Popen([sys.executable, '-c', {program!r}], start_new_session=True)"

    assert verdict(with_line(line)).outcome == "pass"
    deadline = time.monotonic() + 2
    while time.monotonic() < deadline:
        assert not note.exists()
        time.sleep(0.1)


def test_the_child_holds_neither_checks_nor_seeds(verdict) -> None:
    source = RIGHT.replace("    return", "    import sys\n    print(sorted(vars(sys.modules['grader'])))\n    return")
    output = verdict(source).output

    assert "'probe'" in output
    for secret in ("check_mean", "cases", "SECRET", "ACCEPTED", "TRAPS", "BASELINE"):
        assert f"'{secret}'" not in output


def test_a_batch_comes_after_the_code_was_loaded(verdict) -> None:
    peek = "import os, select\nprint('early' if select.select([100], [], [], 0.3)[0] else 'nothing yet')"

    assert "early" not in verdict(with_line(peek)).output


@pytest.mark.parametrize("level", sorted(LEVELS))
@pytest.mark.parametrize("threads", [1, 4])
def test_verdicts_do_not_depend_on_level_or_threads(
    too_large: Exercise, grader: Grader, level: str, threads: int
) -> None:
    own = open_engine(level)
    try:
        other = Grader(own, threads=threads, floor_seconds=5.0)
        for source in (SHIPPED, RIGHT, "def mean(values): return 0", "import os\nos._exit(0)"):
            submission = Submission(source.encode(), "it.py")
            assert other.grade(too_large, submission).key() == grader.grade(too_large, submission).key()
    finally:
        own.close()


def test_standby_stops_a_run_at_its_limit(too_large: Exercise) -> None:
    own = open_engine("L0")
    try:
        report = Grader(own, floor_seconds=1.0).grade(too_large, Submission(b"while True: pass", "it.py"))
    finally:
        own.close()

    assert report.reason == "timeout"


def test_output_is_kept_and_cut(verdict) -> None:
    report = verdict(with_line("print('first'); print('x' * 10_000_000); print('last')"))

    assert report.output.startswith("first")
    assert report.output.rstrip().endswith("last")
    assert report.cut_bytes > 9_000_000


def test_references_are_kept_in_memory(engine: Engine, too_large: Exercise) -> None:
    grader = Grader(engine)
    grader.grade(too_large, Submission(RIGHT.encode(), "it.py"))
    asked: list[bytes] = []

    class Counting:
        level = engine.level

        def run(self, job, limit=lambda: 20.0):
            asked.append(job.source)
            return engine.run(job, limit)

        def close(self) -> None: ...

    grader.engine = Counting()
    grader.grade(too_large, Submission(SHIPPED.encode(), "it.py"))

    assert asked == [SHIPPED.encode()] * 1


def test_no_engine_is_blocked_with_a_reason(too_large: Exercise) -> None:
    report = Grader(None).grade(too_large, Submission(RIGHT.encode(), "it.py"))

    assert (report.outcome, report.exit_code) == ("blocked", 3)
    assert "doctor" in report.message


def test_server_that_cannot_import_torch_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path, too_large: Exercise
) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('libgomp.so.1: cannot open shared object file')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    for level in LEVELS:
        own = open_engine(level)
        report = Grader(own).grade(too_large, Submission(RIGHT.encode(), "it.py"))
        own.close()

        assert report.outcome == "blocked"
        assert "libgomp.so.1" in report.message


def test_unknown_level_is_refused() -> None:
    with pytest.raises(EngineError, match="isolation is one of L1, L0, got 'L9'"):
        open_engine("L9")


def test_no_room_on_the_disk_is_blocked(monkeypatch: pytest.MonkeyPatch, grader: Grader, too_large: Exercise) -> None:
    def full(*args: object, **kwargs: object) -> str:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr("rerail.talk.tempfile.mkdtemp", full)
    report = Grader(grader.engine).grade(too_large, Submission(RIGHT.encode(), "it.py"))

    assert report.outcome == "blocked"
    assert "No space left on device" in report.message


def test_a_huge_file_is_refused(verdict) -> None:
    assert "a submission may have" in verdict(b"#" * (2 << 20)).message


def test_sheet_is_read_never_executed(grader: Grader, which_one: Exercise, tmp_path) -> None:
    note = tmp_path / "ran"
    source = f"open({str(note)!r}, 'w')\nANSWER = {{'cause': 'scale'}}\n"

    assert Grader(None).grade(which_one, Submission(source.encode(), "it.py")).outcome == "pass"
    assert not note.exists()


@pytest.mark.parametrize(
    ("source", "says"),
    [
        pytest.param("ANSWER = {", "cannot be read in line 1", id="syntax"),
        pytest.param("OTHER = {}", "got 0 assignments", id="none"),
        pytest.param("ANSWER = 1\nANSWER = 2", "got 2 assignments", id="two"),
        pytest.param("ANSWER = open('x')", "must be written out", id="computed"),
        pytest.param("\0", "cannot be read", id="null byte"),
    ],
)
def test_sheet_that_cannot_be_read(source: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        read_answer(source.encode())


@pytest.mark.parametrize(
    ("source", "says"),
    [
        pytest.param("ANSWER = 3", "must be a dict, got int 3", id="another type"),
        pytest.param("ANSWER = {'cause': ['scale']}", "is not it", id="a check that can take it decides"),
    ],
)
def test_sheet_that_is_built_otherwise(which_one: Exercise, source: str, says: str) -> None:
    report = Grader(None).grade(which_one, Submission(source.encode(), "it.py"))

    assert report.outcome == "not yet"
    assert says in report.message


@pytest.mark.parametrize(
    ("run", "reference", "says"),
    [
        pytest.param({"a": 1.0}, {"a": 2}, "", id="int for float"),
        pytest.param({"a": None}, {"a": [1.0]}, "must have shape (1,), got nothing", id="absent"),
        pytest.param({"a": [1.0, 2.0]}, {"a": [1.0]}, "must have shape (1,), got (2,)", id="shape"),
        pytest.param({"_a": [1.0, 2.0]}, {"_a": [1.0]}, "", id="free shape"),
        pytest.param({"a": True}, {"a": 1.0}, "must hold float64, got bool", id="kind"),
        pytest.param({"a": "x"}, {"a": 1.0}, "must be numbers, got a text", id="text"),
        pytest.param({"b": 1.0}, {"a": 1.0}, "in a, b", id="names"),
    ],
)
def test_mismatch(run: dict, reference: dict, says: str) -> None:
    found = mismatch(record(run), record(reference))

    assert says in found
    assert bool(found) == bool(says)


def test_empty_evidence_matches_itself() -> None:
    assert mismatch(Evidence(), Evidence()) == ""
