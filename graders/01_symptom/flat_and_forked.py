"""Two runs are in trouble, and everybody has a different remedy."""

from __future__ import annotations

import itertools
from typing import Any

from rerail.checks import Edit, Failed, Trap

LAYER, MINUTES, ORDER, POINTS = "process", 12, 2, 1
BASELINE = "check_three_experiments_are_named"
HINTS = (
    "observe: for each suspect write down what each experiment would show; where two suspects show the same, that "
    "experiment does not tell them apart",
    "locate: look for the pair of suspects that your three experiments leave together",
    "explain: a remedy changes the run whatever its cause is; an experiment is worth its time when the suspects "
    "disagree about its outcome",
    "shape of the fix: of the flat run, look at the values, at the gradients and at the update in turn; of the forked "
    "run, ask whether the two paths agree, and in which way the answers are off",
)

NO_EXPERIMENT = {
    "everything": "it changes three things at once",
    "luckiest": "three seeds are no change, and the best of them is no evidence",
    "remedies": "it changes three things at once",
    "peek": "the test set is for one look, at the end",
}
TEMPTING = {"flat": ("everything", "luckiest"), "forked": tuple(NO_EXPERIMENT)}
Outcomes = dict[str, dict[str, str]]


def _same(outcome: str, causes: str, **others: str) -> dict[str, str]:
    """One outcome for all causes, but for those named."""
    return {cause: others.get(cause, outcome) for cause in causes.split()}


FLAT, FORKED = "broadcast cut forgotten slow dead", "overfit labels scale mode drift"
# What the runs of tests/recorded_outcomes.py showed; a test runs them again and compares.
RECORDED: dict[str, Outcomes] = {
    "flat": {
        "shapes": _same("alike", FLAT, broadcast="differ"),
        "gradients": _same("there", FLAT, cut="missing", dead="zero in places"),
        "movement": {
            "broadcast": "all",
            "cut": "none",
            "forgotten": "none",
            "slow": "all, by less than a thousandth",
            "dead": "some",
        },
        "units": _same("alive", FLAT, dead="all dead"),
        "higher": _same("stays", FLAT, slow="falls", broadcast="bursts", dead="bursts"),
        "guesses": _same("vary", FLAT, broadcast="constant", dead="constant"),
        "by_heart": _same("not learned", FLAT),
        "lower": _same("stays", FLAT),
        "longer": _same("stays", FLAT),
        "wider": _same("stays", FLAT),
        "adam": _same("stays", FLAT),
        "more_rows": _same("stays", FLAT),
    },
    "forked": {
        "crossed": _same("differ", FORKED, overfit="agree", drift="agree"),
        "before": _same("alike", FORKED, scale="higher"),
        "chance": _same("40 to 60 %", FORKED, overfit="above 60 %", scale="above 60 %", labels="below 40 %"),
        "twice": _same("equal", FORKED, mode="differ"),
        "resplit": _same("stays", FORKED, drift="closes"),
        "shuffled": _same("stays", FORKED, mode="closes"),
        "more_rows": _same("stays", FORKED, overfit="closes"),
        "smaller": _same("stays", FORKED),
        "dropout": _same("stays", FORKED),
        "by_heart": _same("learned", FORKED),
        "lower": _same("stays", FORKED),
        "longer": _same("stays", FORKED),
    },
}


def _chosen(answer: Any, run: str) -> list[str]:
    """Read a list of names, forgiving case, spaces and hyphens."""
    names = answer[run]
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        raise Failed(f"the experiments of {run!r} must be a list of names, got {str(names)[:60]}")
    return [name.strip().lower().replace("-", "_").replace(" ", "_") for name in names]


def check_three_experiments_are_named(answer: Any) -> None:
    """three different experiments of its menu are named for either run"""
    for run in RECORDED:
        names = _chosen(answer, run)
        known = {*RECORDED[run], *TEMPTING[run]}
        strange = [name for name in names if name not in known]
        if strange:
            raise Failed(f"{strange[0]!r} is no experiment for the {run} run; the menu lists them")
        if len(names) != 3 or len(set(names)) != 3:
            raise Failed(f"three different experiments are asked for the {run} run, got {len(set(names))}")


