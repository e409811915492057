"""Batches: entered once, moved only where they may go, counted right."""

from __future__ import annotations

from dataclasses import replace

import pytest

from magi2.artifacts import LocalStore
from magi2.catalog import Actor, BatchState, Catalog, ClipState, PlannedClip, StateError
from magi2.types import StageName
from tests.catalog.catalog_samples import CREATED, PROFILES, done, enter, failed, make_batch, make_clip, publish


def test_batch_comes_back_as_entered(catalog: Catalog) -> None:
    batch = make_batch(
        clips_total=3, failure_limit=2, dag_id="d", run_id="r", requested_by="Zoë 🌊", parent_batch_id="old"
    )
    catalog.batches.create(batch, PROFILES)
    found = catalog.batches.get("night")
    assert found is not None
    assert (found.state, found.requested, found.finished_at) == (BatchState.WAITING, None, None)
    assert {name: getattr(found, name) for name in vars(batch)} == vars(batch)
    assert found.created_at == CREATED
    assert catalog.batches.get("other") is None


def test_batch_entered_again_is_updated_until_it_is_finished(catalog: Catalog) -> None:
    batch = make_batch(run_id="first")
    catalog.batches.create(batch, PROFILES)
    catalog.batches.mark("night", BatchState.RUNNING)
    catalog.batches.create(replace(batch, run_id="second"), PROFILES)
    found = catalog.batches.get("night")
    assert found is not None
    assert (found.run_id, found.state) == ("second", BatchState.RUNNING)
    catalog.batches.mark("night", BatchState.DONE)
    catalog.batches.create(replace(batch, run_id="third"), PROFILES)
    found = catalog.batches.get("night")
    assert found is not None
    assert (found.run_id, found.state) == ("second", BatchState.DONE)


def test_refused_rows_come_back_by_number(catalog: Catalog) -> None:
    catalog.batches.create(make_batch(), PROFILES)
    catalog.batches.refuse_rows("night", {12: "the prompt is empty", 3: "unknown column 'promt'"})
    catalog.batches.refuse_rows("night", {12: "seed is -1"})
    assert catalog.batches.refused_rows("night") == {3: "unknown column 'promt'", 12: "seed is -1"}
    assert catalog.batches.refused_rows("other") == {}


def test_rows_of_a_batch_that_was_never_entered_are_refused(catalog: Catalog) -> None:
    with pytest.raises(StateError, match="never entered"):
        catalog.batches.refuse_rows("night", {1: "empty"})


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ([], BatchState.RUNNING),
        ([BatchState.RUNNING], BatchState.DONE),
        ([BatchState.RUNNING], BatchState.RUNNING),
        ([BatchState.FAILED], BatchState.RUNNING),
        ([BatchState.CANCELLED], BatchState.RUNNING),
        ([BatchState.DONE], BatchState.DONE),
    ],
)
def test_batch_moves_where_it_may(catalog: Catalog, before: list[BatchState], after: BatchState) -> None:
    catalog.batches.create(make_batch(), PROFILES)
    for state in (*before, after):
        catalog.batches.mark("night", state)
    found = catalog.batches.get("night")
    assert found is not None
    assert found.state == after
    assert (found.finished_at is not None) == (after in ("done", "failed", "cancelled"))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (BatchState.RUNNING, BatchState.WAITING),
        (BatchState.DONE, BatchState.FAILED),
        (BatchState.CANCELLED, BatchState.DONE),
        (BatchState.FAILED, BatchState.CANCELLED),
    ],
)
def test_batch_does_not_move_where_it_may_not(catalog: Catalog, before: BatchState, after: BatchState) -> None:
    catalog.batches.create(make_batch(), PROFILES)
    catalog.batches.mark("night", before)
    with pytest.raises(StateError, match=f"night is {before} and cannot become {after}"):
        catalog.batches.mark("night", after)


def test_absent_batch_is_named(catalog: Catalog) -> None:
    with pytest.raises(StateError, match="no batch 'nigth'"):
        catalog.batches.mark("nigth", BatchState.RUNNING)


def test_batch_is_not_done_while_clips_are_unfinished(catalog: Catalog) -> None:
    clip_ids = enter(catalog, [make_clip(1), make_clip(2)])
    catalog.clips.mark("night", clip_ids[:1], ClipState.FAILED, reason="bad image")
    with pytest.raises(StateError, match="1 clips are not finished"):
        catalog.batches.mark("night", BatchState.DONE)
    catalog.batches.mark("night", BatchState.FAILED)


