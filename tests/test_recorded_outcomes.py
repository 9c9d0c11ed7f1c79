"""The table by which `flat_and_forked` is judged is what the runs show, and it leaves room for many right answers."""

from __future__ import annotations

import itertools

import pytest
import recorded_outcomes
import torch

from rerail import course

GRADER = course.find("flat_and_forked").loaded_grader()
REMEDIES = ("dropout", "lower", "longer")  # against learning by heart; one predicts them by degree only


def separates(outcomes, names) -> bool:
    suspects = outcomes[names[0]]
    return len({tuple(outcomes[name][suspect] for name in names) for suspect in suspects}) == len(suspects)


def right(run, outcomes):
    """Return all sets of three that tell the suspects apart and waste none."""
    useful = [name for name in outcomes if len(set(outcomes[name].values())) > 1]
    return [names for names in itertools.combinations(useful, 3) if separates(outcomes, names)]


@pytest.fixture(scope="module")
def found():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return recorded_outcomes.recorded()
    finally:
        torch.set_num_threads(threads)


def test_the_table_is_what_the_runs_show(found) -> None:
    assert found[0] == GRADER.RECORDED


def test_every_run_shows_the_symptom(found) -> None:
    flat, forked = found[1]["flat"], found[1]["forked"]

    assert all(0.9 < share < 1.1 for share in flat["alert"].values())
    for suspect in GRADER.SUSPECTS["forked"]:
        assert forked["alert: train"][suspect] < 0.5 * forked["alert: train before"][suspect]
        assert forked["alert: validation"][suspect] > forked["alert: validation early"][suspect]


def test_many_answers_are_right_and_most_are_not() -> None:
    for run, outcomes in GRADER.RECORDED.items():
        chosen = list(itertools.combinations(GRADER.MENU[run], 3))

        assert 20 <= len(right(run, outcomes)) <= len(chosen) / 10, run


def test_no_single_experiment_is_needed_in_every_right_answer() -> None:
    for run, outcomes in GRADER.RECORDED.items():
        assert not set.intersection(*map(set, right(run, outcomes))), run


def test_remedies_soften_the_symptom_and_leave_the_most_of_it(found) -> None:
    gaps = found[1]["forked"]

    for name in REMEDIES:
        assert gaps[name]["overfit"] > 2 * 0.25, name  # twice the border at which the symptom would have gone
