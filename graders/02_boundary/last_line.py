"""Four nights have failed, and the last line of each log says next to nothing."""

from __future__ import annotations

import json
import re
from typing import Any

from rerail.checks import Edit, Failed, Trap

LAYER, MINUTES, ORDER, POINTS = "process", 15, 3, 1
GRADED = ()
BASELINE = "check_the_failure_is_told_from_its_reports"
HINTS = (
    "observe: mark in each log the lines that begin at the left margin: there the exceptions stand, and the sentences"
    " that link them: `grep -nE '^[A-Za-z_.]+Error|above exception|Traceback' FILE`",
    "locate: 'direct cause of' and 'During handling of' point upwards: what stands above was first. 'Original Traceback'"
    " points downwards. Inside one traceback, go from its last line upwards to the first frame in /home/ada/scans",
    "explain: a compiler, a worker and an `except` each put frames and exceptions of their own around a failure. Whose"
    " package raised it says nothing about whose fault it is: ask what the message complains about",
    "shape of the fix: Monday's own frame stands behind 'from user code', Wednesday's in the worker; of Thursday's two"
    " exceptions the second comes from the words of the report. One message complains about no line and no tensor",
)

# The message of each failure in small letters, and what tells it in an answer that says more.
MESSAGE = {
    "monday": "a and b must have same reduction dim, but got [32, 196] x [256, 64].",
    "tuesday": "invalidcxxcompiler: no working c++ compiler found in torch._inductor.config.cpp.cxx: (none, 'g++')",
    "wednesday": "shape '[3, 16, 16]' is invalid for input of size 256",
    "thursday": "error(s) in loading state_dict for sequential: size mismatch for 2.weight: copying a param "
    "with shape torch.size([10, 64]) from checkpoint, the shape in current model is torch.size([12, 64]). size mismatch "
    "for 2.bias: copying a param with shape torch.size([10]) from checkpoint, the shape in current model is "
    "torch.size([12]).",
}
ROOT = {
    "monday": ("same reduction dim", "got [32, 196] x [256, 64]"),
    "tuesday": ("working c++ compiler", "invalidcxxcompiler"),
    "wednesday": ("invalid for input of size", "shape '[3, 16, 16]' is invalid"),
    "thursday": ("size mismatch", "in loading state_dict", "copying a param with shape"),
}
SHORTEST = 11  # letters of a message: no other exception of the four logs holds so long a part of it
SIZE_TOLD = {"wednesday": (r"of size (\d+)", "256"), "thursday": (r"(\d+)\.(?:weight|bias)", "2")}
# What tells the other exceptions of the four logs, and where they come from.
REPORTS = {
    "could not be finished": "it was raised on purpose, from another one",
    "trainingfailed": "it was raised on purpose, from another one",
    "caught runtimeerror in dataloader worker": "it passes on what was caught in a worker",
    "keyerror": "the code expects it there and goes on: see what it does in the next traceback",
    "can only concatenate": "it came about while another failure was being reported",
    "posixpath": "it came about while another failure was being reported",
}
LINE = {"monday": ("model.py", 23), "tuesday": None, "wednesday": ("data.py", 24), "thursday": ("checkpoint.py", 10)}
OWN = {
    "monday": {"train.py", "trainer.py", "model.py"},
    "tuesday": {"train.py", "trainer.py", "model.py"},
    "wednesday": {"train.py", "data.py"},
    "thursday": {"train.py", "checkpoint.py", "model.py"},
}
# The numbers that a pair must hold: one of these sets; and all numbers that may stand beside them.
SIZES: dict[str, tuple[set[int], ...]] = {
    "monday": ({196, 256},),
    "tuesday": (),
    "wednesday": ({768, 256}, {3, 16, 256}),
    "thursday": ({10, 12},),
}
NUMBERS = {"monday": {32, 196, 256, 64}, "wednesday": {3, 16, 256, 768}, "thursday": {10, 12, 64}}
# of the tensors in each message, and of the weight as it is stored: another shape is none of these
SHAPES: dict[str, set[tuple[int, ...]]] = {
    "monday": {(32, 196), (256, 64), (64, 256)},
    "wednesday": {(3, 16, 16)},
    "thursday": {(10, 64), (12, 64)},
}
KIND = {"monday": "training", "tuesday": "dependency", "wednesday": "training", "thursday": "training"}
NOTHING = re.compile(r"(there (is|are) )?(none|no|nothing|empty|n/?a|-*)( lines?| sizes?| to change)?")
NOTHING_AND_WHY = re.compile(r"(none|nothing|not about|no lines?|no sizes?)\b(?!\s+(and|or)\b)\D*")
SHAPE = re.compile(r"[\[(]\s*\d+(?:\s*[,x×*]\s*\d+)*\s*,?\s*[\])]|\d+(?:\s*[x×]\s*\d+)+")  # [32, 196], (256,), 32x196
ASIDE = re.compile(r"\b\d+\.(weight|bias)\b|\b(dim|dimension|axis|layer)\s*\d+\b")  # numbers that are no sizes
FILE = re.compile(r"[^\s\"'`(]*?([\w.-]+\.py)\b")
AFTER_FILE = re.compile(r"<file>(?:-|[\s:;,\"'`()\[\]@#]*(?:at |in )?(?:line|ln|l)?[.:]?\s*)(\d+)(?!\.?\d)")
AFTER_LINE = re.compile(r"\b(?:line|ln|l)\.?\s*#?(\d+)(?!\.?\d)")
NUMBER = re.compile(r"(?<![\w.-])(\d+)(?!\.?\d)")
LONGEST = 600  # characters: a message with its explanation, far less than a log


