"""The report of a batch: every clip in one list, reasons by name, nothing long."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from magi2.artifacts.local import LocalStore
from magi2.artifacts.manifest import ManifestDraft
from magi2.batches.batch_file import BadRow
from magi2.batches.documents import failure_name, results_name, write_document
from magi2.batches.failures import save_failure
from magi2.batches.plan import BatchPlan
from magi2.batches.results import read_results
from magi2.batches.schema import ClipResult, ResultsDocument
from magi2.config.profile import Profile
from magi2.errors import (
    BatchCancelledError,
    BudgetSpentError,
    CancelledError,
    ImageError,
    InfrastructureError,
    InputError,
    Magi2Error,
)
from magi2.prompts.caption import Caption
from magi2.quality.thresholds import Thresholds
from magi2.recipes.captions import CAPTION, FALLBACK
from magi2.report.build import build_report, save_report
from magi2.report.markdown import to_markdown
from magi2.types import Clip, Expect, StageName
from tests.quality.written_measures import measures
from tests.report_samples import BOOKS, NO_REFINER, TINY, TOLD, clip, deliver, planned, publish_files, run_stages


def test_every_clip_is_in_exactly_one_list(store: LocalStore) -> None:
    clips = [clip(1), clip(2), clip(3, NO_REFINER), clip(4, prompt="fallback")]
    plan = planned(store, clips, BadRow(5, "the prompt is empty"))
    run_stages(store, plan, {clips[1].clip_id: (StageName.PREVIEW, ImageError("no such picture"))})
    report = build_report(store, plan.batch_id)
    assert [c.clip_id for c in report.done] == [clips[0].clip_id, clips[2].clip_id]
    assert [(c.clip_id, c.flags) for c in report.flagged] == [(clips[3].clip_id, ("enhancement_fallback",))]
    refused, failed = report.failed
    assert (refused.row, refused.stage, refused.reason) == (5, "plan", "the prompt is empty")
    assert (failed.clip_id, failed.stage, failed.error_code) == (clips[1].clip_id, "preview", "image")
    assert failed.reason == "no such picture"
    assert {name: outcome.state for name, outcome in failed.stages.items()} == {
        "enhance": "made",
        "encode": "reused",
        "preview": "failed",
    }
    assert [outcome.seconds for outcome in failed.stages.values()] == [2.0, 2.0, 0.5]
    assert report.counts == {
        "clips_done": 2,
        "clips_flagged": 1,
        "clips_unmeasured": 3,
        "clips_failed": 2,
        "clips_over_budget": 0,
        "clips_cancelled": 0,
        "clips_delivered": 0,
        "clips_marked": 0,
        "clips_signed": 0,
        "clips_reused": 0,
        # six stages, five without refiner; one is reused and the failed clip came to its third
        "stages_computed": 5 + 5 + 4 + 1,
        "stages_reused": 4,
        "seconds": report.counts["seconds"],
    }
    assert not report.is_within_limit


@pytest.mark.parametrize(("limit", "passes"), [(0, False), (1, False), (2, True)])
def test_refused_rows_count_against_the_failure_limit(store: LocalStore, limit: int, passes: bool) -> None:
    clips = [clip(1), clip(2)]
    plan = planned(store, clips, BadRow(3, "not JSON"), failure_limit=limit)
    run_stages(store, plan, {clips[1].clip_id: (StageName.MUX, ImageError("broken"))})
    assert build_report(store, plan.batch_id).is_within_limit is passes


def test_shard_without_results_fails_its_clips_with_the_task_s_reason(store: LocalStore) -> None:
    plan = planned(store, [clip(1), clip(2)])
    save_failure(store, plan.batch_id, 0, StageName.ENHANCE, InfrastructureError("the disk is full"))
    report = build_report(store, plan.batch_id)
    assert {(c.stage, c.error_code, c.reason) for c in report.failed} == {
        ("enhance", "infrastructure", "the disk is full")
    }
    assert len(report.failed) == 2


@pytest.mark.parametrize("stage", [StageName.ENHANCE, StageName.PREVIEW, StageName.MUX])
def test_unreadable_results_are_named_at_the_clips_that_only_they_tell_of(store: LocalStore, stage: StageName) -> None:
    clips = [clip(1), clip(2)]
    plan = planned(store, clips)
    run_stages(store, plan, {clips[1].clip_id: (stage, ImageError("broken"))})
    name = results_name(plan.batch_id, 0, stage)
    store.put_document(name, (store.get_document(name) or b"")[:-5])
    report = build_report(store, plan.batch_id)
    told = {c.clip_id: (c.stage, c.error_code) for c in report.failed}
    assert told[clips[1].clip_id] == (stage, "corrupted_artifact")
    assert all(name in (c.reason or "") for c in report.failed)
    if stage is not StageName.MUX:  # the other's file is told of by another document
        assert [c.clip_id for c in report.done] == [clips[0].clip_id]


def test_a_failure_that_cannot_be_read_is_the_reason_that_the_report_names(store: LocalStore) -> None:
    plan = planned(store, [clip(1)])
    save_failure(store, plan.batch_id, 0, StageName.ENHANCE, InfrastructureError("the disk is full"))
    name = failure_name(plan.batch_id, 0, StageName.ENHANCE)
    store.put_document(name, (store.get_document(name) or b"").replace(b"full", b"hull"))
    (failed,) = build_report(store, plan.batch_id).failed
    assert failed.error_code == "corrupted_artifact" and name in (failed.reason or "")


def test_results_of_a_later_attempt_count_more_than_an_earlier_failure(store: LocalStore) -> None:
    plan = planned(store, [clip(1)])
    save_failure(store, plan.batch_id, 0, StageName.PREVIEW, InfrastructureError("the disk is full"))
    run_stages(store, plan, {})
    assert build_report(store, plan.batch_id).counts["clips_failed"] == 0


MADE = {"enhance": "made", "encode": "made", "preview": "made", "refine": "made", "decode": "made", "mux": "made"}


def publish_caption(store: LocalStore, of: Clip, folder: Path) -> str:
    """The caption of a clip, which is its prompt; the key."""
    path = folder / CAPTION
    path.write_bytes(Caption(of.prompt).to_json())
    return store.publish(ManifestDraft(BOOKS[of.profile_digest].enhance(of)), {CAPTION: path}).key


def tell(
    store: LocalStore,
    plan: BatchPlan,
    stage: StageName,
    state: str,
    key: str | None = None,
    told: Clip | None = None,
    **place: int,
) -> None:
    """A document in which one stage tells of a clip, by default the first of the first shard."""
    row = ClipResult(clip_id=(told or plan.shards[0].clips[0]).clip_id, state=state, key=key, seconds=1.0)  # type: ignore[arg-type]
    values = {"batch_id": plan.batch_id, "shard": 0, "attempt": 1, **place}
    document = ResultsDocument(**values, stage=stage, results=(row,))  # type: ignore[arg-type]
    write_document(store, results_name(plan.batch_id, document.shard, stage), document)


@pytest.mark.parametrize("state", ["made", "reused"])
@pytest.mark.parametrize("stage", [StageName.ENHANCE, StageName.PREVIEW, StageName.DECODE])
def test_a_delivered_clip_is_done_whatever_an_earlier_attempt_told(
    store: LocalStore, stage: StageName, state: str
) -> None:
    plan = planned(store, [clip(1)])
    tell(store, plan, stage, "failed")
    save_failure(store, plan.batch_id, 0, StageName.ENCODE, CancelledError("ended"))
    tell(store, plan, StageName.MUX, state, "b" * 64, attempt=2)
    report = build_report(store, plan.batch_id)
    assert [(c.clip_id, c.key, set(c.stages)) for c in report.done] == [(clip(1).clip_id, "b" * 64, {"mux"})]
    assert (report.failed, sum(count.failed for count in report.stages.values())) == ((), 0)


@pytest.mark.parametrize("error", [CancelledError("ended"), BatchCancelledError("by ann"), BudgetSpentError("spent")])
@pytest.mark.parametrize("profile", [TINY, TOLD], ids=["ids", "full"])
def test_a_clip_whose_file_a_killed_worker_left_is_done(
    store: LocalStore, error: Magi2Error, profile: Profile, tmp_path: Path
) -> None:
    """The last stage tells nothing before all clips of its shard are through; what it decoded says which file it is,
    and where the file holds it, its caption.
    """
    delivered, lost = clip(1, profile), clip(2, profile)
    plan = planned(store, [delivered, lost])
    for shard, each in enumerate((delivered, lost), start=7):  # those of an earlier plan
        tell(store, plan, StageName.ENHANCE, "made", publish_caption(store, each, tmp_path), each, shard=shard)
        chain = BOOKS[each.profile_digest].chain(each, each.prompt)
        tell_all(store, plan, StageName.DECODE, chain[StageName.DECODE].key, each)
    key = publish_files(store, delivered, {})
    save_failure(store, plan.batch_id, 0, StageName.MUX, error)
    report = build_report(store, plan.batch_id)
    assert [(c.clip_id, c.key, c.reused) for c in report.done] == [(delivered.clip_id, key, False)]
    others = (*report.failed, *report.cancelled, *report.over_budget)
    assert [c.clip_id for c in others] == [lost.clip_id]


def tell_all(store: LocalStore, plan: BatchPlan, last: StageName, key: str, told: Clip) -> None:
    """Add a clip's results of every stage up to `last`, whose artifact has the `key`."""
    for stage in TINY.stages[: TINY.stages.index(last) + 1]:
        row = ClipResult(clip_id=told.clip_id, state="made", key=key if stage is last else "d" * 64)
        rows = (*read_results(store, plan.batch_id, 0, stage), row)
        document = ResultsDocument(batch_id=plan.batch_id, shard=0, stage=stage, attempt=1, results=rows)
        write_document(store, results_name(plan.batch_id, 0, stage), document)


