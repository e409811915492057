"""Stage runs: entered twice is entered once, and clips follow from them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from magi2.artifacts import LocalStore, Manifest
from magi2.catalog import BatchState, Catalog, ClipState, Run, RunState, StateError
from magi2.types import Delivery, StageName
from tests.batch_counts import counts_of
from tests.catalog.catalog_samples import done, enter, failed, make_clip, publish

NOON = datetime(2031, 2, 3, 12, tzinfo=UTC)


@pytest.fixture
def clip_id(catalog: Catalog) -> str:
    return enter(catalog, [make_clip()])[0]


def state(catalog: Catalog, clip_id: str) -> ClipState:
    found = catalog.clips.get("night", clip_id)
    assert found is not None
    return found.state


def test_run_comes_back_whole(catalog: Catalog, clip_id: str) -> None:
    catalog.runs.start("night", StageName.PREVIEW, [clip_id], attempt=2, shard=3, host="node-7", at=NOON)
    (run,) = catalog.runs.of_clip("night", clip_id)
    assert run == Run(
        clip_id=clip_id,
        stage=StageName.PREVIEW,
        state=RunState.RUNNING,
        attempt=2,
        shard=3,
        host="node-7",
        started_at=NOON,
    )
    ended = Run(
        clip_id=clip_id,
        stage=StageName.PREVIEW,
        state=RunState.MADE,
        attempt=2,
        finished_at=NOON + timedelta(seconds=90.25),
        seconds=90.25,
        accelerator_seconds=722.0,
        peak_memory_bytes=130 * 2**30,
        flags=("offline_fallback",),
        artifact_key="e" * 64,
    )
    catalog.runs.finish("night", [ended])
    (run,) = catalog.runs.of_clip("night", clip_id)
    assert run == Run(**{**vars(ended), "shard": 3, "host": "node-7", "started_at": NOON})


def test_starting_makes_clip_and_waiting_batch_run(catalog: Catalog, clip_id: str) -> None:
    catalog.runs.start("night", StageName.ENHANCE, [clip_id], attempt=1)
    batch = catalog.batches.get("night")
    assert batch is not None
    assert (batch.state, state(catalog, clip_id)) == (BatchState.RUNNING, ClipState.RUNNING)


def test_reports_may_be_repeated(catalog: Catalog, clip_id: str) -> None:
    for _ in range(2):
        catalog.runs.start("night", StageName.PREVIEW, [clip_id], attempt=1)
    for _ in range(2):
        catalog.runs.finish("night", [failed(clip_id)])
    assert len(catalog.runs.of_clip("night", clip_id)) == 1


def test_late_start_does_not_undo_an_end(catalog: Catalog, clip_id: str, store: LocalStore) -> None:
    manifest = publish(store)
    catalog.artifacts.index([manifest])
    catalog.runs.finish("night", [done(clip_id, manifest)])
    catalog.runs.start("night", StageName.MUX, [clip_id], attempt=1)
    assert [run.state for run in catalog.runs.of_clip("night", clip_id)] == [RunState.MADE]
    assert state(catalog, clip_id) is ClipState.DONE
    catalog.runs.start("night", StageName.MUX, [clip_id], attempt=2)
    assert state(catalog, clip_id) is ClipState.RUNNING


def test_failed_run_says_why_its_clip_failed(catalog: Catalog, clip_id: str) -> None:
    catalog.runs.finish("night", [failed(clip_id, StageName.DECODE, error="video: 3 of 8 values are NaN")])
    clip = catalog.clips.get("night", clip_id)
    assert clip is not None
    assert (clip.state, clip.failed_stage, clip.reason) == ("failed", "decode", "video: 3 of 8 values are NaN")
    catalog.runs.finish("night", [Run(clip_id=clip_id, stage=StageName.DECODE, state=RunState.MADE, attempt=2)])
    clip = catalog.clips.get("night", clip_id)
    assert clip is not None
    assert (clip.state, clip.failed_stage, clip.reason) == ("running", None, None)
    assert [(run.attempt, run.state) for run in catalog.runs.of_clip("night", clip_id)] == [(1, "failed"), (2, "made")]


def test_a_clip_with_a_target_is_done_when_it_is_there_and_keeps_its_file_until_then(
    catalog: Catalog, store: LocalStore
) -> None:
    placed = replace(make_clip(), deliveries=(Delivery("studio", "a.mp4"),))
    (clip_id,) = enter(catalog, [placed])
    manifest = publish(store)
    catalog.artifacts.index([manifest])
    catalog.runs.finish("night", [done(clip_id, manifest)])
    known = catalog.clips.get("night", clip_id)
    assert known is not None and known.clip.deliveries == placed.deliveries
    assert (known.state, known.artifact_key) == (ClipState.RUNNING, manifest.key)
    stages = counts_of(catalog, "night").stages
    assert (stages[StageName.MUX].left, stages[StageName.DELIVER].left) == (0, 1)

    catalog.runs.finish("night", [failed(clip_id, StageName.DELIVER)])
    known = catalog.clips.get("night", clip_id)
    assert known is not None
    assert (known.state, known.failed_stage, known.artifact_key) == (ClipState.FAILED, "deliver", manifest.key)

    catalog.clips.place("night", clip_id, [Delivery("studio", "a_1.mp4")])
    catalog.runs.finish("night", [done(clip_id, manifest, stage=StageName.DELIVER, attempt=2)])
    known = catalog.clips.get("night", clip_id)
    assert known is not None and known.clip.deliveries == (Delivery("studio", "a_1.mp4"),)
    assert (known.state, known.artifact_key) == (ClipState.DONE, manifest.key)


def test_last_stage_makes_the_clip_done_only_by_an_indexed_artifact(
    catalog: Catalog, clip_id: str, store: LocalStore
) -> None:
    manifest = publish(store)
    with pytest.raises(StateError, match="never entered"):
        catalog.runs.finish("night", [done(clip_id, manifest)])
    with pytest.raises(StateError):
        catalog.runs.finish("night", [done(clip_id, manifest, artifact_key=None)])
    assert catalog.runs.of_clip("night", clip_id) == []
    catalog.artifacts.index([manifest])
    catalog.runs.finish("night", [done(clip_id, manifest, state=RunState.REUSED)])
    clip = catalog.clips.get("night", clip_id)
    assert clip is not None
    assert (clip.state, clip.artifact_key) == (ClipState.DONE, manifest.key)


def test_cancelled_clip_stays_so_when_a_straggler_ends(catalog: Catalog, clip_id: str) -> None:
    catalog.runs.start("night", StageName.ENCODE, [clip_id], attempt=1)
    catalog.batches.mark("night", BatchState.CANCELLED)
    catalog.runs.finish("night", [Run(clip_id=clip_id, stage=StageName.ENCODE, state=RunState.MADE)])
    assert state(catalog, clip_id) is ClipState.CANCELLED
    catalog.runs.start("night", StageName.ENCODE, [clip_id], attempt=2)
    assert state(catalog, clip_id) is ClipState.RUNNING
    catalog.runs.finish("night", [failed(clip_id, StageName.ENCODE, attempt=2, state=RunState.CANCELLED, error=None)])
    assert state(catalog, clip_id) is ClipState.CANCELLED


def test_runs_of_clips_that_the_batch_does_not_have_are_refused(catalog: Catalog, clip_id: str) -> None:
    with pytest.raises(StateError):
        catalog.runs.start("night", StageName.ENCODE, [clip_id, "f" * 64], attempt=1)
    with pytest.raises(StateError):
        catalog.runs.finish("night", [failed("f" * 64)])
    assert catalog.runs.of_clip("night", clip_id) == []


def test_runs_come_in_the_order_of_stages_and_attempts(catalog: Catalog, clip_id: str) -> None:
    runs = [failed(clip_id, stage, attempt=attempt) for stage in reversed(StageName) for attempt in (10, 2)]
    catalog.runs.finish("night", runs)
    found = [(run.stage, run.attempt) for run in catalog.runs.of_clip("night", clip_id)]
    assert found == [(stage, attempt) for stage in StageName for attempt in (2, 10)]


# -- late ends ---------------------------------------------------------------------------------------------------------


def seen(catalog: Catalog, clip_id: str) -> tuple[object, ...]:
    record = catalog.clips.get("night", clip_id)
    assert record is not None
    return record.state, record.failed_stage, record.reason, record.artifact_key


LATE: dict[str, Callable[[str, Manifest], Run]] = {
    "failed": lambda clip_id, manifest: failed(clip_id, StageName.MUX, attempt=1),
    "cancelled": lambda clip_id, manifest: failed(clip_id, StageName.MUX, attempt=1, state=RunState.CANCELLED),
    "made": lambda clip_id, manifest: done(clip_id, manifest, attempt=1),
}


@pytest.mark.parametrize("late", LATE)
@pytest.mark.parametrize("now", ["running", "done", "failed"])
def test_a_late_end_of_an_old_attempt_changes_no_state(
    catalog: Catalog, clip_id: str, store: LocalStore, now: str, late: str
) -> None:
    manifest = publish(store)
    catalog.artifacts.index([manifest])
    for attempt in (1, 2):
        catalog.runs.start("night", StageName.MUX, [clip_id], attempt=attempt)
    if now == "done":
        catalog.runs.finish("night", [done(clip_id, manifest, attempt=2)])
    if now == "failed":
        catalog.runs.finish("night", [failed(clip_id, StageName.MUX, attempt=2, error="second")])
    before = seen(catalog, clip_id)
    run = LATE[late](clip_id, manifest)
    catalog.runs.finish("night", [run])
    catalog.runs.finish("night", [run], tried_again=True)
    catalog.runs.withdraw("night", StageName.MUX, [clip_id], attempt=1)
    catalog.runs.start("night", StageName.MUX, [clip_id], attempt=1)
    assert seen(catalog, clip_id) == before
    assert [each.state for each in catalog.runs.of_clip("night", clip_id)][-1].value == {"done": "made"}.get(now, now)


def test_a_late_end_of_an_earlier_stage_changes_no_state(catalog: Catalog, clip_id: str) -> None:
    """The catalog did not hear of the attempt that made it good."""
    catalog.runs.start("night", StageName.ENCODE, [clip_id], attempt=1)
    catalog.runs.start("night", StageName.PREVIEW, [clip_id], attempt=1)
    before = seen(catalog, clip_id)
    catalog.runs.finish("night", [failed(clip_id, StageName.ENCODE, attempt=1)])
    assert seen(catalog, clip_id) == before


def test_an_earlier_stage_that_is_begun_again_counts(catalog: Catalog, clip_id: str, store: LocalStore) -> None:
    """Somebody clears the tasks of a delivered clip from an early stage on."""
    manifest = publish(store)
    catalog.artifacts.index([manifest])
    catalog.runs.start("night", StageName.ENCODE, [clip_id], attempt=1)
    catalog.runs.start("night", StageName.MUX, [clip_id], attempt=1)
    catalog.runs.finish("night", [done(clip_id, manifest)])
    catalog.runs.start("night", StageName.ENCODE, [clip_id], attempt=2)
    catalog.runs.finish("night", [failed(clip_id, StageName.ENCODE, attempt=2)])
    assert state(catalog, clip_id) is ClipState.FAILED
