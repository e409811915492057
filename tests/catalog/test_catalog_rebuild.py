"""A catalog made from the store claims what manifests prove, and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from magi2.artifacts import LocalStore
from magi2.catalog import Actor, ArtifactRecord, BatchState, Catalog, ClipQuery, ClipState, Request, RunState
from magi2.catalog.compare import ProblemKind
from magi2.catalog.rebuild import rebuild
from magi2.catalog.verify import verify
from magi2.types import Clip, FigureImage, StageName
from tests.batch_counts import counts_of
from tests.catalog.catalog_samples import (
    CREATED,
    PLAIN,
    PROFILES,
    REFINED,
    StoredPlan,
    done,
    enter,
    failed,
    make_batch,
    make_clip,
    publish,
    result,
)

SHARD = {"batch_id": "night", "shard": 0, "profile_digest": REFINED}


def states(catalog: Catalog, clips: list[Clip]) -> list[ClipState]:
    records = [catalog.clips.get("night", clip.clip_id) for clip in clips]
    return [record.state for record in records if record]


def batch_state(catalog: Catalog) -> BatchState:
    batch = catalog.batches.get("night")
    assert batch is not None
    return batch.state


def test_lost_catalog_comes_back_from_the_store(catalog: Catalog, store: LocalStore) -> None:
    manifests = [publish(store, seed=seed) for seed in range(2)]
    other = publish(store, "preview", seed=5)
    made, cached, broken = clips = [
        make_clip(1, figures=(FigureImage(1, Path("/in/a.png"), "c" * 64),), tags=("demo",), priority=2),
        make_clip(2, profile_digest=PLAIN),
        make_clip(3),
    ]
    plan = StoredPlan(store)
    plan.save([[made, broken]], [(cached, manifests[1].key)])
    plan.save_results(0, "enhance", [result(made), result(broken, "failed", error_code="input", error="empty")])
    plan.save_results(0, "preview", [result(made, key=other.key, flags=["tiled"])], attempt=3)
    plan.save_results(0, "mux", [result(made, "reused", key=manifests[0].key)])
    report = rebuild(store, catalog)
    assert (report.artifacts, report.batches, report.clips, report.problems) == (3, 1, 3, ())
    assert states(catalog, clips) == [ClipState.DONE, ClipState.DONE, ClipState.FAILED]
    first = catalog.clips.get("night", made.clip_id)
    assert first is not None
    assert (first.clip, first.clip.tags, first.clip.priority, first.shard) == (made, ("demo",), 2, 0)
    assert first.artifact_key == manifests[0].key
    last = catalog.clips.get("night", broken.clip_id)
    assert last is not None
    assert (last.failed_stage, last.reason) == ("enhance", "empty")
    runs = catalog.runs.of_clip("night", made.clip_id)
    assert [(run.stage, run.state, run.attempt) for run in runs] == [
        ("enhance", "made", 1),
        ("preview", "made", 3),
        ("mux", "reused", 1),
    ]
    assert runs[1].flags == ("tiled",)
    batch = catalog.batches.get("night")
    assert batch is not None
    assert (batch.state, batch.created_at, batch.clips_total) == (BatchState.FAILED, CREATED, 3)
    assert (batch.on_bad_rows, batch.dag_id, batch.run_id) == ("skip", "magi2_render_batch", "manual__1")
    assert catalog.batches.refused_rows("night") == {3: "the prompt is empty"}
    for manifest in (*manifests, other):
        assert catalog.artifacts.get(manifest.key) == ArtifactRecord.of(manifest)


def test_rebuilding_twice_gives_the_same(catalog: Catalog, store: LocalStore) -> None:
    manifest, clip = publish(store), make_clip()
    StoredPlan(store).save([], [(clip, manifest.key)])
    first = rebuild(store, catalog)
    before = catalog.clips.search().rows
    assert rebuild(store, catalog) == first
    after = catalog.clips.search().rows
    assert [(record.state, record.artifact_key) for record in before] == [
        (record.state, record.artifact_key) for record in after
    ]
    assert batch_state(catalog) is BatchState.DONE


def test_clip_without_its_manifest_is_waiting(catalog: Catalog, store: LocalStore) -> None:
    gone, wrong_stage, unnamed = clips = [make_clip(number) for number in range(3)]
    preview = publish(store, "preview")
    plan = StoredPlan(store)
    plan.save([[gone, wrong_stage]], [(unnamed, None)])
    plan.save_results(0, "mux", [result(gone, key="e" * 64), result(wrong_stage, key=preview.key)])
    rebuild(store, catalog)
    assert states(catalog, clips) == [ClipState.WAITING] * 3
    assert batch_state(catalog) is BatchState.WAITING
    assert catalog.runs.of_clip("night", gone.clip_id)[0].state is RunState.MADE  # that it was made stays history


def test_damaged_artifact_proves_nothing(catalog: Catalog, store: LocalStore) -> None:
    manifest, clip = publish(store), make_clip()
    StoredPlan(store).save([], [(clip, manifest.key)])
    catalog.artifacts.index([manifest])
    next(store.root.glob("artifacts/mux/*/*/clip.*")).unlink()
    report = rebuild(store, catalog)
    assert [(problem.kind, problem.place) for problem in report.problems] == [
        (ProblemKind.DAMAGED, f"mux/{manifest.key}")
    ]
    assert (report.artifacts, report.artifacts_forgotten) == (0, 1)
    assert states(catalog, [clip]) == [ClipState.WAITING]


def test_artifacts_that_nothing_proves_go_away_and_their_batch_stays(catalog: Catalog, store: LocalStore) -> None:
    manifest = publish(store)
    catalog.artifacts.index([manifest])
    (clip_id,) = enter(catalog, [make_clip()], "ghost")
    catalog.runs.finish("ghost", [done(clip_id, manifest)])
    store.remove("mux", manifest.key)
    report = rebuild(store, catalog, force=True)
    assert (report.artifacts_forgotten, report.batches_unproven) == (1, 1)
    assert catalog.artifacts.totals() == {}
    record = catalog.clips.get("ghost", clip_id)
    assert record is not None
    assert (record.state, record.artifact_key) == (ClipState.WAITING, None)
    assert [run.state for run in catalog.runs.of_clip("ghost", clip_id)] == [RunState.MADE]


def test_row_of_an_artifact_made_anew_is_replaced(catalog: Catalog, store: LocalStore) -> None:
    first = publish(store, host="one")
    catalog.artifacts.index([first])
    store.remove("mux", first.key)
    second = publish(store, host="two")
    rebuild(store, catalog)
    assert catalog.artifacts.get(first.key) == ArtifactRecord.of(second)


def test_wish_for_a_running_batch_is_kept(catalog: Catalog, store: LocalStore) -> None:
    StoredPlan(store).save([[make_clip()]])
    rebuild(store, catalog)
    catalog.control.cancel("night", by=Actor("1", "ann"))
    rebuild(store, catalog)
    batch = catalog.batches.get("night")
    assert batch is not None
    assert (batch.requested, batch.state) == (Request.CANCEL, BatchState.WAITING)


def test_what_only_the_catalog_knows_stays(catalog: Catalog, store: LocalStore) -> None:
    manifest, clips = publish(store), [make_clip(number) for number in range(4)]
    finished, dropped, retried, at_work = clips
    plan = StoredPlan(store)
    plan.save([clips])
    plan.save_results(0, "encode", [result(each, "failed", error="bad image") for each in clips[1:]])
    enter(catalog, clips)
    catalog.artifacts.index([manifest])
    catalog.runs.finish("night", [done(finished.clip_id, manifest, accelerator_seconds=80.0, host="node-7")])
    catalog.runs.finish("night", [failed(retried.clip_id, StageName.ENCODE, attempt=each) for each in (1, 2)])
    catalog.runs.start("night", StageName.ENCODE, [at_work.clip_id], attempt=2)
    catalog.clips.mark("night", [dropped.clip_id], ClipState.CANCELLED)
    for _ in range(2):
        rebuild(store, catalog)
        assert states(catalog, clips) == [ClipState.DONE, ClipState.CANCELLED, ClipState.FAILED, ClipState.RUNNING]
        assert batch_state(catalog) is BatchState.RUNNING
    assert counts_of(catalog, "night").accelerator_seconds == 80.0
    assert [run.host for run in catalog.runs.of_clip("night", finished.clip_id)] == ["node-7"]
    assert len(catalog.runs.of_clip("night", retried.clip_id)) == 2


def test_catalog_that_fell_behind_catches_up(catalog: Catalog, store: LocalStore) -> None:
    manifest = publish(store)
    made, broken, lost = clips = [make_clip(number) for number in range(3)]
    plan = StoredPlan(store)
    plan.save([clips], refused=[], options={"failure_limit": 2, "on_bad_rows": "refuse"})
    enter(catalog, clips)
    catalog.runs.start("night", StageName.ENCODE, [clip.clip_id for clip in (made, broken)], attempt=1, host="node-7")
    plan.save_results(0, "encode", [result(made), result(broken, "failed", error="bad image")], attempt=2)
    plan.save_results(0, "mux", [result(made, key=manifest.key)])
    plan.put(
        "report.json",
        {
            "failed": [
                {"clip_id": lost.clip_id, "stage": "preview", "reason": "out of memory", "row": None},
                {"clip_id": made.clip_id, "stage": "preview", "reason": "of an earlier run", "row": None},
                {"clip_id": None, "row": 3, "stage": "plan", "reason": "empty"},
            ]
        },
    )
    rebuild(store, catalog)
    assert states(catalog, clips) == [ClipState.DONE, ClipState.FAILED, ClipState.FAILED]
    record = catalog.clips.get("night", lost.clip_id)
    assert record is not None
    assert (record.failed_stage, record.reason) == ("preview", "out of memory")
    assert batch_state(catalog) is BatchState.DONE


def test_run_that_ended_unheard_is_brought_to_its_end(catalog: Catalog, store: LocalStore) -> None:
    clip = make_clip()
    plan = StoredPlan(store)
    plan.save([[clip]])
    enter(catalog, [clip])
    catalog.runs.start("night", StageName.PREVIEW, [clip.clip_id], attempt=1, host="node-7")
    plan.save_results(0, "preview", [result(clip, key="e" * 64)])
    rebuild(store, catalog)
    (run,) = catalog.runs.of_clip("night", clip.clip_id)
    assert (run.state, run.host, run.seconds, run.artifact_key) == (RunState.MADE, "node-7", 2.5, "e" * 64)
    assert run.started_at is not None
    assert states(catalog, [clip]) == [ClipState.RUNNING]


def test_clips_that_the_plan_has_no_more_stay_for_what_they_cost(catalog: Catalog, store: LocalStore) -> None:
    planned, tried, finished = make_clip(1), make_clip(2), make_clip(3)
    manifest = publish(store)
    StoredPlan(store).save([[planned]])
    enter(catalog, [planned, tried, finished])
    catalog.artifacts.index([manifest])
    catalog.runs.finish("night", [failed(tried.clip_id, attempt=2, accelerator_seconds=40.0, host="node-7")])
    catalog.runs.start("night", StageName.PREVIEW, [tried.clip_id], attempt=3)
    catalog.runs.finish("night", [done(finished.clip_id, manifest, accelerator_seconds=2.0)])
    rebuild(store, catalog)
    assert catalog.batches.accelerator_seconds(["night"]) == {"night": 42.0}
    assert states(catalog, [planned, tried, finished]) == [ClipState.WAITING, ClipState.CANCELLED, ClipState.DONE]
    assert not list(verify(store, catalog, digests=False))


def test_clips_that_were_never_planned_go_away(catalog: Catalog, store: LocalStore) -> None:
    planned, stray = make_clip(1), make_clip(2)
    StoredPlan(store).save([[planned]])
    enter(catalog, [planned, stray])
    rebuild(store, catalog)
    assert [record.clip for record in catalog.clips.search().rows] == [planned]


def test_done_batch_whose_file_was_lost_waits_again(catalog: Catalog, store: LocalStore) -> None:
    manifest, clip = publish(store), make_clip()
    StoredPlan(store).save([], [(clip, manifest.key)])
    rebuild(store, catalog)
    assert batch_state(catalog) is BatchState.DONE
    store.remove("mux", manifest.key)
    rebuild(store, catalog, force=True)
    assert (states(catalog, [clip]), batch_state(catalog)) == ([ClipState.WAITING], BatchState.WAITING)


def test_work_goes_on_after_a_rebuild_in_its_midst(catalog: Catalog, store: LocalStore) -> None:
    clip, manifest = make_clip(), publish(store)
    StoredPlan(store).save([[clip]])
    enter(catalog, [clip])
    catalog.runs.start("night", StageName.MUX, [clip.clip_id], attempt=1)
    rebuild(store, catalog)
    catalog.runs.finish("night", [done(clip.clip_id, manifest)])
    assert states(catalog, [clip]) == [ClipState.DONE]
    catalog.batches.mark("night", BatchState.DONE)


@pytest.mark.parametrize(("limit", "state"), [(1, BatchState.FAILED), (2, BatchState.DONE)])
def test_failure_limit_decides_what_became_of_a_batch(
    catalog: Catalog, store: LocalStore, limit: int, state: BatchState
) -> None:
    clip = make_clip()
    plan = StoredPlan(store)
    plan.save([[clip]], options={"failure_limit": limit, "on_bad_rows": "refuse"})
    plan.save_results(0, "encode", [result(clip, "failed", error="bad image")])
    rebuild(store, catalog)
    assert batch_state(catalog) is state


def test_report_tells_what_was_skipped_and_what_was_cancelled(catalog: Catalog, store: LocalStore) -> None:
    over, cancelled = clips = [make_clip(1), make_clip(2)]
    plan = StoredPlan(store)
    plan.save([clips], options={"failure_limit": 0, "on_bad_rows": "refuse", "priority": 7, "budget": 2.5})
    budget = {"clip_id": over.clip_id, "stage": "encode", "reason": "budget: 3.00 of 2.50 EUR spent"}
    by_ann = {"clip_id": cancelled.clip_id, "stage": "encode", "reason": "cancelled"}
    plan.put("report.json", {"failed": [], "over_budget": [budget], "cancelled": [by_ann]})
    rebuild(store, catalog)
    assert states(catalog, clips) == [ClipState.SKIPPED, ClipState.CANCELLED]
    batch = catalog.batches.get("night")
    assert batch is not None
    assert (batch.state, batch.priority, batch.budget) == (BatchState.CANCELLED, 7, 2.5)


def test_results_of_an_earlier_plan_are_history(catalog: Catalog, store: LocalStore) -> None:
    one, two, three = clips = [make_clip(number) for number in range(3)]
    manifest = publish(store)
    plan = StoredPlan(store)
    plan.save([[two, three]], [(one, manifest.key)])
    plan.save_results(0, "preview", [result(two)])
    plan.save_results(1, "preview", [result(two, "failed", error="old"), result(three, "failed", error="old")])
    plan.save_results(1, "encode", [result(make_clip(9))])
    rebuild(store, catalog)
    assert states(catalog, clips) == [ClipState.DONE, ClipState.WAITING, ClipState.WAITING]
    assert [run.state for run in catalog.runs.of_clip("night", two.clip_id)] == [RunState.MADE]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("batch.json", {"batch_id": "night"}, "batch.json: name: Field required"),
        ("batch.json", [], "batch.json"),
        ("cached.json", {"clips": []}, "cached.json"),
        ("shards/0.json", {**SHARD, "clips": []}, "counts 1 clips, the others hold 0"),
        ("shards/0.json", {**SHARD, "shard": "zero", "clips": []}, "shards/0.json: shard"),
        ("shards/0.json", {**SHARD, "version": 99, "clips": []}, "shards/0.json has version 99"),
        ("report.json", {"failed": [{"clip_id": 3}]}, "report.json: failed.0.clip_id"),
        ("results/0.mux.json", {"shard": 0}, "results/0.mux.json"),
        (
            "results/0.mux.json",
            {"batch_id": "night", "shard": 0, "stage": "muxx", "attempt": 1, "results": []},
            "stage",
        ),
    ],
)
def test_unreadable_document_is_named_and_disturbs_no_other_batch(
    catalog: Catalog, store: LocalStore, name: str, content: Any, message: str
) -> None:
    plan = StoredPlan(store)
    plan.save([[make_clip()]])
    plan.put(name, content)
    StoredPlan(store, "other").save([[make_clip()]])
    report = rebuild(store, catalog)
    (problem,) = report.problems
    assert (problem.kind, problem.place) == (ProblemKind.DAMAGED, "batches/night")
    assert message in problem.message
    assert [batch.batch_id for batch in catalog.batches.search().rows] == ["other"]


@pytest.mark.parametrize("stray", [".nfs000000000001", ".0.mux.json.swp", "0.mux.json~", "0.mux.json.bak"])
def test_stray_file_beside_documents_is_none(catalog: Catalog, store: LocalStore, stray: str) -> None:
    plan = StoredPlan(store)
    plan.save([[make_clip()]])
    plan.save_results(0, "enhance", [result(make_clip())])
    for folder in ("", "results", "shards"):
        (store.root / "documents/batches/night" / folder / stray).write_bytes(b"\xff{")
    assert rebuild(store, catalog).problems == ()
    assert list(verify(store, catalog, digests=False)) == []


def test_missing_shard_and_forged_clip_are_named(catalog: Catalog, store: LocalStore) -> None:
    plan = StoredPlan(store)
    plan.save([[make_clip()]])
    (store.root / "documents/batches/night/shards/0.json").unlink()
    assert "shards/0.json: document is missing" in rebuild(store, catalog).problems[0].message
    plan.save([[make_clip()]])
    path = store.root / "documents/batches/night/shards/0.json"
    path.write_text(path.read_text().replace("prompt 0", "prompt 1"))
    assert "has the content of" in rebuild(store, catalog).problems[0].message


def test_batch_that_is_still_being_planned_is_left_out(catalog: Catalog, store: LocalStore) -> None:
    StoredPlan(store).put("shards/0.json", {"shard": 0, "clips": []})
    assert rebuild(store, catalog).problems == ()
    assert catalog.batches.search().total == 0


def test_batches_whose_names_begin_alike_are_kept_apart(catalog: Catalog, store: LocalStore) -> None:
    manifest, clip = publish(store), make_clip()
    for batch_id in ("night", "night-2", "night.2"):
        StoredPlan(store, batch_id).save([], [(clip, manifest.key)])
    assert rebuild(store, catalog).batches == 3
    assert catalog.clips.search(ClipQuery(state=ClipState.DONE)).total == 3


def test_batch_without_documents_stays(catalog: Catalog, store: LocalStore) -> None:
    catalog.batches.create(make_batch(), PROFILES)
    report = rebuild(store, catalog, force=True)
    assert (report.artifacts, report.batches, report.batches_unproven) == (0, 0, 1)
    assert catalog.batches.get("night") is not None


def test_failed_attempt_made_good_later_fails_nobody(catalog: Catalog, store: LocalStore) -> None:
    clip = make_clip()
    plan = StoredPlan(store)
    plan.save([[clip]])
    plan.save_results(0, "encode", [result(clip, "failed")])
    plan.save_results(0, "encode", [result(clip)], attempt=2)  # a document is replaced as a whole
    rebuild(store, catalog)
    assert states(catalog, [clip]) == [ClipState.WAITING]
