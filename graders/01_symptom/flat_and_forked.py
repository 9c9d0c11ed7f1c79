"""One loss stands still, another parts from training, and everybody has a remedy."""

from __future__ import annotations

import itertools
from typing import Any

from rerail.checks import Edit, Failed, Trap

LAYER, MINUTES, ORDER, POINTS = "process", 15, 2, 1
GRADED = ()
BASELINE = "check_three_experiments_are_named"
HINTS = (
    "observe: for each suspect write down what each experiment would show; where all five show the same, the "
    "experiment tells nothing",
    "locate: look for a pair of suspects that stand in one group in all three of your experiments",
    "explain: a remedy helps against one suspect and is silent on the other four; a measurement with three outcomes "
    "splits the five at once",
    "shape of the fix: start with what has three outcomes; then ask, of each group that is left, what its members "
    "disagree about. Of the flat run that is the value, the gradient or the update; of the forked run, the path or the "
    "rows",
)

Outcomes = dict[str, dict[str, str]]
Groups = frozenset[frozenset[str]]

SUSPECTS = {
    "flat": ("broadcast", "cut", "forgotten", "slow", "dead"),
    "forked": ("overfit", "labels", "scale", "mode", "drift"),
}


def _all(run: str, usual: str, **others: str) -> dict[str, str]:
    """One outcome under every suspect of a run, but for those named."""
    return {suspect: others.get(suspect, usual) for suspect in SUSPECTS[run]}


# What tests/recorded_outcomes.py observed in runs of 200 steps; a test makes them again and compares. With ten seeds no
# outcome differs. The comments name the border between two outcomes and what came nearest to it on either side, over
# these ten.
RECORDED: dict[str, Outcomes] = {
    "flat": {
        "gradients": _all("flat", "all", cut="none", dead="some"),  # counted after one backward
        "movement": _all("flat", "all", cut="none", forgotten="none", dead="some"),  # compared around one step
        "size": _all("flat", "above", cut="0", forgotten="0", slow="below"),  # border 1e-4: 1.2e-6, 0.005
        "shapes": _all("flat", "equal", broadcast="not equal"),
        "recompute": _all("flat", "equal", broadcast="not equal"),  # border 1e-3, relative: 0, 0.010
        "graph": _all("flat", "yes", cut="no"),
        "units": _all("flat", "not all", dead="all"),
        # Below: trained anew; the loss falls under 0.6 of the variance of the targets, or stays: 0.40, 0.90
        "higher": _all("flat", "stays", slow="goes"),  # nan under broadcast and dead
        "rebuild": _all("flat", "stays", forgotten="goes"),
        "reinit": _all("flat", "stays", dead="goes"),
        "momentum": _all("flat", "stays"),
        "by_heart": _all("flat", "does not"),
        "more_rows": _all("flat", "stays"),
        "lower": _all("flat", "stays"),
        "longer": _all("flat", "stays"),
    },
    "forked": {
        "gradients": _all("forked", "all"),
        "movement": _all("forked", "all"),
        # 0.12 | 0.44 to 0.52 | 0.88
        "crossed": _all("forked", "over 60 %", labels="under 40 %", scale="between", mode="between"),
        "chance": _all("forked", "between", overfit="over 60 %", labels="under 40 %"),  # 0.15 | 0.43 to 0.54 | 0.78
        "before": _all("forked", "near log(2)", scale="far above"),  # border 1.5: 0.75, 20
        "spread": _all("forked", "as in training", scale="far apart"),  # border 1 deviation: 0.6, 200
        "twice": _all("forked", "equal", mode="not equal"),  # border 1e-6: 0, 0.002
        # Below: validation loss ends less than 0.25 above training loss, or more: 0.07, 0.56
        "evalmode": _all("forked", "stays", mode="goes"),  # the same weights, scored again
        "resplit": _all("forked", "stays", drift="goes"),  # from here on trained anew
        "more_rows": _all("forked", "stays", overfit="goes"),
        "dropout": _all("forked", "stays"),
        "lower": _all("forked", "stays"),
        "longer": _all("forked", "stays"),
        "by_heart": _all("forked", "falls"),
    },
}
LOOKS = {
    *("gradients", "movement", "size", "shapes", "recompute", "graph", "units"),
    *("crossed", "chance", "before", "spread", "twice", "evalmode", "peek"),
}
NO_EXPERIMENT = {
    "everything": "it changes three things at once",
    "luckiest": "another seed changes nothing that is suspected, and the best of three is picked, not observed",
    "peek": "the test rows are for one look, at the end; used for debugging they are validation rows",
}
MENU = {
    "flat": {*RECORDED["flat"], "everything", "luckiest"},
    "forked": {*RECORDED["forked"], *NO_EXPERIMENT},
}


