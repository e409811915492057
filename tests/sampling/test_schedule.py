"""Which steps a schedule evaluates, which schedules are one, and which none may have."""

from __future__ import annotations

import pytest

from magi2.errors import ConfigError
from magi2.sampling.schedule import EVERY_STEP, Schedule


@pytest.mark.parametrize(
    ("schedule", "branches"),
    [
        (EVERY_STEP, (2, 2, 2, 2, 2, 2)),
        (Schedule(3), (2, 2, 2, 1, 1, 1)),
        (Schedule(0), (1, 1, 1, 1, 1, 1)),
        (Schedule(None, (2, 4)), (2, 2, 0, 2, 0, 2)),
        (Schedule(4, (2, 3, 5)), (2, 2, 0, 0, 1, 0)),
    ],
)
def test_steps_evaluate_two_branches_one_or_none(schedule: Schedule, branches: tuple[int, ...]) -> None:
    assert schedule.branches(6) == branches
    assert schedule.evaluations(6) == sum(branches)
    assert schedule.share(6) == pytest.approx(sum(branches) / 12)
    assert schedule.counts(6) == tuple(sorted(set(branches) - {0}, reverse=True))


@pytest.mark.parametrize(
    ("given", "resolved"),
    [
        (Schedule(6), None),
        (Schedule(None, ()), None),
        (Schedule(None, (4, 2)), Schedule(None, (2, 4))),
        (Schedule(4, (3, 2)), Schedule(2, (2, 3))),  # the steps before the end of guidance evaluate nothing
        (Schedule(None, (5,)), Schedule(5, (5,))),
        (Schedule(6, (5,)), Schedule(5, (5,))),
        (Schedule(0), Schedule(0)),
    ],
)
def test_schedules_that_evaluate_the_same_are_one(given: Schedule, resolved: Schedule | None) -> None:
    assert given.resolved(6) == resolved
    assert (resolved or EVERY_STEP).branches(6) == given.branches(6)


@pytest.mark.parametrize(
    ("schedule", "reason"),
    [
        (Schedule(7), "guide_until_step is 7, must be from 0"),
        (Schedule(-1), "guide_until_step is -1"),
        (Schedule(None, (0,)), "reuse_steps has 0: before the first step there is no velocity"),
        (Schedule(None, (1,)), "reuse_steps has 1: the first 2 steps are always evaluated"),
        (Schedule(None, (6,)), "reuse_steps has 6: of 6 steps those from 2 to 5 may"),
        (Schedule(None, (-2,)), "reuse_steps has -2"),
        (Schedule(None, (3, 2, 4)), "reuse_steps has 2 to 4: at most 2 steps in a row"),
        (Schedule(None, (3, 3)), "reuse_steps has 3 twice"),
    ],
)
def test_wrong_schedules_are_refused_with_the_reason(schedule: Schedule, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        schedule.resolved(6)


def test_position_is_in_steps_where_all_cost_the_same_and_else_in_evaluations() -> None:
    assert EVERY_STEP.position(3, 6) == Schedule(0).position(3, 6) == (3, 6)
    assert [Schedule(4, (2, 3, 5)).position(done, 6) for done in range(7)] == [
        *((0, 5), (2, 5), (4, 5), (4, 5), (4, 5), (5, 5), (5, 5))
    ]


def test_a_schedule_comes_back_from_what_a_recipe_holds() -> None:
    schedule = Schedule(4, (2, 5))
    assert Schedule.from_json(schedule.to_json()) == schedule
    assert Schedule.from_json(None) == EVERY_STEP
