"""The table by which `flat_and_forked` is judged is what the runs show."""

from __future__ import annotations

import itertools

import recorded_outcomes
import torch

from rerail import course


def grader():
    return course.find("flat_and_forked").loaded_grader()


def test_the_table_is_what_the_runs_show() -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        assert recorded_outcomes.outcomes() == grader().RECORDED
    finally:
        torch.set_num_threads(threads)


def test_many_answers_are_right_and_most_are_not() -> None:
    for run, outcomes in grader().RECORDED.items():
        causes = len(next(iter(outcomes.values())))
        chosen = list(itertools.combinations(outcomes, 3))
        right = [
            names
            for names in chosen
            if len({tuple(outcomes[n][c] for n in names) for c in outcomes[names[0]]}) == causes
        ]

        assert 5 <= len(right) <= len(chosen) / 5, run
