"""Equal failures in a row pause a batch: counted in the order of their ends, whatever the shards."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import pytest

from magi2.artifacts import LocalStore
from magi2.catalog import Action, Actor, Catalog, PlannedClip, Request, Run, RunState
from magi2.catalog.streak import Streak
from magi2.types import StageName
from tests.catalog.catalog_samples import PROFILES, failed, make_batch, make_clip

ANN = Actor("1", "ann")
ENCODE, DECODE = StageName.ENCODE, StageName.DECODE
START = datetime.now(UTC)


class Night:
    """A batch of eight clips in two shards, which three equal failures in a row pause; ends are a second apart."""

    def __init__(self, catalog: Catalog, streak: int = 3) -> None:
        clips = [make_clip(number) for number in range(8)]
        self.catalog, self.clips = catalog, [clip.clip_id for clip in clips]
        catalog.batches.create(make_batch(clips_total=8, failure_streak=streak), PROFILES)
        catalog.clips.add("night", [PlannedClip(clip, number % 2) for number, clip in enumerate(clips)])
        self._seconds = 0

    def end(self, number: int, code: str | None = "contract", *, tried_again: bool = False, **values: object) -> None:
        """The clip fails with this code, or comes through without one, later than all before."""
        self._seconds += 1
        at = {"finished_at": START + timedelta(seconds=self._seconds), "stage": ENCODE, "shard": number % 2, **values}
        error = f"{self._seconds} of 9 values are NaN"
        run = failed(self.clips[number], error_code=code, error=error, **at)  # type: ignore[arg-type]
        if code is None:
            run = Run(clip_id=self.clips[number], state=RunState.MADE, **at)  # type: ignore[arg-type]
        self.catalog.runs.finish("night", [run], tried_again=tried_again)

    def streak(self, stage: StageName = ENCODE) -> Streak | None:
        return self.catalog.control.pause_at_streak("night", stage)

    @property
    def requested(self) -> Request | None:
        batch = self.catalog.batches.get("night")
        assert batch is not None
        return batch.requested


def after(night: Night, ends: Sequence[tuple[int, str | None]]) -> Streak | None:
    for number, code in ends:
        night.end(number, code)
    return night.streak()


def test_equal_failures_in_a_row_pause_the_batch_whatever_their_shards(catalog: Catalog) -> None:
    night = Night(catalog)
    assert after(night, [(0, None), (1, "contract"), (2, "contract")]) is None
    assert night.requested is None
    found = after(night, [(5, "contract")])
    last = tuple(night.clips[number] for number in (5, 2, 1))
    assert found == Streak(3, "encode", "contract", "# of # values are NaN", last)
    assert night.requested is Request.PAUSE
    (entry,) = catalog.control.actions("night").rows
    assert (entry.action, entry.by.user_id, Streak.of(entry.arguments)) == (Action.PAUSE, "magi2", found)
    batch = catalog.batches.get("night")
    assert batch is not None
    assert catalog.control.pause_reason(batch) == ("3 clips in a row failed in encode, contract: # of # values are NaN")
    assert night.streak() is None, "it is paused once"


@pytest.mark.parametrize(
    "ends",
    [
        [(0, "contract"), (1, None), (2, "contract"), (3, "contract")],
        [(0, "contract"), (1, "image"), (2, "contract"), (3, "contract")],
    ],
    ids=["a clip came through", "another error"],
)
def test_what_lies_between_ends_a_streak(catalog: Catalog, ends: Sequence[tuple[int, str | None]]) -> None:
    assert after(Night(catalog), ends) is None


def test_clips_that_come_through_another_stage_end_no_streak(catalog: Catalog) -> None:
    night = Night(catalog)
    for number in range(3):
        night.end(number)
        night.end(7 - number, None, stage=DECODE)
    assert night.streak() is not None


def test_a_clip_that_is_tried_again_counts_once_and_not_before_its_end(catalog: Catalog) -> None:
    night = Night(catalog)
    for attempt in (1, 2, 3):
        night.end(0, "infrastructure", tried_again=attempt < 3, attempt=attempt)
        night.end(1, "infrastructure", tried_again=attempt < 3, attempt=attempt)
        assert night.streak() is None
    night.end(2, "infrastructure")
    assert night.streak() is not None


def test_a_resumed_batch_begins_a_new_streak(catalog: Catalog) -> None:
    night = Night(catalog)
    assert after(night, [(0, "contract"), (1, "contract"), (2, "contract")]) is not None
    catalog.control.resume("night", by=ANN)
    night._seconds += 3600
    assert after(night, [(3, "contract"), (4, "contract")]) is None
    assert after(night, [(5, "contract")]) is not None


def test_clips_that_fail_again_as_a_resumed_stage_goes_on_pause_it_no_second_time(catalog: Catalog) -> None:
    night = Night(catalog)
    assert after(night, [(0, "contract"), (1, "contract"), (2, "contract")]) is not None
    catalog.control.resume("night", by=ANN)
    night._seconds += 3600
    again = [(0, "contract"), (1, "contract"), (2, "contract"), (3, "contract"), (4, "contract")]
    assert after(night, again) is None
    assert after(night, [(5, "contract")]) is not None


def test_nothing_is_asked_of_a_batch_without_a_streak_or_that_is_to_end(catalog: Catalog, store: LocalStore) -> None:
    night = Night(catalog, streak=0)
    assert after(night, [(number, "contract") for number in range(8)]) is None
    catalog.batches.create(make_batch(clips_total=8, failure_streak=3), PROFILES)
    catalog.control.cancel("night", by=ANN)
    assert night.streak() is None
    assert night.requested is Request.CANCEL


def test_a_pause_of_somebody_is_told_by_name(catalog: Catalog) -> None:
    Night(catalog)
    catalog.control.pause("night", by=ANN)
    batch = catalog.batches.get("night")
    assert batch is not None
    assert catalog.control.pause_reason(batch) == "paused by ann"