def test_a_file_that_results_of_an_earlier_plan_name_counts_while_it_is_there(store: LocalStore) -> None:
    plan = planned(store, [clip(1)])
    key = publish_files(store, clip(1), {})
    tell(store, plan, StageName.MUX, "made", key, shard=7)
    assert [c.key for c in build_report(store, plan.batch_id).done] == [key]
    store.remove(StageName.MUX, key)
    assert [c.stage for c in build_report(store, plan.batch_id).failed] == ["enhance"]


def test_what_an_earlier_attempt_of_the_batch_made_is_not_reused(store: LocalStore) -> None:
    plan = planned(store, [clip(1)])
    for stage in TINY.stages:
        tell(store, plan, stage, "reused", "d" * 64, attempt=2)
    reused = build_report(store, plan.batch_id)
    assert (reused.done[0].reused, reused.counts["clips_reused"]) == (True, 1)
    made = build_report(store, plan.batch_id, made=[(clip(1).clip_id, stage) for stage in TINY.stages])
    assert {name: each.state for name, each in made.done[0].stages.items()} == MADE
    names = ("clips_done", "clips_reused", "stages_computed", "stages_reused")
    assert [made.counts[name] for name in names] == [1, 0, 6, 0]
    tell(store, plan, StageName.PREVIEW, "made", "d" * 64, shard=3)  # when the clip was in another shard
    assert build_report(store, plan.batch_id).done[0].stages["preview"].state == "made"