def _named(answer: Any, run: str) -> list[tuple[str, str]]:
    """Read the pairs (experiment, expected groups) of a run; blank lines do not count, case and hyphens neither."""
    lines = answer.get(run) if isinstance(answer, dict) else None
    if not isinstance(lines, list | tuple):
        raise Failed(
            f"ANSWER[{run!r}] must be a list of three pairs, got {str(lines)[:60]}; reset brings the form back"
        )
    for line in lines:
        if not (isinstance(line, list | tuple) and len(line) == 2 and all(map(_written, line))):
            raise Failed(f"ANSWER[{run!r}] holds pairs of texts, (experiment, groups), got {str(line)[:60]}")
    named = [(str(name).strip().lower().replace("-", "_").replace(" ", "_"), _line(groups)) for name, groups in lines]
    return [(name, groups) for name, groups in named if name]


def _written(part: Any) -> bool:
    """Tell whether a part is a text, or a list of texts and lists of texts."""
    return isinstance(part, str) or (isinstance(part, list | tuple) and all(map(_written, part)))


def _line(groups: Any) -> str:
    """Write groups that are given as a list of lists, or of texts, as one line."""
    if isinstance(groups, str):
        return groups
    return " | ".join(group if isinstance(group, str) else " ".join(map(str, group)) for group in groups)


def _names(answer: Any, run: str) -> list[str]:
    return [name for name, _ in _named(answer, run)]


def _groups(text: str, run: str, name: str) -> Groups:
    """Read "slow | cut dead" as groups of suspects; each suspect must stand in one of them."""
    groups = [part.replace(",", " ").lower().split() for part in text.split("|")]
    said = [suspect for group in groups for suspect in group]
    strange = [suspect for suspect in said if suspect not in SUSPECTS[run]]
    if strange:
        raise Failed(f"{strange[0]!r}, beside {name!r}, is no suspect of the {run} run; they are {_listed(run)}")
    odd = [suspect for suspect in SUSPECTS[run] if said.count(suspect) != 1]
    if odd:
        raise Failed(f"beside {name!r} each suspect stands once, {odd[0]!r} stands there {said.count(odd[0])} times")
    return frozenset(frozenset(group) for group in groups if group)


def _listed(run: str) -> str:
    return ", ".join(SUSPECTS[run])


def _recorded(run: str, name: str) -> Groups:
    by_outcome: dict[str, set[str]] = {}
    for suspect, outcome in RECORDED[run][name].items():
        by_outcome.setdefault(outcome, set()).add(suspect)
    return frozenset(map(frozenset, by_outcome.values()))


def _in_one(groups: Groups, first: str, second: str) -> bool:
    return any({first, second} <= group for group in groups)


def check_three_experiments_are_named(answer: Any) -> None:
    """three different experiments of its menu are named for either run"""
    for run, menu in MENU.items():
        names = _names(answer, run)
        strange = [name for name in names if name not in menu]
        if strange and "_|_" in strange[0]:
            raise Failed(f"the name of the experiment comes first in a pair of the {run} run, and its groups second")
        if strange:
            raise Failed(f"{strange[0]!r} is no experiment for the {run} run; the sheet lists those there are")
        if len(names) != 3 or len(set(names)) != 3:
            raise Failed(f"three different experiments are asked for the {run} run, got {len(set(names))}")


def check_each_changes_or_measures_one_thing(answer: Any) -> None:
    """each experiment changes or measures one thing, and none uses up the test rows"""
    for run in RECORDED:
        for name in _names(answer, run):
            if name in NO_EXPERIMENT:
                raise Failed(f"{name!r} does not belong among first experiments: {NO_EXPERIMENT[name]}")


