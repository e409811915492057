"""Batches in numbers: every clip counted once, and a guess at the end that is no wilder than what it rests on."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from magi2.artifacts import LocalStore
from magi2.catalog import BatchState, Catalog, ClipState, PlannedClip, Run, RunState
from magi2.catalog.overview import Overview
from magi2.types import StageName
from tests.catalog.catalog_samples import (
    CREATED,
    PLAIN,
    PROFILES,
    REFINED,
    done,
    enter,
    failed,
    make_batch,
    make_clip,
    publish,
)


@pytest.fixture
def overview(catalog: Catalog) -> Overview:
    return Overview(catalog.database)


def made(clip_id: str, stage: StageName, seconds: float, start: float = 0.0, **values: object) -> Run:
    run = Run(clip_id=clip_id, stage=stage, state=RunState.MADE, seconds=seconds, accelerator_seconds=8 * seconds)
    return replace(run, started_at=CREATED + timedelta(seconds=start), **values)  # type: ignore[arg-type]


def test_a_batch_of_nothing_has_numbers(catalog: Catalog, overview: Overview) -> None:
    enter(catalog, [])
    counts = overview.counts(["night"])["night"]
    assert counts.clips.by_state == dict.fromkeys(ClipState, 0)
    assert (counts.stages, counts.began, counts.accelerator_seconds) == ({}, None, 0)


def test_every_clip_is_counted_once_in_each_stage(catalog: Catalog, overview: Overview, tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "store")
    finished, early = publish(store, seed=1), publish(store, seed=2)
    catalog.artifacts.index([finished, early])
    clips = [make_clip(n) for n in range(4)]
    plain = make_clip(4, profile_name="540p", profile_digest=PLAIN)
    catalog.batches.create(make_batch(clips_total=5), PROFILES)
    found = PlannedClip(clips[3], None, early.key)
    catalog.clips.add("night", [*(PlannedClip(each, 0) for each in clips[:3]), found, PlannedClip(plain, 1)])
    ids = [clip.clip_id for clip in clips]
    catalog.runs.finish("night", [failed(ids[0], attempt=1, seconds=1.0)])
    catalog.runs.finish("night", [made(ids[0], StageName.PREVIEW, 2.0, attempt=2, peak_memory_bytes=7)])
    catalog.runs.finish("night", [made(ids[1], StageName.PREVIEW, 4.0, peak_memory_bytes=9)])
    catalog.runs.finish("night", [done(ids[1], finished)])
    catalog.runs.finish("night", [failed(ids[2])])
    catalog.batches.refuse_rows("night", {3: "empty", 4: "empty"})
    counts = overview.counts(["night", "absent"])["night"]
    assert counts.clips.by_state == {
        **dict.fromkeys(ClipState, 0),
        ClipState.RUNNING: 1,
        ClipState.DONE: 2,
        ClipState.FAILED: 1,
        ClipState.WAITING: 1,
    }
    assert (counts.clips.reused, counts.found, counts.refused_rows) == (1, 1, 2)
    preview = counts.stages[StageName.PREVIEW]
    assert (preview.total, preview.made, preview.reused, preview.failed, preview.left) == (5, 2, 1, 1, 1)
    assert (preview.seconds, preview.peak_memory_bytes) == (7.0, 9)
    assert (counts.stages[StageName.REFINE].total, counts.stages[StageName.REFINE].left) == (4, 1)
    assert counts.accelerator_seconds == 8 * 6.0
    assert counts.began == CREATED


def test_no_time_is_told_before_every_stage_has_an_example(catalog: Catalog, overview: Overview) -> None:
    stages = [StageName.ENHANCE, StageName.ENCODE, StageName.PREVIEW, StageName.DECODE, StageName.MUX]
    clips = [make_clip(n, profile_name="540p", profile_digest=PLAIN) for n in range(4)]
    ids = enter(catalog, clips)
    for clip_id in ids[:2]:
        runs = [made(clip_id, stage, 8.0) for stage in stages[:-1]]
        catalog.runs.finish("night", runs)
    assert overview.counts(["night"])["night"].seconds_left(CREATED) is None, "no clip has passed mux"
    catalog.runs.finish("night", [made(ids[0], StageName.MUX, 8.0, state=RunState.FAILED, error="no")])
    assert overview.counts(["night"])["night"].seconds_left(CREATED) is None, "none has passed it well"


def test_the_time_left_is_that_of_the_clips_not_finished(catalog: Catalog, overview: Overview, tmp_path: Path) -> None:
    manifest = publish(LocalStore(tmp_path / "store"))
    catalog.artifacts.index([manifest])
    clips = [make_clip(n, profile_name="540p", profile_digest=PLAIN) for n in range(3)]
    ids = enter(catalog, clips)
    stages = [StageName.ENHANCE, StageName.ENCODE, StageName.PREVIEW, StageName.DECODE]
    catalog.runs.finish("night", [made(ids[0], stage, 8.0) for stage in stages])
    catalog.runs.finish("night", [made(ids[0], StageName.MUX, 8.0, artifact_key=manifest.key)])
    catalog.runs.finish("night", [made(ids[1], StageName.ENHANCE, 8.0)])
    counts = overview.counts(["night"])["night"]
    assert {stage: numbers.left for stage, numbers in counts.stages.items()} == {
        StageName.ENHANCE: 1,
        StageName.ENCODE: 2,
        StageName.PREVIEW: 2,
        StageName.DECODE: 2,
        StageName.MUX: 2,
    }
    # 9 x 8 s of work are left; 6 x 8 s were done in 96 s.
    assert counts.seconds_left(CREATED + timedelta(seconds=96)) == pytest.approx(144.0)


def test_what_an_earlier_attempt_made_counts_as_made(catalog: Catalog, overview: Overview, tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "store")
    mine, others = publish(store, seed=1), publish(store, seed=2)
    catalog.artifacts.index([mine, others])
    again, reused = enter(catalog, [make_clip(1), make_clip(2)])
    catalog.runs.finish("night", [done(again, mine, seconds=8.0), failed(reused, StageName.MUX)])
    found = [done(again, mine), done(reused, others)]
    catalog.runs.finish("night", [replace(run, attempt=2, state=RunState.REUSED, seconds=0.1) for run in found])
    counts = overview.counts(["night"])["night"]
    mux = counts.stages[StageName.MUX]
    assert (mux.total, mux.made, mux.reused, mux.failed, mux.left) == (2, 1, 1, 0, 0)
    assert (counts.clips.done, counts.clips.reused, counts.found) == (2, 1, 0)
    assert catalog.runs.made("night") == {(again, StageName.MUX)}


def test_clips_that_a_second_plan_finds_finished_count_as_made_if_the_first_made_them(
    catalog: Catalog, overview: Overview, tmp_path: Path
) -> None:
    manifest = publish(LocalStore(tmp_path / "store"))
    catalog.artifacts.index([manifest])
    clip = make_clip(1)
    (clip_id,) = enter(catalog, [clip])
    catalog.runs.finish("night", [made(clip_id, StageName.PREVIEW, 2.0), done(clip_id, manifest)])
    catalog.clips.add("night", [PlannedClip(clip, None, manifest.key)])
    assert catalog.runs.made("night") == {(clip_id, StageName.PREVIEW), (clip_id, StageName.MUX)}
    counts = overview.counts(["night"])["night"]
    assert (counts.clips.done, counts.clips.reused, counts.found) == (1, 0, 0)
    assert {stage for stage, each in counts.stages.items() if each.made} == {StageName.PREVIEW, StageName.MUX}
    assert all((each.done, each.left) == (1, 0) for each in counts.stages.values())


def test_cancelled_clips_are_not_running_and_not_left(catalog: Catalog, overview: Overview) -> None:
    enter(catalog, [make_clip(1), make_clip(2)])
    catalog.runs.start("night", StageName.PREVIEW, [make_clip(1).clip_id], attempt=1)
    assert overview.counts(["night"])["night"].stages[StageName.PREVIEW].running == 1
    catalog.batches.mark("night", BatchState.CANCELLED)
    preview = overview.counts(["night"])["night"].stages[StageName.PREVIEW]
    assert (preview.total, preview.running, preview.left, preview.done) == (2, 0, 0, 0)


def test_stages_are_those_of_the_clips_profiles(catalog: Catalog, overview: Overview) -> None:
    enter(catalog, [make_clip(1), make_clip(2, profile_digest=PLAIN), make_clip(3, profile_digest=PLAIN)])
    enter(catalog, [make_clip(2, profile_digest=PLAIN)], "plain")
    counts = overview.counts(["night", "plain"])
    assert list(counts["night"].stages) == ["enhance", "encode", "preview", "refine", "decode", "mux"]
    stages = counts["night"].stages
    assert (stages[StageName.REFINE].left, stages[StageName.DECODE].left) == (1, 3)
    assert StageName.REFINE not in counts["plain"].stages


def test_shards_are_counted_by_state_and_by_stage(catalog: Catalog, overview: Overview) -> None:
    first, second = [make_clip(1), make_clip(2)], [make_clip(3, profile_name="540p", profile_digest=PLAIN)]
    clip_ids = enter(catalog, [*first, *second])
    catalog.clips.add("night", [PlannedClip(second[0], 1)])
    catalog.runs.finish("night", [made(clip_ids[0], StageName.ENCODE, 0.0)])
    cost = failed(clip_ids[1], StageName.ENCODE, accelerator_seconds=8.0)
    again = Run(clip_id=clip_ids[1], stage=StageName.ENCODE, state=RunState.REUSED, attempt=2)
    catalog.runs.finish("night", [cost, again])
    catalog.runs.start("night", StageName.PREVIEW, clip_ids[:2], attempt=1, shard=0)
    refined, plain = overview.shards("night").values()
    assert (refined.clips.total, refined.clips.running, refined.accelerator_seconds) == (2, 2, 8.0)
    assert (refined.stages[StageName.ENCODE].done, refined.stages[StageName.PREVIEW].running) == (2, 2)
    assert StageName.REFINE in refined.stages and StageName.REFINE not in plain.stages
    assert (plain.clips.total, plain.clips.waiting, plain.accelerator_seconds) == (1, 1, 0.0)
    assert all((stage.done, stage.running) == (0, 0) for stage in plain.stages.values())


def test_a_batch_that_was_finished_before_has_no_shards(catalog: Catalog, overview: Overview, tmp_path: Path) -> None:
    manifest = publish(LocalStore(tmp_path / "store"))
    catalog.artifacts.index([manifest])
    catalog.batches.create(make_batch(clips_total=1), PROFILES)
    catalog.clips.add("night", [PlannedClip(make_clip(1), None, manifest.key)])
    assert overview.shards("night") == {}


def test_a_run_of_airflow_leads_to_its_latest_batch(catalog: Catalog, overview: Overview) -> None:
    enter(catalog, [make_clip()], dag_id="magi2_render_batch", run_id="manual__1")
    again = {"created_at": CREATED + timedelta(hours=1), "name": "again"}
    enter(catalog, [make_clip()], batch_id="again", dag_id="magi2_render_batch", run_id="manual__1", **again)
    assert overview.batch_of_run("magi2_render_batch", "manual__1") == ("again", "again")
    assert overview.batch_of_run("magi2_render_batch", "manual__2") is None
    assert overview.batch_of_run("other", "manual__1") is None


def test_profiles_and_clips_of_a_batch_are_found(catalog: Catalog, overview: Overview) -> None:
    (clip_id,) = enter(catalog, [make_clip()])
    assert overview.profile(REFINED) == PROFILES[REFINED] and overview.profile("f" * 64) == {}
    assert overview.profiles("night") == [PROFILES[REFINED]]
    assert overview.unknown_clips("night", [clip_id, "f" * 64]) == ["f" * 64]


def test_artifacts_of_a_clip_are_those_of_its_batch_or_else_the_latest(catalog: Catalog, overview: Overview) -> None:
    clip = make_clip()
    for batch_id, hour in (("night", 0), ("second", 2), ("third", 1)):
        enter(catalog, [clip], batch_id=batch_id)
        at = CREATED + timedelta(hours=hour)
        runs = [made(clip.clip_id, StageName.PREVIEW, 1.0, artifact_key=f"preview of {batch_id}", finished_at=at)]
        if batch_id != "night":
            runs += [made(clip.clip_id, StageName.ENHANCE, 1.0, artifact_key=f"caption of {batch_id}", finished_at=at)]
        catalog.runs.finish(batch_id, runs)
    assert overview.artifact_keys("night", clip.clip_id) == {
        StageName.PREVIEW: "preview of night",
        StageName.ENHANCE: "caption of second",
    }