def test_cancelled_batch_takes_its_unfinished_clips_along(catalog: Catalog, store: LocalStore) -> None:
    finished, broken, running, waiting = enter(catalog, [make_clip(number) for number in range(4)])
    manifest = publish(store)
    catalog.artifacts.index([manifest])
    catalog.runs.finish("night", [done(finished, manifest), failed(broken)])
    catalog.runs.start("night", StageName.ENCODE, [running], attempt=1)
    catalog.batches.mark("night", BatchState.CANCELLED)
    clips = [catalog.clips.get("night", clip_id) for clip_id in (finished, broken, running, waiting)]
    assert [clip and clip.state for clip in clips] == ["done", "failed", "cancelled", "cancelled"]


def test_batches_are_found_newest_first_and_page_by_page(catalog: Catalog) -> None:
    for number in range(5):
        catalog.batches.create(
            make_batch(f"b{number}", name=f"Take {number} 100%", created_at=CREATED.replace(hour=number)), PROFILES
        )
    catalog.batches.mark("b3", BatchState.RUNNING)
    assert [batch.batch_id for batch in catalog.batches.search().rows] == ["b4", "b3", "b2", "b1", "b0"]
    page = catalog.batches.search(offset=1, limit=2)
    assert ([batch.batch_id for batch in page.rows], page.total) == (["b3", "b2"], 5)
    assert [batch.batch_id for batch in catalog.batches.search(state=BatchState.RUNNING).rows] == ["b3"]
    assert [batch.batch_id for batch in catalog.batches.search(text="take 2").rows] == ["b2"]
    assert catalog.batches.search(text="0%").total == 5
    assert catalog.batches.search(text="%4").total == 0  # a wildcard is a character like others


def test_lost_clips_are_those_that_no_retry_brings_back(catalog: Catalog) -> None:
    one, two, three = enter(catalog, [make_clip(1), make_clip(2), make_clip(3)])
    catalog.clips.add("night", [PlannedClip(make_clip(3), 1)])
    catalog.batches.refuse_rows("night", {7: "the prompt is empty"})
    catalog.runs.finish("night", [failed(one, seconds=1.0), failed(two), failed(three)])
    assert catalog.batches.lost_clips("night") == 2
    assert catalog.batches.lost_clips("night", lost_shard=1) == 3
    assert catalog.batches.lost_clips("other") == 0


def test_activity_of_running_batches_is_that_of_their_clips(catalog: Catalog) -> None:
    begun, ended = CREATED.replace(hour=6), CREATED.replace(hour=7)
    one, two = enter(catalog, [make_clip(1), make_clip(2)], "busy")
    for batch_id in ("idle", "paused", "over"):
        catalog.batches.create(make_batch(batch_id), PROFILES)
    for batch_id in ("busy", "idle", "paused", "over"):
        catalog.batches.mark(batch_id, BatchState.RUNNING)
    catalog.control.pause("paused", by=Actor("1", "ann"))
    catalog.batches.mark("over", BatchState.DONE)
    catalog.runs.start("busy", StageName.ENCODE, [one, two], attempt=1, at=begun)
    assert catalog.batches.last_activity() == {"busy": begun, "idle": CREATED}
    catalog.runs.finish("busy", [failed(one, StageName.ENCODE, finished_at=ended)])
    assert catalog.batches.last_activity(["busy", "over"]) == {"busy": ended, "over": CREATED}
    assert {batch.batch_id for batch in catalog.batches.unfinished()} == {"busy", "idle", "paused"}


def test_a_deleted_batch_is_forgotten_and_others_are_not(catalog: Catalog, store: LocalStore) -> None:
    manifest = publish(store)
    catalog.artifacts.index([manifest])
    clip = make_clip()
    for batch_id in ("night", "day"):
        (clip_id,) = enter(catalog, [clip], batch_id)
        catalog.runs.finish(batch_id, [done(clip_id, manifest)])
    with pytest.raises(StateError, match="cancel it before it is deleted"):
        catalog.batches.delete("night")
    catalog.batches.mark("night", BatchState.DONE)
    assert catalog.artifacts.of_others("night") == {manifest.key}
    catalog.batches.delete("night")
    assert catalog.batches.get("night") is None and catalog.runs.of_clip("night", clip_id) == []
    assert [batch.batch_id for batch in catalog.batches.search().rows] == ["day"]
    assert catalog.artifacts.get(manifest.key) is not None
    assert len(catalog.runs.of_clip("day", clip_id)) == 1
    catalog.batches.delete("absent")