def check_the_two_runs_get_different_experiments(answer: Any) -> None:
    """no experiment stands in both lists"""
    both = set(_names(answer, "flat")) & set(_names(answer, "forked"))
    if both:
        raise Failed(f"{min(both)!r} stands in both lists; two symptoms with other suspects ask other questions")


def _told_apart(answer: Any, run: str) -> None:
    seen = {name: RECORDED[run][name] for name in _names(answer, run)}
    for first, second in itertools.combinations(SUSPECTS[run], 2):
        if all(outcomes[first] == outcomes[second] for outcomes in seen.values()):
            raise Failed(
                f"for the {run} run, {first!r} and {second!r} come out alike in all three experiments",
                show={name: f"{outcomes[first]!r} for both" for name, outcomes in seen.items()},
            )


def check_suspects_of_the_flat_run_are_told_apart(answer: Any) -> None:
    """the three outcomes tell the five suspects of the flat run apart"""
    _told_apart(answer, "flat")


def check_suspects_of_the_forked_run_are_told_apart(answer: Any) -> None:
    """the three outcomes tell the five suspects of the forked run apart"""
    _told_apart(answer, "forked")


def check_no_experiment_is_wasted(answer: Any) -> None:
    """no experiment comes out alike under all five suspects"""
    for run in RECORDED:
        for name in _names(answer, run):
            outcomes = set(RECORDED[run][name].values())
            if len(outcomes) == 1:
                raise Failed(f"{name!r} shows {min(outcomes)!r} under all five suspects of the {run} run")


def check_looks_come_before_runs(answer: Any) -> None:
    """what needs no training run comes before what needs one"""
    for run in RECORDED:
        for earlier, later in itertools.pairwise(_names(answer, run)):
            if later in LOOKS and earlier not in LOOKS:
                raise Failed(f"for the {run} run, {earlier!r} needs a training run and stands before {later!r}, a look")


def check_expectations_are_what_the_runs_showed(answer: Any) -> None:
    """the suspects are grouped beside each experiment as its outcomes grouped them"""
    for run in RECORDED:
        for name, text in _named(answer, run):
            expected, shown = _groups(text, run, name), _recorded(run, name)
            for a, b in itertools.combinations(SUSPECTS[run], 2):
                if _in_one(expected, a, b) != _in_one(shown, a, b):
                    raise Failed(
                        f"beside {name!r}, {a!r} and {b!r} stand in "
                        f"{'one group' if _in_one(expected, a, b) else 'two groups'}; the runs showed otherwise",
                        show={suspect: RECORDED[run][name][suspect] for suspect in (a, b)},
                    )


def _filled(flat: str, forked: str, **instead: str) -> list[Edit]:
    """Fill in the form: names of experiments, with the groups that were recorded or others."""
    edits: list[Edit] = []
    for run, names in (("flat", flat), ("forked", forked)):
        lines = []
        for name in names.split():
            groups = _recorded(run, name) if name in RECORDED[run] else frozenset({frozenset(SUSPECTS[run])})
            text = " | ".join(sorted(" ".join(sorted(group, key=SUSPECTS[run].index)) for group in groups))
            lines.append(f'        ("{name}", "{instead.get(name, text)}"),\n')
        empty = '        ("", ""),\n' * 3
        edits.append((f'    "{run}": [\n{empty}', f'    "{run}": [\n{"".join(lines)}'))
    return edits


GOOD_FLAT, GOOD_FORKED = "movement shapes graph", "crossed twice resplit"

