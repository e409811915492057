"""What several groups tell of one job, and when another group is no use."""

from __future__ import annotations

import pytest

from magi2.errors import OutOfMemoryError
from magi2.runtime.events import ClipFinished, Event, ModelsLoaded
from magi2.runtime.job import LostClip
from magi2.runtime.tally import MAX_LOSSES, ClipLostError, Tally


def finished(clip_id: str, state: str) -> ClipFinished:
    code, reason = ("image", "no picture") if state == "failed" else (None, None)
    return ClipFinished(clip_id, state, "k", 1.0, (), code, reason)  # type: ignore[arg-type]


def loss(clip_id: str) -> ClipLostError:
    return ClipLostError(LostClip(clip_id, "out_of_memory", "too little"), OutOfMemoryError(f"lost {clip_id}"))


def test_clip_that_an_earlier_group_finished_is_told_once() -> None:
    heard: list[Event] = []
    tally = Tally(heard.append)
    assert tally.hear(finished("a", "made"))
    assert not tally.hear(finished("a", "reused"))
    assert tally.hear(ModelsLoaded(2.0)) and tally.hear(ModelsLoaded(3.0))
    assert heard == [finished("a", "made"), ModelsLoaded(2.0), ModelsLoaded(3.0)]
    assert ([clip.state for clip in tally.clips.values()], tally.models_loaded_s) == (["made"], 5.0)


def test_next_group_leaves_out_the_lost_clip_and_those_that_failed() -> None:
    tally = Tally(lambda event: None)
    tally.hear(finished("a", "made"))
    tally.hear(finished("b", "failed"))
    assert tally.lost(loss("c")) == (LostClip("b", "image", "no picture"), loss("c").clip)


def test_losses_in_a_row_end_the_job_and_a_made_clip_forgives_them() -> None:
    tally = Tally(lambda event: None)
    for number in range(MAX_LOSSES - 1):
        tally.lost(loss(f"a{number}"))
    tally.hear(finished("b", "made"))
    for number in range(MAX_LOSSES - 1):
        tally.lost(loss(f"c{number}"))
    with pytest.raises(OutOfMemoryError, match="lost d"):
        tally.lost(loss("d"))