def test_a_clip_that_a_retried_plan_finds_made_by_its_own_batch_is_not_reused(
    store: LocalStore, tmp_path: Path
) -> None:
    deliver(store, clip(1), tmp_path)
    plan = planned(store, [clip(1)])
    report = build_report(store, plan.batch_id, made=[(clip(1).clip_id, StageName.MUX)])
    names = ("clips_done", "clips_reused", "stages_computed", "stages_reused")
    assert [report.counts[name] for name in names] == [1, 0, 1, 5]


def test_unfinished_task_is_told_as_such(store: LocalStore) -> None:
    plan = planned(store, [clip(1)])
    assert build_report(store, plan.batch_id).failed[0].reason == "its task has not finished"


def test_finished_clips_are_done_and_reused_and_so_are_their_stages(store: LocalStore, tmp_path: Path) -> None:
    finished = clip(1)
    deliver(store, finished, tmp_path)
    plan = planned(store, [finished, clip(2, NO_REFINER)])
    assert [len(shard.clips) for shard in plan.shards] == [1]
    run_stages(store, plan, {})
    report = build_report(store, plan.batch_id)
    reused = [(c.clip_id, c.key) for c in report.done if c.reused]
    assert reused == [(finished.clip_id, plan.finished[finished.clip_id])]
    assert (report.counts["clips_done"], report.counts["clips_reused"]) == (2, 1)
    assert report.counts["stages_reused"] == 6 + 1


def test_batch_without_shards_has_a_report(store: LocalStore, tmp_path: Path) -> None:
    finished = clip(1)
    deliver(store, finished, tmp_path)
    plan = planned(store, [finished])
    assert not plan.shards
    report = build_report(store, plan.batch_id)
    assert [report.counts[name] for name in ("clips_done", "clips_reused", "stages_computed")] == [1, 1, 0]
    assert report.is_within_limit