def _written(value: Any) -> str:
    """Read a value as text: None and what is empty as nothing, the parts of a list as joined by "and"."""
    if value is None:
        return ""
    return " and ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _text(answer: Any, night: str, field: str) -> str:
    """Read one field as small letters with single spaces."""
    entry = answer.get(night) if isinstance(answer, dict) else None
    if not isinstance(entry, dict):
        raise Failed(
            f"ANSWER has no mapping for {night!r}; only the one assignment to ANSWER is read, and nothing after it",
            hint="reset brings the form back",
        )
    value = _written(entry.get(field))
    if len(value) > LONGEST:
        raise Failed(f"ANSWER[{night!r}][{field!r}] has {len(value)} characters; name one {field}, not the log")
    return " ".join(value.lower().replace("’", "'").split())


def _said(answer: Any, night: str, field: str) -> str:
    """Read one field; what says that there is nothing reads as empty."""
    text = _text(answer, night, field)
    return "" if NOTHING.fullmatch(text.strip(" .()[]")) or NOTHING_AND_WHY.fullmatch(text) else text


def _place(text: str) -> tuple[str, int] | None:
    """Read the file and the line out of "model.py:23", a whole frame of a traceback, or "line 23 of model.py"."""
    if ".py" not in text:
        text = re.sub(r"\b(\w+):(\d+)", r"\1.py:\2", text)
    files = set(FILE.findall(text))
    rest = FILE.sub("<file>", text)
    numbers = {*AFTER_FILE.findall(rest), *AFTER_LINE.findall(rest)} or set(NUMBER.findall(rest)[:1])
    if len(files) != 1 or len(numbers) != 1:
        return None
    number = numbers.pop()
    listed = re.search(rf"\b{number}\s*(?:,|;|/|-|–|&|\bor\b|\band\b|\bto\b)\s*(?:line\s*)?\d", rest)
    return None if listed else (files.pop(), int(number))


def _told(night: str, message: str) -> bool:
    """Tell whether a message is that of a night's failure, or enough of it to find it; its sizes must be its own."""
    part = re.sub(r"^[\w.]*error:", "", message).strip(" .\"'`")
    if len(part) >= SHORTEST and part in MESSAGE[night]:
        return True
    pattern, size = SIZE_TOLD.get(night, ("(?!)", ""))
    shapes = {_numbers(shape) for shape in SHAPE.findall(message)}
    strange = {shape for shape in shapes if len(shape) > 1} - SHAPES.get(night, set())
    return any(key in message for key in ROOT[night]) and not strange and set(re.findall(pattern, message)) <= {size}


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", text)))


