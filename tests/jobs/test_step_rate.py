"""The pace of a clip's denoising."""

from __future__ import annotations

from magi2.jobs.step_rate import PERIOD_S, Pace, Position
from magi2.runtime.events import Step

FIRST, SECOND = "a" * 64, "b" * 64


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_position_is_told_when_a_clip_begins_and_then_seldom() -> None:
    clock = Clock()
    pace = Pace(clock)
    assert pace.hear(Step(FIRST, 0, 100)) == Position(FIRST, 0, 100, None)
    clock.now += PERIOD_S / 2
    assert pace.hear(Step(FIRST, 1, 100)) is None
    clock.now += PERIOD_S / 2
    assert pace.hear(Step(FIRST, 10, 100)) == Position(FIRST, 10, 100, 10 / PERIOD_S)
    clock.now += 0.1
    assert pace.hear(Step(SECOND, 1, 100)) == Position(SECOND, 1, 100, None)


def test_a_clip_that_goes_on_from_a_snapshot_is_not_taken_for_a_fast_one() -> None:
    clock = Clock()
    pace = Pace(clock)
    pace.hear(Step(FIRST, 60, 100))
    clock.now += 10
    assert pace.hear(Step(FIRST, 65, 100)) == Position(FIRST, 65, 100, 0.5)