def test_flagged_file_of_an_earlier_run_is_not_called_good(store: LocalStore, tmp_path: Path) -> None:
    finished = clip(1)
    deliver(store, finished, tmp_path, flags=("clipped_audio",))
    plan = planned(store, [finished])
    report = build_report(store, plan.batch_id)
    assert [(c.flags, c.reused) for c in report.flagged] == [(("clipped_audio",), True)]
    assert (report.counts["clips_reused"], report.done) == (1, ())


def test_defects_are_judged_when_the_report_is_made(store: LocalStore, tmp_path: Path) -> None:
    resting = clip(1)
    deliver(store, resting, tmp_path, measures=measures(still_from=4))
    plan = planned(store, [resting])
    (flagged,) = build_report(store, plan.batch_id).flagged
    assert flagged.flags == ("frozen",)
    assert flagged.quality and flagged.quality["defects"] == [{"kind": "frozen", "spans": [[3.6, 10.0]]}]
    assert "frozen 3.6-10.0 s" in to_markdown(build_report(store, plan.batch_id))
    (good,) = build_report(store, plan.batch_id, thresholds=Thresholds(still_s=9.0)).done
    assert (good.flags, good.quality and good.quality["still_s"]) == ((), 6.4)


def test_a_clip_that_may_rest_is_good_and_its_rest_is_told(store: LocalStore, tmp_path: Path) -> None:
    resting = replace(clip(1), expect=Expect("rest", "any"))
    deliver(store, resting, tmp_path, measures=measures(still_from=4, silent_from=0))
    (good,) = build_report(store, planned(store, [resting]).batch_id).done
    assert good.quality and (good.quality["still_share"], good.quality["silent_share"]) == (0.64, 1.0)


def test_a_clip_of_a_version_that_did_not_measure_is_not_flagged_and_said_to_be_so(
    store: LocalStore, tmp_path: Path
) -> None:
    old = clip(1)
    deliver(store, old, tmp_path)
    report = build_report(store, planned(store, [old]).batch_id)
    assert (report.flagged, report.done[0].quality, report.counts["clips_unmeasured"]) == ((), None, 1)
    assert "1 finished clips were made by a version that did not look for defects" in to_markdown(report)


def test_flags_of_a_cached_clips_caption_and_embeddings_are_named(store: LocalStore, tmp_path: Path) -> None:
    finished = clip(1)
    deliver(store, finished, tmp_path, flags=("frozen",), caption_flags=(FALLBACK,), encode_flags=("truncated",))
    report = build_report(store, planned(store, [finished]).batch_id)
    assert [c.flags for c in report.flagged] == [(FALLBACK, "truncated", "frozen")]


def test_prompts_and_reasons_are_cut(store: LocalStore) -> None:
    long = clip(1, prompt="word " * 2000)
    plan = planned(store, [long], BadRow(2, "x" * 9000))
    run_stages(store, plan, {long.clip_id: (StageName.ENHANCE, InputError("y" * 9000))})
    report = build_report(store, plan.batch_id)
    text = to_markdown(report)
    assert all(len(c.prompt) <= 200 and len(c.reason or "") <= 500 for c in report.failed)
    assert len(text) < 2500


def test_markdown_keeps_foreign_text_in_its_cell(store: LocalStore) -> None:
    hostile = clip(1, prompt="a | b\n\n<script>alert(1)</script> [link](http://x)")
    plan = planned(store, [hostile])
    run_stages(store, plan, {hostile.clip_id: (StageName.DECODE, ImageError("bad | worse"))})
    text = to_markdown(build_report(store, plan.batch_id))
    (line,) = [line for line in text.splitlines() if hostile.short_id in line]
    assert line.count("|") - line.count("\\|") == 6
    assert r"\<script\>" in text
    assert r"\[link\]" in text


def test_documents_are_written_for_people_and_scripts(store: LocalStore) -> None:
    plan = planned(store, [clip(1)])
    run_stages(store, plan, {})
    name = save_report(build_report(store, plan.batch_id), store)
    assert name == f"batches/{plan.batch_id}/report.json"
    assert b'"clips_done": 1' in (store.get_document(name) or b"")
    assert b"1 clips done" in (store.get_document(f"batches/{plan.batch_id}/report.md") or b"")
