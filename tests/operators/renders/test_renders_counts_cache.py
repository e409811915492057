"""Numbers are counted once for all who ask, and not kept for long."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from magi2.catalog import BatchRecord, BatchState, Request
from magi2.catalog.counts import BatchCounts, Counting
from magi2_airflow.renders.counts_cache import FINISHED_S, KEPT, LIVE_S, CountsCache


class Counter:
    """Counts how often it was asked to count."""

    def __init__(self) -> None:
        self.asked: list[list[str]] = []
        self.now = self.takes = 0.0

    def counts(self, batch_ids: Sequence[str]) -> dict[str, BatchCounts]:
        self.asked.append(list(batch_ids))
        self.now += self.takes
        return {each: Counting().result() for each in batch_ids}


@pytest.fixture
def counter() -> Counter:
    return Counter()


@pytest.fixture
def cache(counter: Counter) -> CountsCache:
    return CountsCache(counter, lambda: counter.now)  # type: ignore[arg-type]


def batch(batch_id: str = "night", state: BatchState = BatchState.RUNNING) -> BatchRecord:
    return BatchRecord(
        batch_id=batch_id, name="", source="", clips_total=0, state=state, requested=None, finished_at=None
    )


RUNNING, FINISHED = batch(), batch("old", BatchState.DONE)
RUNNING, FINISHED = (replace(each, created_at=RUNNING.created_at) for each in (RUNNING, FINISHED))


def test_many_who_ask_at_once_are_answered_by_one_count(counter: Counter, cache: CountsCache) -> None:
    for _ in range(20):
        assert set(cache.of([RUNNING, FINISHED])) == {"night", "old"}
    assert counter.asked == [["night", "old"]]


def test_a_batch_that_goes_on_is_counted_again_soon(counter: Counter, cache: CountsCache) -> None:
    cache.of([RUNNING, FINISHED])
    counter.now = LIVE_S
    cache.of([RUNNING, FINISHED])
    counter.now = FINISHED_S
    cache.of([FINISHED])
    assert counter.asked == [["night", "old"], ["night"], ["old"]]


def test_numbers_that_grow_old_while_others_are_counted_are_still_told(counter: Counter, cache: CountsCache) -> None:
    cache.of([RUNNING])
    counter.now, counter.takes = LIVE_S / 2, LIVE_S
    assert set(cache.of([RUNNING, FINISHED])) == {"night", "old"}


def test_a_batch_that_changed_is_counted_at_once(counter: Counter, cache: CountsCache) -> None:
    cache.of([RUNNING])
    cache.of([replace(RUNNING, requested=Request.PAUSE)])
    cache.forget()
    cache.of([RUNNING])
    assert len(counter.asked) == 3


def test_numbers_do_not_pile_up(counter: Counter, cache: CountsCache) -> None:
    many = [batch(str(number)) for number in range(KEPT + 50)]
    for each in many:
        cache.of([each])
    assert len(cache._kept) <= KEPT + 1