ACCEPTED: dict[str, list[Edit]] = {
    "values, gradients, size of the step": _filled("shapes gradients size", "crossed chance spread"),
    "two looks and a run": _filled("movement recompute rebuild", "crossed evalmode more_rows"),
    "two of three tell all; the third makes sure": _filled("size gradients reinit", "crossed before more_rows"),
    "a look and two runs": _filled("gradients higher rebuild", "chance before resplit"),
    "in another order of groups, with commas": _filled(
        GOOD_FLAT,
        GOOD_FORKED,
        shapes="dead, slow, forgotten, cut | broadcast",
        twice="Mode | drift scale overfit labels",
    ),
}
TRAPS: dict[str, Trap] = {
    "three learning rates": Trap(
        _filled("lower higher longer", GOOD_FORKED),
        "check_suspects_of_the_flat_run_are_told_apart",
        "one question asked three times: the rate tells one suspect from the other four at most",
    ),
    "gradients and what follows from them": Trap(
        _filled("gradients graph units", GOOD_FORKED),
        "check_suspects_of_the_flat_run_are_told_apart",
        "gradients that are there say nothing of what becomes of them: the step is not looked at",
    ),
    "the remedies one knows": Trap(
        _filled(GOOD_FLAT, "dropout more_rows lower"),
        "check_suspects_of_the_forked_run_are_told_apart",
        "remedies against learning by heart ask after one suspect of five",
    ),
    "dropout, to see whether it is learned by heart": Trap(
        _filled(GOOD_FLAT, "crossed spread dropout"),
        "check_suspects_of_the_forked_run_are_told_apart",
        "with half of the units dropped the gap is 0.69 in place of 0.77: that speaks neither for nor against",
    ),
    "three times the scale of the rows": Trap(
        _filled(GOOD_FLAT, "before spread chance"),
        "check_suspects_of_the_forked_run_are_told_apart",
        "two of these are one question: rows that come in unscaled show in both",
    ),
    "all at once": Trap(
        _filled("movement shapes everything", GOOD_FORKED),
        "check_each_changes_or_measures_one_thing",
        "whatever it shows, nobody can say which of the three changes did it",
    ),
    "another seed": Trap(
        _filled(GOOD_FLAT, "crossed chance luckiest"),
        "check_each_changes_or_measures_one_thing",
        "the best of three seeds is a choice, and a fault in the code is in all three",
    ),
    "look at the test rows": Trap(
        _filled(GOOD_FLAT, "crossed chance peek"),
        "check_each_changes_or_measures_one_thing",
        "test rows that help to debug are validation rows from then on, and nobody has test rows any more",
    ),
    "one list for both": Trap(
        _filled("gradients movement by_heart", "gradients movement by_heart"),
        "check_the_two_runs_get_different_experiments",
        "a list that fits every symptom is a habit: in the forked run gradients and updates are what they should be",
    ),
    "one good question, asked twice": Trap(
        _filled("movement movement gradients", GOOD_FORKED), "check_three_experiments_are_named"
    ),
    "a question of the other run": Trap(
        _filled("movement gradients crossed", "chance twice resplit"), "check_three_experiments_are_named"
    ),
    "a run that changes nothing": Trap(
        _filled("gradients size longer", GOOD_FORKED),
        "check_no_experiment_is_wasted",
        "three times as many steps are three times as long without news: no suspect mends itself",
    ),
    "train first, look later": Trap(
        _filled("movement higher graph", GOOD_FORKED),
        "check_looks_come_before_runs",
        "one step on one batch would have said as much before the run was over",
    ),
    "dead units get no gradient at all": Trap(
        _filled("gradients shapes size", GOOD_FORKED, gradients="broadcast forgotten slow | cut dead"),
        "check_expectations_are_what_the_runs_showed",
        "the bias of the output is behind the dead units: its gradient is there, and it moves",
    ),
    "tensors that the optimizer forgot get no gradient": Trap(
        _filled("gradients shapes size", GOOD_FORKED, gradients="broadcast slow | cut forgotten | dead"),
        "check_expectations_are_what_the_runs_showed",
        "backward knows nothing of optimizers: the gradients arrive, and nobody uses them",
    ),
    "any poor validation is near chance": Trap(
        _filled(GOOD_FLAT, "crossed chance spread", chance="overfit | labels scale mode drift"),
        "check_expectations_are_what_the_runs_showed",
        "a key read in the other order puts accuracy as far below one half as it would be above",
    ),
    "a group left out": Trap(
        _filled(GOOD_FLAT, GOOD_FORKED, twice="mode"), "check_expectations_are_what_the_runs_showed"
    ),
}
