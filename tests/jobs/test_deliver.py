"""The stage that brings clips to their targets: alone, again, to a full one, and beside other shards at work."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from pathlib import Path

import pytest

from magi2.batches.documents import find_faults
from magi2.batches.receipts import load_receipts, save_receipt
from magi2.batches.results import read_results
from magi2.catalog import Catalog, ClipState, open_catalog
from magi2.catalog.rebuild import rebuild
from magi2.delivery import places
from magi2.errors import InfrastructureError
from magi2.jobs.recorder import CatalogRecorder
from magi2.jobs.run import OnEvent, StageWork, run_stage_job
from magi2.recipes.result import StageResult
from magi2.report.build import build_report
from magi2.runtime.job import StageJob
from magi2.runtime.worker import demand_retry
from magi2.types import Delivery, StageName
from tests.jobs.job_samples import CLIPS, Computer, make
from tests.jobs.studio import A_CLIP, B_CLIP, Studio, publish, states

SPOKEN = {"audio_event_timeline": [{"time_range_seconds": [1, 2], "spoken_text": "Hello"}]}


@pytest.fixture
def studio(tmp_path: Path) -> Studio:
    return Studio(tmp_path)


def test_a_clip_comes_with_its_pictures_subtitles_and_a_receipt(studio: Studio) -> None:
    key = publish(studio.store, A_CLIP, data=SPOKEN)
    plan = studio.planned([A_CLIP])
    assert states(studio.deliver(plan)) == ["made"]
    names = {f"night/0{ending}" for ending in (".mp4", ".jpg", ".contact_sheet.jpg", ".vtt", ".json")}
    assert studio.files().keys() == names and studio.files()["night/0.mp4"] == b"clip.mp4 of 0"
    (receipt,) = load_receipts(studio.store, plan.batch_id, A_CLIP.clip_id)
    assert (receipt.target, receipt.name, receipt.key) == ("studio", "night/0.mp4", key)
    assert receipt.files.keys() == names and receipt.stored_sha256 == receipt.sha256 and receipt.delivered_at
    assert list(find_faults(studio.store, plan.batch_id)) == []


def test_the_stage_can_be_run_again_alone_and_brings_what_is_not_there(studio: Studio) -> None:
    publish(studio.store, A_CLIP)
    plan = studio.planned([A_CLIP])
    studio.deliver(plan)
    before = studio.files()
    assert states(studio.deliver(plan, attempt=2)) == ["reused"] and studio.files() == before
    (studio.folder / "night" / "0.mp4").unlink()
    assert states(studio.deliver(plan, attempt=3)) == ["made"] and studio.files() == before


def test_a_clip_is_there_while_another_shard_renders(studio: Studio) -> None:
    plan = studio.planned([A_CLIP, B_CLIP], clips_per_shard=1)

    def muxed(work: StageWork, on_event: OnEvent) -> list[StageResult]:
        results = [StageResult(work.job.stage, clip, "made", 1.0, publish(studio.store, clip)) for clip in work.clips]
        return results

    def rendering(work: StageWork, on_event: OnEvent) -> list[StageResult]:
        run_stage_job(studio.job(plan, StageName.MUX), studio, muxed)
        studio.deliver(plan)
        assert "night/0.mp4" in studio.files() and "night/1.mp4" not in studio.files()
        return Computer(studio.store)(work, on_event)

    for stage in (StageName.ENHANCE, StageName.ENCODE):
        run_stage_job(studio.job(plan, stage, 1), studio, Computer(studio.store))
    assert states(list(run_stage_job(studio.job(plan, StageName.PREVIEW, 1), studio, rendering))) == ["made"]


def test_clips_without_a_target_return_at_once(studio: Studio) -> None:
    plan = studio.planned(CLIPS)
    assert studio.job(plan, StageName.DELIVER).clips == () and studio.deliver(plan) == []
    assert "deliver" not in plan.missing


def test_another_file_stays_and_the_clip_gets_its_id(studio: Studio) -> None:
    publish(studio.store, A_CLIP)
    plan = studio.planned([A_CLIP])
    taken = studio.folder / "night" / "0.jpg"  # that of a companion alone
    taken.parent.mkdir()
    taken.write_bytes(b"somebody's")
    assert states(studio.deliver(plan)) == ["made"]
    (receipt,) = load_receipts(studio.store, plan.batch_id, A_CLIP.clip_id)
    assert receipt.name == f"night/0_{A_CLIP.short_id}.mp4" and taken.read_bytes() == b"somebody's"
    assert "night/0.mp4" not in studio.files()
    assert states(studio.deliver(plan, attempt=2)) == ["reused"]


def test_a_clip_whose_names_are_all_taken_fails_alone_and_replaces_nothing(studio: Studio) -> None:
    publish(studio.store, A_CLIP)
    publish(studio.store, B_CLIP)
    plan = studio.planned([A_CLIP, B_CLIP])
    for name in ("0", f"0_{A_CLIP.short_id}"):
        (studio.folder / "night").mkdir(exist_ok=True)
        (studio.folder / "night" / f"{name}.mp4").write_bytes(b"somebody's")
    failed, good = studio.deliver(plan)
    assert (failed.state, good.state) == ("failed", "made")
    assert failed.error is not None and "other files have the names night/0.mp4" in str(failed.error)
    assert not failed.error.retryable and studio.files()["night/0.mp4"] == b"somebody's"


def test_a_full_target_fails_the_clip_for_now_and_the_next_try_delivers(
    studio: Studio, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(studio.store, A_CLIP)
    publish(studio.store, B_CLIP)
    plan = studio.planned([A_CLIP, B_CLIP])
    copy = places.shutil.copyfileobj

    def fill(source: object, target: object, size: int) -> None:
        if b"of 0" in source.peek(20):  # type: ignore[attr-defined]
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        copy(source, target, size)  # type: ignore[type-var]

    with monkeypatch.context() as full:
        full.setattr(places.shutil, "copyfileobj", fill)
        results = studio.deliver(plan, is_last_try=False)
    failed, good = results
    assert (failed.state, good.state) == ("failed", "made") and isinstance(failed.error, InfrastructureError)
    assert "target studio" in str(failed.error) and "No space left" in str(failed.error)
    told = read_results(studio.store, plan.batch_id, 0, StageName.DELIVER)
    assert [row.clip_id for row in told] == [B_CLIP.clip_id], "what is tried again has not failed yet"
    with pytest.raises(InfrastructureError, match="1 of 2 clips failed"):
        demand_retry(StageJob(plan.batch_id, 0, StageName.DELIVER, "s", is_last_try=False), results)
    assert states(studio.deliver(plan, attempt=2)) == ["made", "reused"] and "night/0.mp4" in studio.files()


def test_a_delivery_that_was_killed_before_its_receipt_is_found_again(studio: Studio) -> None:
    publish(studio.store, A_CLIP)
    plan = studio.planned([A_CLIP])
    studio.deliver(plan)
    (receipt,) = load_receipts(studio.store, plan.batch_id, A_CLIP.clip_id)
    begun = receipt.model_copy(update={"delivered_at": None})
    save_receipt(studio.store, plan.batch_id, A_CLIP.clip_id, begun)
    assert states(studio.deliver(plan, attempt=2)) == ["reused"]
    (found,) = load_receipts(studio.store, plan.batch_id, A_CLIP.clip_id)
    assert found.delivered_at is not None and len(studio.files()) == 4


def test_a_clip_of_many_places_is_brought_to_each(studio: Studio) -> None:
    clip = replace(A_CLIP, deliveries=(Delivery("studio", "a.mp4"), Delivery("studio", "b/a.mp4")))
    publish(studio.store, clip)
    plan = studio.planned([clip])
    studio.deliver(plan)
    assert {"a.mp4", "b/a.mp4"} <= studio.files().keys()
    assert len(load_receipts(studio.store, plan.batch_id, clip.clip_id)) == 2


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    return open_catalog(f"sqlite:///{tmp_path / 'catalog.sqlite'}")


def test_a_finished_clip_with_a_target_is_only_delivered(studio: Studio, catalog: Catalog) -> None:
    key = publish(studio.store, A_CLIP)
    recorder = CatalogRecorder(studio.store, lambda: catalog)
    plan = studio.planned([A_CLIP])
    recorder.on_plan(plan)
    assert (plan.cached, plan.missing) == ((), {"deliver": 1})
    waiting = catalog.clips.get(plan.batch_id, A_CLIP.clip_id)
    assert waiting is not None and (waiting.state, waiting.artifact_key) == (ClipState.WAITING, key)
    assert all(studio.job(plan, stage).clips == () for stage in StageName.DELIVER.before)
    studio.deliver(plan, recorder=recorder)
    done = catalog.clips.get(plan.batch_id, A_CLIP.clip_id)
    assert done is not None and (done.state, done.artifact_key) == (ClipState.DONE, key)
    (clip,) = build_report(studio.store, plan.batch_id).done
    assert (clip.key, clip.reused, list(clip.stages)) == (key, True, ["deliver"])
    assert [(each.target, each.name) for each in clip.deliveries] == [("studio", "night/0.mp4")]


def test_a_clip_is_done_when_it_is_delivered_for_catalog_report_and_rebuild(
    studio: Studio, catalog: Catalog, tmp_path: Path
) -> None:
    recorder = CatalogRecorder(studio.store, lambda: catalog)
    plan = studio.planned([A_CLIP])
    recorder.on_plan(plan)
    key = publish(studio.store, A_CLIP)
    for stage in plan.profiles[A_CLIP.profile_digest].stages:
        if stage not in (StageName.ENHANCE, StageName.MUX):
            make(studio.store, stage, A_CLIP)
        run_stage_job(studio.job(plan, stage), studio, Computer(studio.store), recorder=recorder)
    rendered = catalog.clips.get(plan.batch_id, A_CLIP.clip_id)
    assert rendered is not None and (rendered.state, rendered.artifact_key) == (ClipState.RUNNING, key)
    report = build_report(studio.store, plan.batch_id)
    assert [clip.stage for clip in report.failed] == ["deliver"]

    (studio.folder / "night").write_bytes(b"in the way")
    assert states(studio.deliver(plan, recorder=recorder)) == ["failed"]
    failed = catalog.clips.get(plan.batch_id, A_CLIP.clip_id)
    assert failed is not None and (failed.state, failed.failed_stage) == (ClipState.FAILED, "deliver")
    assert failed.artifact_key == key, "its file can still be looked at"

    (studio.folder / "night").unlink()
    (studio.folder / "night").mkdir()
    (studio.folder / "night" / "0.mp4").write_bytes(b"somebody's")
    assert states(studio.deliver(plan, recorder=recorder, attempt=2)) == ["made"]
    done = catalog.clips.get(plan.batch_id, A_CLIP.clip_id)
    placed = (Delivery("studio", f"night/0_{A_CLIP.short_id}.mp4"),)
    assert done is not None and (done.state, done.clip.deliveries) == (ClipState.DONE, placed)
    assert [clip.clip_id for clip in build_report(studio.store, plan.batch_id).done] == [A_CLIP.clip_id]

    other = open_catalog(f"sqlite:///{tmp_path / 'other.sqlite'}")
    rebuild(studio.store, other)
    rebuilt = other.clips.get(plan.batch_id, A_CLIP.clip_id)
    assert rebuilt is not None
    assert (rebuilt.state, rebuilt.artifact_key, rebuilt.clip.deliveries) == (ClipState.DONE, key, placed)
