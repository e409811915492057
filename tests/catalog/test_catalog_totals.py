"""The whole catalog in numbers."""

from __future__ import annotations

from datetime import timedelta

from magi2.artifacts import LocalStore
from magi2.catalog import BatchState, Catalog, ClipState, Run, RunState
from magi2.catalog.records import Actor, now
from magi2.catalog.totals import read_totals
from magi2.types import StageName
from tests.catalog.catalog_samples import CREATED, done, enter, failed, make_clip, publish

DAY_AGO = timedelta(hours=24)


def test_an_empty_catalog_counts_nothing(catalog: Catalog) -> None:
    totals = read_totals(catalog.database, recent_since=CREATED)
    assert not totals.batches and not totals.runs and not totals.loads and not totals.failures
    assert totals.clips == dict.fromkeys(ClipState, 0)
    assert (totals.waiting_since, totals.progress_at) == (None, None)


def test_clips_runs_and_loads_of_all_batches_are_counted(catalog: Catalog, store: LocalStore) -> None:
    first = enter(catalog, [make_clip(1), make_clip(2)])
    second = enter(catalog, [make_clip(3)], "other")
    manifest = publish(store)
    catalog.artifacts.index([manifest])
    ended = now()
    preview = Run(
        clip_id=first[0],
        stage=StageName.PREVIEW,
        state=RunState.MADE,
        seconds=10.0,
        accelerator_seconds=80.0,
        finished_at=ended,
    )
    old = Run(
        clip_id=second[0],
        stage=StageName.PREVIEW,
        state=RunState.MADE,
        seconds=5.0,
        accelerator_seconds=40.0,
        finished_at=ended - 2 * DAY_AGO,
    )
    catalog.runs.finish("night", [preview, done(first[0], manifest, finished_at=ended)])
    catalog.runs.finish("other", [old])
    for batch_id in ("night", "other"):
        catalog.shards.loaded(batch_id, 0, StageName.PREVIEW, attempt=1, seconds=3.0)
    catalog.shards.loaded("night", 0, StageName.PREVIEW, attempt=1, seconds=4.0)  # told again
    totals = read_totals(catalog.database, recent_since=ended - DAY_AGO)
    found = {ClipState.DONE: 1, ClipState.RUNNING: 1, ClipState.WAITING: 1}
    assert totals.clips == dict.fromkeys(ClipState, 0) | found
    assert totals.batches == {BatchState.WAITING: 2}
    preview_made, mux_made = (StageName.PREVIEW, RunState.MADE), (StageName.MUX, RunState.MADE)
    assert totals.runs == {preview_made: 2, mux_made: 1}
    assert (totals.seconds[preview_made], totals.accelerator_seconds[StageName.PREVIEW]) == (15.0, 120.0)
    assert (totals.recent_runs, totals.recent_seconds) == ({RunState.MADE: 2}, 10.0)
    assert (totals.loads, totals.recent_loads) == ({StageName.PREVIEW: 7.0}, 7.0)
    assert totals.progress_at == ended


def test_failures_are_counted_by_code_and_retries_among_them(catalog: Catalog) -> None:
    clip_ids = enter(catalog, [make_clip(1), make_clip(2)])
    lost = [failed(clip_id, error_code="infrastructure") for clip_id in clip_ids]
    catalog.runs.finish("night", [*lost, failed(clip_ids[0], StageName.ENCODE, error_code="image")])
    catalog.runs.start("night", StageName.PREVIEW, clip_ids[:1], attempt=2)
    totals = read_totals(catalog.database, recent_since=CREATED)
    assert totals.failures == {"infrastructure": 2, "image": 1}
    assert totals.retries == {"infrastructure": 1, "image": 0}


def test_the_queue_is_as_old_as_its_first_clip_that_may_go_on(catalog: Catalog) -> None:
    before = now()
    enter(catalog, [make_clip(1)])
    between = now()
    enter(catalog, [make_clip(2)], "other")
    found = read_totals(catalog.database, recent_since=CREATED).waiting_since
    assert found is not None and before <= found <= between
    catalog.control.pause("night", by=Actor("1", "ann"))
    found = read_totals(catalog.database, recent_since=CREATED).waiting_since
    assert found is not None and found >= between
    catalog.batches.mark("other", BatchState.CANCELLED)
    assert read_totals(catalog.database, recent_since=CREATED).waiting_since is None