def _fit(night: str, said: str) -> bool:
    """Tell whether what is said holds one of a night's pairs, and nothing that is not of its message."""
    said = ASIDE.sub(" ", said)
    shapes, numbers = {_numbers(shape) for shape in SHAPE.findall(said)}, set(_numbers(said))
    full, short = ({shape for shape in shapes if (len(shape) > 1) == long} for long in (True, False))
    if full - SHAPES[night] or numbers - NUMBERS[night] or len(full) > 2 or re.search(r"[\[(,]\s*-\s*\d", said):
        return False
    if night == "thursday" and full and short:  # of the weights, or of the biases
        return {(10, 64), (12, 64)} <= full or {(10,), (12,)} <= short
    return any(pair <= numbers for pair in SIZES[night])


def check_the_failure_is_told_from_its_reports(answer: Any) -> None:
    """the message of each night is that of the failure which the others follow from"""
    for night in ROOT:
        message = _said(answer, night, "message")
        for words, why in REPORTS.items():
            if words in message:
                raise Failed(f"{words!r} is not the failure of {night}: {why}")
        others = [other for other in ROOT if other != night and any(key in message for key in ROOT[other])]
        if others or not _told(night, message):
            raise Failed(
                f"the message for {night} is not that of its failure",
                show={"named": repr(message[:70])},
                hint="copy the line of the log behind the type of the exception",
            )


def check_the_line_is_the_deepest_of_her_own(answer: Any) -> None:
    """the line of each night is the deepest of her own code on the way to the failure"""
    for night, line in LINE.items():
        said = _said(answer, night, "line")
        if line is None:
            if said:
                raise Failed(
                    f"{said[:60]!r} is named for {night}; would a change of that line make the message go away?"
                )
            continue
        if "-packages/" in said:
            raise Failed(f"{said[:60]!r}, named for {night}, lies in an installed package")
        found = _place(said)
        if found is None:
            raise Failed(f"the line for {night} must name one file and one line, as 'file.py:12', got {said[:60]!r}")
        if found != line:
            own = "is a line of her own, and not the deepest one on the way to the failure"
            of = own if found[0] in OWN[night] else "is no line of her own"
            raise Failed(f"{found[0]}:{found[1]}, named for {night}, {of}")


def check_the_sizes_are_those_that_do_not_fit(answer: Any) -> None:
    """the sizes of each night are the two that do not fit"""
    for night, pairs in SIZES.items():
        said = _said(answer, night, "sizes")
        if not pairs and said:
            raise Failed(f"{said[:60]!r} is named for {night}; the message of that failure holds no sizes")
        if pairs and not _fit(night, said):
            raise Failed(
                f"the sizes named for {night} are not two that its message holds against each other",
                show={"named": repr(said[:60])},
            )


def check_the_kind_follows_from_what_has_to_change(answer: Any) -> None:
    """each night is told a dependency failure or a failure of the training code by what has to change"""
    for night, kind in KIND.items():
        text = _said(answer, night, "kind")
        named = [word for word in ("training", "dependency") if word in text]
        if len(named) != 1 or re.search(r"\b(no|not|non)\b", text):
            raise Failed(f"the kind of {night} must be 'training' or 'dependency', got {text[:40]!r}")
        said = named[0]
        if said != kind:
            changed = "her code, settings and data" if said == "training" else "what is installed"
            raise Failed(f"{night} is called a {said} failure; with {changed} changed, would its message go away?")


FIELDS = ("message", "line", "sizes", "kind")
GOOD = {
    "monday": (
        "a and b must have same reduction dim, but got [32, 196] X [256, 64].",
        "model.py:23",
        "[32, 196] and [256, 64]",
        "training",
    ),
    "tuesday": ("No working C++ compiler found", "", "", "dependency"),
    "wednesday": (
        "shape '[3, 16, 16]' is invalid for input of size 256",
        "data.py:24",
        "[3, 16, 16] and 256",
        "training",
    ),
    "thursday": ("size mismatch for 2.weight", "checkpoint.py:10", "[10, 64] and [12, 64]", "training"),
}


