"""How far a batch is, shard by shard."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from magi2.artifacts import ManifestDraft, Recipe
from magi2.catalog import BatchState, Catalog, NewBatch, PlannedClip, Run, RunState, open_catalog
from magi2.catalog.counts import BatchCounts
from magi2.catalog.overview import Overview
from magi2.catalog.shards import ShardPosition
from magi2.config.price import Price
from magi2.errors import InputError
from magi2.report.status import batch_status, recent_batches
from magi2.types import Clip, StageName

REFINED, PLAIN = "a" * 64, "b" * 64
NOW = datetime.now(UTC)
CLIPS = [Clip(f"prompt {n}", n, "1080p", REFINED) for n in range(4)] + [Clip("plain", 9, "540p", PLAIN)]
FIRST, SECOND = (Clip(f"plain {n}", n, "540p", PLAIN) for n in range(2))
REFINED_CLIP = Clip("refined", 3, "1080p", REFINED)
BEFORE = (StageName.ENHANCE, StageName.ENCODE)


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    """A batch of two shards; the first is at its preview stage."""
    catalog = open_catalog(f"sqlite:///{tmp_path}/catalog.sqlite")
    batch = NewBatch(batch_id="night", name="Night", source="night.jsonl", clips_total=5, budget=50.0)
    catalog.batches.create(batch, {REFINED: {"refiner": {"steps": 5}}, PLAIN: {"refiner": None}})
    catalog.clips.add("night", [PlannedClip(clip, 0) for clip in CLIPS[:4]] + [PlannedClip(CLIPS[4], 1)])
    for stage in BEFORE:
        catalog.runs.finish("night", [run(clip, stage, 1.0) for clip in CLIPS[:4]])
    catalog.runs.start("night", StageName.PREVIEW, [clip.clip_id for clip in CLIPS[:4]], attempt=1, shard=0)
    lost = run(CLIPS[1], StageName.PREVIEW, 30.0, RunState.FAILED)
    catalog.runs.finish("night", [run(CLIPS[0], StageName.PREVIEW, 100.0, accelerator_seconds=800.0), lost])
    catalog.batches.mark("night", BatchState.RUNNING)
    return catalog


def run(clip: Clip, stage: StageName, seconds: float, state: RunState = RunState.MADE, **values: object) -> Run:
    ended = {"started_at": NOW - timedelta(seconds=200), "finished_at": NOW, "shard": 0, "seconds": seconds}
    return Run(clip_id=clip.clip_id, stage=stage, state=state, **{**ended, **values})  # type: ignore[arg-type]


def enter_plain(catalog: Catalog, *more: Clip) -> None:
    """A batch without refiner whose first clip is done; each clip of `more` has a shard of its own."""
    catalog.batches.create(NewBatch(batch_id="plain", name="P", source="p", clips_total=2), {PLAIN: {"refiner": None}})
    catalog.clips.add("plain", [PlannedClip(FIRST, 0), PlannedClip(SECOND, 0)])
    catalog.clips.add("plain", [PlannedClip(clip, 1 + number) for number, clip in enumerate(more)])
    manifest = ManifestDraft(Recipe("mux", 1, seed=0)).complete({}, NOW)
    catalog.artifacts.index([manifest])
    took = {StageName.PREVIEW: 100.0, StageName.DECODE: 10.0}
    catalog.runs.finish("plain", [run(FIRST, stage, took.get(stage, 1.0)) for stage in (*BEFORE, *took)])
    catalog.runs.finish("plain", [run(FIRST, StageName.MUX, 5.0, artifact_key=manifest.key)])


def at_step(step: int) -> ShardPosition:
    return ShardPosition(
        shard=0,
        stage=StageName.PREVIEW,
        attempt=1,
        clip_id=CLIPS[2].clip_id,
        step=step,
        steps=100,
        steps_per_second=0.5,
        at=NOW,
    )


def test_each_shard_says_where_it_is(catalog: Catalog) -> None:
    catalog.shards.at_step("night", at_step(25))
    status = batch_status(catalog, "night", Price(36.0, "EUR"), at=NOW)
    first, second = status.shards
    assert (first.profile, first.stage, first.position) == ("1080p", StageName.PREVIEW, at_step(25))
    clips = first.counts.clips
    assert (clips.total, clips.done, clips.failed, clips.unfinished) == (4, 0, 1, 3)
    step = {name: first.to_json()[name] for name in ("clip_id", "step", "steps", "steps_per_second")}
    assert step == {"clip_id": CLIPS[2].clip_id, "step": 25, "steps": 100, "steps_per_second": 0.5}
    assert (first.counts.accelerator_seconds, first.cost) == (800.0, 8.0)
    assert (second.profile, second.stage, second.counts.clips.unfinished, second.cost) == ("540p", None, 1, 0.0)
    clips = status.counts.clips
    assert (status.cost, clips.done, clips.failed, status.is_finished) == (8.0, 0, 1, False)
    assert (clips.waiting, clips.running) == (1, 3)


def test_time_left_counts_clips_and_steps_that_are_to_come(catalog: Catalog) -> None:
    enter_plain(catalog)
    catalog.runs.finish("plain", [run(SECOND, stage, 1.0) for stage in BEFORE])
    catalog.runs.start("plain", StageName.PREVIEW, [SECOND.clip_id], attempt=1, shard=0)
    position = replace(at_step(25), clip_id=SECOND.clip_id)
    catalog.shards.at_step("plain", position)
    (shard,) = batch_status(catalog, "plain", None, at=NOW).shards
    assert shard.seconds_left == 75.0 + 10.0 + 5.0
    assert (shard.counts.clips.done, shard.counts.clips.unfinished, shard.cost) == (1, 1, None)


def test_time_left_is_unknown_until_every_stage_of_the_shard_has_an_example(catalog: Catalog) -> None:
    enter_plain(catalog, REFINED_CLIP)
    with_refiner, without = batch_status(catalog, "plain", None, at=NOW).shards[::-1]
    assert with_refiner.seconds_left is None
    assert without.seconds_left == 1.0 + 1.0 + 100.0 + 10.0 + 5.0


def test_a_batch_that_has_ended_has_no_time_left(catalog: Catalog) -> None:
    catalog.batches.mark("night", BatchState.CANCELLED)
    status = batch_status(catalog, "night", None, at=NOW)
    assert status.is_finished and status.seconds_left is None
    assert [shard.counts.clips.unfinished for shard in status.shards] == [0, 0]


def test_newest_batches_come_first_and_no_more_than_asked_for(catalog: Catalog) -> None:
    enter_plain(catalog)
    assert [each.batch.batch_id for each in recent_batches(catalog, None, limit=5, at=NOW)] == ["plain", "night"]
    (newest,) = recent_batches(catalog, None, limit=1, at=NOW)
    assert (newest.batch.batch_id, newest.counts.clips.done, newest.shards) == ("plain", 1, ())


def test_an_unknown_batch_is_refused_with_what_to_do(catalog: Catalog) -> None:
    with pytest.raises(InputError, match=r"there is no batch 'day' in the catalog .* \(magi2 status lists them"):
        batch_status(catalog, "day", None, at=NOW)


def test_batch_whose_clips_are_being_entered_has_a_status(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    catalog.batches.create(NewBatch(batch_id="new", name="N", source="n", clips_total=1), {PLAIN: {"refiner": None}})
    counts = Overview.counts

    def enter_a_clip_afterwards(self: Overview, batch_ids: list[str]) -> dict[str, BatchCounts]:
        found = counts(self, batch_ids)
        catalog.clips.add("new", [PlannedClip(FIRST, 0)])
        return found

    monkeypatch.setattr(Overview, "counts", enter_a_clip_afterwards)
    assert batch_status(catalog, "new", None, at=NOW).shards == ()
    assert [shard.counts.clips.total for shard in batch_status(catalog, "new", None, at=NOW).shards] == [1]