def check_each_changes_or_measures_one_thing(answer: Any) -> None:
    """each experiment changes or measures one thing, and none uses up the test set"""
    for run in RECORDED:
        for name in _chosen(answer, run):
            if name in NO_EXPERIMENT:
                raise Failed(f"{name!r} is not one experiment: {NO_EXPERIMENT[name]}")


def check_the_two_runs_get_different_experiments(answer: Any) -> None:
    """no experiment stands in both lists"""
    both = set(_chosen(answer, "flat")) & set(_chosen(answer, "forked"))
    if both:
        raise Failed(f"{sorted(both)[0]!r} stands in both lists: two symptoms with other suspects ask other questions")


def _told_apart(answer: Any, run: str) -> None:
    names = _chosen(answer, run)
    for first, second in itertools.combinations(next(iter(RECORDED[run].values())), 2):
        seen = {name: RECORDED[run][name] for name in names}
        if all(outcomes[first] == outcomes[second] for outcomes in seen.values()):
            raise Failed(
                f"of the {run} run, {first!r} and {second!r} cannot be told apart: all three experiments come out alike",
                show={name: f"{outcomes[first]!r} for both" for name, outcomes in seen.items()},
            )


def check_suspects_of_the_flat_run_are_told_apart(answer: Any) -> None:
    """the three outcomes tell the five suspects of the flat run apart"""
    _told_apart(answer, "flat")


def check_suspects_of_the_forked_run_are_told_apart(answer: Any) -> None:
    """the three outcomes tell the five suspects of the forked run apart"""
    _told_apart(answer, "forked")


def _filled(flat: str, forked: str) -> list[Edit]:
    def listed(names: str) -> str:
        return "[" + ", ".join(f'"{name}"' for name in names.split()) + "]"

    return [
        ('    "flat": ["", "", ""],\n', f'    "flat": {listed(flat)},\n'),
        ('    "forked": ["", "", ""],\n', f'    "forked": {listed(forked)},\n'),
    ]


ACCEPTED: dict[str, list[Edit]] = {
    "values, gradients, rate": _filled("shapes gradients higher", "crossed chance shuffled"),
    "gradients and movement tell all; a third to be sure": _filled(
        "gradients movement guesses", "chance resplit before"
    ),
    "in other words": _filled("Movement gradients by-heart", "more_rows twice chance"),
}
TRAPS: dict[str, Trap] = {
    "three learning rates": Trap(
        _filled("lower higher longer", "crossed chance twice"),
        "check_suspects_of_the_flat_run_are_told_apart",
        "one question asked three times: the rate separates one suspect from the others at most",
    ),
    "the remedies one knows": Trap(
        _filled("movement gradients shapes", "dropout smaller more_rows"),
        "check_suspects_of_the_forked_run_are_told_apart",
        "remedies for overfitting test one suspect of five, and do nothing for the others",
    ),
    "all at once": Trap(
        _filled("everything gradients movement", "crossed chance twice"),
        "check_each_changes_or_measures_one_thing",
        "whatever it shows, nobody can say which of the three changes did it",
    ),
    "one list for both": Trap(
        _filled("by_heart movement gradients", "by_heart crossed chance"),
        "check_the_two_runs_get_different_experiments",
    ),
    "one good question, asked twice": Trap(
        _filled("movement movement gradients", "crossed chance twice"), "check_three_experiments_are_named"
    ),
    "a question of the other run": Trap(
        _filled("movement gradients crossed", "shapes chance twice"), "check_three_experiments_are_named"
    ),
    "look at the test score": Trap(
        _filled("movement gradients shapes", "crossed chance peek"),
        "check_each_changes_or_measures_one_thing",
        "a test set that helps to debug is a validation set from then on",
    ),
    "gradients alone": Trap(
        _filled("gradients units by_heart", "crossed chance twice"),
        "check_suspects_of_the_flat_run_are_told_apart",
        "gradients that are there say nothing of what becomes of them",
    ),
}