def _filled(**others: dict[str, str]) -> list[Edit]:
    """Fill in the form rightly, but for the fields named: `monday={"line": "train.py:1"}`."""
    edits: list[Edit] = []
    for night, good in GOOD.items():
        said = {**dict(zip(FIELDS, good, strict=True)), **others.get(night, {})}
        old, new = _entry(dict.fromkeys(FIELDS, "")), _entry(said)
        edits.append((f'    "{night}": {{\n{old}', f'    "{night}": {{\n{new}'))
    return edits


def _entry(said: dict[str, str]) -> str:
    """Write the lines of one night as the form has them."""
    message, *others = (f'"{field}": {json.dumps(said[field])},' for field in FIELDS)
    return f"        {message}\n        {' '.join(others)}\n"


def _each(field: str, monday: str, tuesday: str, wednesday: str, thursday: str) -> dict[str, dict[str, str]]:
    """One field of all four nights."""
    return {
        "monday": {field: monday},
        "tuesday": {field: tuesday},
        "wednesday": {field: wednesday},
        "thursday": {field: thursday},
    }


ACCEPTED: dict[str, list[Edit]] = {
    "whole frames": _filled(
        **_each(
            "line",
            'File "/home/ada/scans/model.py", line 23, in forward',
            "none",
            '  File "/home/ada/scans/data.py", line 24, in read',
            "File \"/home/ada/scans/checkpoint.py\", line 10, in restore model.load_state_dict(saved['model'])",
        )
    ),
    "with the types of the exceptions": _filled(
        **_each(
            "message",
            "RuntimeError: a and b must have same reduction dim, but got [32, 196] X [256, 64].",
            "torch._inductor.exc.InductorError: InvalidCxxCompiler: No working C++ compiler found in "
            "torch._inductor.config.cpp.cxx: (None, 'g++')",
            "RuntimeError: shape '[3, 16, 16]' is invalid for input of size 256",
            "RuntimeError: Error(s) in loading state_dict for Sequential:",
        )
    ),
    "the two numbers alone": _filled(**_each("sizes", "196, 256", "-", "256 instead of 3 * 16 * 16 = 768", "12 10")),
    "places in other words": _filled(
        **_each("line", "line 23 in scans/model.py", "", "data.py, line 24 (read)", "/home/ada/scans/checkpoint.py:10")
    ),
    "shapes as torch writes them": _filled(
        **_each(
            "sizes", "32x196 and 256x64", "none", "(3, 16, 16), (256,)", "torch.Size([10, 64]), torch.Size([12, 64])"
        )
    ),
    "the message with its explanation": _filled(
        monday={
            "message": "Dynamo failed to run FX node with fake tensors: call_function <built-in function linear>: got "
            "RuntimeError('a and b must have same reduction dim, but got [32, 196] X [256, 64].')"
        }
    ),
    "the ends of the messages": _filled(
        **_each(
            "message",
            "[32, 196] X [256, 64].",
            "torch._inductor.config.cpp.cxx: (None, 'g++')",
            "invalid for input of size 256",
            "the shape in current model is torch.Size([12, 64]).",
        )
    ),
    "with the column, and with the code": _filled(
        monday={"line": "model.py:23:16"},
        tuesday={"line": "none: nothing of hers has to change"},
        wednesday={"line": "data.py:24: return values.reshape(3, SIDE, SIDE).float() / 255"},
        thursday={"sizes": "[10] and [12], of 2.bias"},
    ),
}
TRAPS: dict[str, Trap] = {
    "all of her lines in one file": Trap(
        _filled(wednesday={"line": "data.py:24, data.py:19, data.py:17"}),
        "check_the_line_is_the_deepest_of_her_own",
        "one of them is the deepest; who names three has not looked which",
    ),
    "a weight against a bias": Trap(
        _filled(thursday={"sizes": "[10, 64] and [12]"}),
        "check_the_sizes_are_those_that_do_not_fit",
        "weights are held against weights: no line of the log compares these two",
    ),
    "the last line of each log": Trap(
        _filled(
            **_each(
                "message",
                "trainer.TrainingFailed: epoch 0 could not be finished",
                "trainer.TrainingFailed: epoch 0 could not be finished",
                "RuntimeError: shape '[3, 16, 16]' is invalid for input of size 256",
                'TypeError: can only concatenate str (not "PosixPath") to str',
            )
        ),
        "check_the_failure_is_told_from_its_reports",
        "Monday and Tuesday end in one and the same line, and nothing that they need is the same",
    ),
    "the first exception of each log": Trap(
        _filled(wednesday={"message": "KeyError: 13", "line": "data.py:17", "sizes": ""}),
        "check_the_failure_is_told_from_its_reports",
        "a cache that does not hold a row yet answers with a KeyError, and the row is read: it stands in every run",
    ),
    "what the loader says": Trap(
        _filled(wednesday={"message": "Caught RuntimeError in DataLoader worker process 0.", "line": "train.py:16"}),
        "check_the_failure_is_told_from_its_reports",
        "the loader only carries the news from its worker: the traceback goes on below, in another process",
    ),
    "the report of the compiler": Trap(
        _filled(monday={"message": "torch._dynamo.exc.TorchRuntimeError: RuntimeError when making fake tensor call"}),
        "check_the_failure_is_told_from_its_reports",
        "that says in which phase of the compiler it came up; what came up stands behind it",
    ),
    "the report that broke": Trap(
        _filled(thursday={"message": 'can only concatenate str (not "PosixPath") to str', "line": "train.py:14"}),
        "check_the_failure_is_told_from_its_reports",
        "with the path made a text the run still cannot go on: it would then say why",
    ),
    "the deepest frame of all": Trap(
        _filled(monday={"line": "torch/nn/modules/linear.py:134"}),
        "check_the_line_is_the_deepest_of_her_own",
        "that line multiplies what it is given, for everybody who uses torch",
    ),
    "the last frame of the log": Trap(
        _filled(monday={"line": "trainer.py:26"}),
        "check_the_line_is_the_deepest_of_her_own",
        "line 26 reports; the way to the failure leads through the traceback above it",
    ),
    "the frame before the packages begin": Trap(
        _filled(monday={"line": "trainer.py:15"}),
        "check_the_line_is_the_deepest_of_her_own",
        "the compiler runs her model too, line by line: its part of the way stands behind 'from user code'",
    ),
    "where the loop stands": Trap(
        _filled(wednesday={"line": "train.py:16"}),
        "check_the_line_is_the_deepest_of_her_own",
        "the loop waits for a batch; the row was read in another process, whose traceback stands below",
    ),
    "where the report breaks": Trap(
        _filled(thursday={"line": "train.py:14"}),
        "check_the_line_is_the_deepest_of_her_own",
        "line 14 says badly what has failed before",
    ),
    "a line to change where none has to": Trap(
        _filled(tuesday={"line": "trainer.py:15"}),
        "check_the_line_is_the_deepest_of_her_own",
        "the same line runs where a C++ compiler is installed",
    ),
    "sizes that do fit": Trap(
        _filled(monday={"sizes": "256 x 64 and 64 x 256"}),
        "check_the_sizes_are_those_that_do_not_fit",
        "a weight and its transpose always agree; what meets it has 196 columns",
    ),
    "sizes where there are none": Trap(
        _filled(tuesday={"sizes": "None and g++"}),
        "check_the_sizes_are_those_that_do_not_fit",
        "these are the names under which a compiler was looked for",
    ),
    "by the package that raised it": Trap(
        _filled(monday={"kind": "dependency"}),
        "check_the_kind_follows_from_what_has_to_change",
        "the compiler of torch raised it and says 196 against 256: no other version of torch multiplies these",
    ),
    "all of it is training": Trap(
        _filled(tuesday={"kind": "training"}),
        "check_the_kind_follows_from_what_has_to_change",
        "the same code runs to its end on a machine that has g++",
    ),
}
