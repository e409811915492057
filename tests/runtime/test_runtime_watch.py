"""The judgement over a group's ranks, on a clock of our own."""

from __future__ import annotations

from magi2.runtime.events import (
    Failure,
    Finished,
    Heartbeat,
    Hello,
    Joined,
    Loading,
    ModelsLoaded,
    Resumed,
    StageStarted,
    Step,
    StoreAway,
    StoreBack,
    Waiting,
)
from magi2.runtime.watch import Limits, Watch

LIMITS = Limits(start=100, meet=70, heartbeat=10, step=50, hang=200)


def running(ranks: int = 2) -> Watch:
    watch = Watch(ranks, LIMITS, 0)
    for rank in range(ranks):
        watch.saw(rank, Hello(rank, 1000 + rank), 1)
        watch.saw(rank, StageStarted("preview", 4), 2)
        watch.saw(rank, Step("abc", 1, 100), 3)
    return watch


def beat(watch: Watch, ranks: int, now: float) -> None:
    for rank in range(ranks):
        watch.saw(rank, Heartbeat(), now)


def test_rank_that_does_not_come_is_named_and_one_that_came_is_not() -> None:
    watch = Watch(2, LIMITS, 0)
    watch.saw(0, Hello(0, 1000), 99)
    assert watch.fault(100) is None
    assert watch.fault(101) == "rank 1 (before its first step) did not start within 100 s"


def test_silent_rank_is_frozen() -> None:
    watch = running()
    watch.saw(0, Heartbeat(), 12)
    assert watch.fault(13) is None
    assert watch.fault(14) == "rank 1 (clip abc step 1/100) is frozen, not a word for 10 s"


def test_heartbeats_are_no_progress() -> None:
    watch = running()
    beat(watch, 2, 53)
    assert watch.fault(53) is None
    beat(watch, 2, 54)
    assert watch.fault(54) == "rank 0 (clip abc step 1/100), rank 1 (clip abc step 1/100) hangs, no progress for 50 s"


def test_rank_that_holds_up_the_others_is_named_alone() -> None:
    watch = running(3)
    for rank in (0, 2):
        watch.saw(rank, Step("abc", 2, 100), 4)
    beat(watch, 3, 53.5)
    assert watch.fault(53.5) == "rank 1 (clip abc step 1/100) hangs, no progress for 50 s"


def test_ended_rank_is_not_waited_for() -> None:
    watch = running()
    watch.saw(0, Finished(), 5)
    watch.saw(0, None, 6)
    assert watch.ended_at is None
    assert not watch.is_finished
    watch.saw(1, Finished(), 7)
    assert watch.is_finished
    assert watch.ended_at == 7
    assert watch.fault(1e6) is None
    assert watch.cause is None


def test_first_ending_is_the_cause() -> None:
    watch = running(3)
    watch.saw(1, None, 5)
    watch.saw(0, Failure("infrastructure", "connection closed by peer"), 6)
    watch.saw(2, None, 7)
    assert watch.cause is not None
    assert (watch.cause.rank, watch.cause.failure, watch.ended_at) == (1, None, 5)


def test_rank_that_was_told_to_stop_is_not_the_cause_if_there_is_another() -> None:
    watch = running()
    watch.saw(0, Failure("cancelled", "ended by SIGTERM"), 5)
    assert watch.cause is not None
    assert watch.cause.rank == 0
    watch.saw(1, Failure("out_of_memory", "too little"), 6)
    assert watch.cause.rank == 1


def test_rank_that_misses_another_is_not_the_cause_once_that_one_is_seen_to_have_died() -> None:
    watch = running()
    watch.saw(1, Failure("rank_gone", "another rank is gone: connection closed by peer"), 5)
    assert watch.cause is not None and watch.cause.rank == 1
    watch.saw(0, None, 6)
    assert (watch.cause.rank, watch.cause.failure, watch.ended_at) == (0, None, 5)


def test_unknown_rank_is_ignored() -> None:
    watch = running(1)
    watch.saw(7, Failure("input", "who am I"), 4)
    assert watch.cause is None


def test_rank_that_does_not_meet_the_others_is_named() -> None:
    watch = Watch(2, LIMITS, 0)
    for rank in range(2):
        watch.saw(rank, Hello(rank, 1000 + rank), 1)
    watch.saw(0, Joined(), 2)
    beat(watch, 2, 71)
    assert watch.fault(71) is None
    beat(watch, 2, 72)
    assert watch.fault(72) == "rank 1 (before it met the others) did not meet the other ranks within 70 s"


def test_loading_lasts_as_long_as_more_is_read() -> None:
    watch = running(1)
    for now in range(10, 300, 5):
        watch.saw(0, Loading(now * 2**20), now)
        assert watch.fault(now) is None
    for now in range(300, 346, 5):
        watch.saw(0, Loading(295 * 2**20 + now), now)
        assert watch.fault(now) is None
    watch.saw(0, Loading(295 * 2**20 + 1000), 346)
    assert watch.fault(346) == "rank 0 (loading weights) hangs, no progress for 50 s"


def test_work_without_steps_may_take_longer_than_a_step() -> None:
    watch = running(1)
    for event in (ModelsLoaded(1.0), Step("abc", 100, 100)):
        watch.saw(0, event, 4)
        beat(watch, 1, 204)
        assert watch.fault(204) is None
        beat(watch, 1, 205)
        assert "no progress for 200 s" in (watch.fault(205) or "")
    watch.saw(0, Resumed("abc", 40, 100), 300)
    beat(watch, 1, 351)
    assert watch.fault(351) == "rank 0 (clip abc step 40/100) hangs, no progress for 50 s"


def test_rank_that_waits_for_rank_0_hangs_with_it_alone() -> None:
    watch = running(2)
    watch.saw(1, Waiting(), 4)
    beat(watch, 2, 1e6)
    assert watch.fault(1e6) == "rank 0 (clip abc step 1/100) hangs, no progress for 50 s"
    watch.saw(0, Heartbeat(), 1e6 + 20)
    assert watch.fault(1e6 + 20) == "rank 1 (clip abc step 1/100) is frozen, not a word for 10 s"


def test_wait_for_the_store_is_no_hang_and_what_follows_is_watched_again() -> None:
    watch = Watch(1, Limits(step=5, hang=7), 0.0)
    for moment, event in enumerate((Hello(0, 1), Joined(), StageStarted("preview", 1), StoreAway(0.0, "refused"))):
        watch.saw(0, event, float(moment))
    watch.saw(0, Heartbeat(), 99.0)
    assert watch.fault(100.0) is None
    watch.saw(0, StoreBack(97.0), 100.0)
    assert watch.fault(106.0) is None
    assert "hangs, no progress for 7 s" in str(watch.fault(108.0))
