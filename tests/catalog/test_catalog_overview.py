"""Batches in numbers: every clip counted once, and a guess at the end that is no wilder than what it rests on."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from magi2.artifacts import LocalStore
from magi2.catalog import Catalog, ClipState, PlannedClip, Run, RunState
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
    tally = overview.tallies(["night"])["night"]
    assert tally.clips == dict.fromkeys(ClipState, 0)
    assert (tally.stages, tally.began, tally.accelerator_seconds) == ({}, None, 0)


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
    tally = overview.tallies(["night", "absent"])["night"]
    assert tally.clips == {
        **dict.fromkeys(ClipState, 0),
        ClipState.RUNNING: 1,
        ClipState.DONE: 2,
        ClipState.FAILED: 1,
        ClipState.WAITING: 1,
    }
    assert (tally.found, tally.refused_rows) == (1, 2)
    preview = tally.stages[StageName.PREVIEW]
    assert (preview.total, preview.found, preview.left) == (5, 1, 1)
    assert preview.clips == {RunState.MADE: 2, RunState.FAILED: 1}
    assert (preview.seconds, preview.peak_memory_bytes) == (7.0, 9)
    assert (tally.stages[StageName.REFINE].total, tally.stages[StageName.REFINE].left) == (4, 1)
    assert tally.accelerator_seconds == 8 * 6.0
    assert tally.began == CREATED


def test_no_time_is_told_before_every_stage_has_an_example(catalog: Catalog, overview: Overview) -> None:
    stages = [StageName.ENHANCE, StageName.ENCODE, StageName.PREVIEW, StageName.DECODE, StageName.MUX]
    clips = [make_clip(n, profile_name="540p", profile_digest=PLAIN) for n in range(4)]
    ids = enter(catalog, clips)
    for clip_id in ids[:2]:
        runs = [made(clip_id, stage, 8.0) for stage in stages[:-1]]
        catalog.runs.finish("night", runs)
    assert overview.tallies(["night"])["night"].seconds_left(CREATED) is None, "no clip has passed mux"
    catalog.runs.finish("night", [made(ids[0], StageName.MUX, 8.0, state=RunState.FAILED, error="no")])
    assert overview.tallies(["night"])["night"].seconds_left(CREATED) is None, "none has passed it well"


def test_the_time_left_is_that_of_the_clips_not_finished(catalog: Catalog, overview: Overview, tmp_path: Path) -> None:
    manifest = publish(LocalStore(tmp_path / "store"))
    catalog.artifacts.index([manifest])
    clips = [make_clip(n, profile_name="540p", profile_digest=PLAIN) for n in range(3)]
    ids = enter(catalog, clips)
    stages = [StageName.ENHANCE, StageName.ENCODE, StageName.PREVIEW, StageName.DECODE]
    catalog.runs.finish("night", [made(ids[0], stage, 8.0) for stage in stages])
    catalog.runs.finish("night", [made(ids[0], StageName.MUX, 8.0, artifact_key=manifest.key)])
    catalog.runs.finish("night", [made(ids[1], StageName.ENHANCE, 8.0)])
    tally = overview.tallies(["night"])["night"]
    assert {stage: numbers.left for stage, numbers in tally.stages.items()} == {
        StageName.ENHANCE: 1,
        StageName.ENCODE: 2,
        StageName.PREVIEW: 2,
        StageName.DECODE: 2,
        StageName.MUX: 2,
    }
    # 9 x 8 s of work are left; 6 x 8 s were done in 96 s.
    assert tally.seconds_left(CREATED + timedelta(seconds=96)) == pytest.approx(144.0)


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
