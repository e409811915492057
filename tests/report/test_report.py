"""The report of a batch: every clip in one list, reasons by name, nothing long."""

from __future__ import annotations

from pathlib import Path

import pytest

from magi2.artifacts.local import LocalStore
from magi2.batches.batch_file import BadRow
from magi2.batches.failures import save_failure
from magi2.errors import ImageError, InfrastructureError, InputError
from magi2.recipes.captions import FALLBACK
from magi2.report import build_report, save_report, to_markdown
from magi2.types import StageName
from tests.report_samples import NO_REFINER, clip, deliver, planned, run_stages


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
        "clips_failed": 2,
        "clips_skipped": 0,
        "clips_over_budget": 0,
        "clips_cancelled": 0,
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


def test_results_of_a_later_attempt_count_more_than_an_earlier_failure(store: LocalStore) -> None:
    plan = planned(store, [clip(1)])
    save_failure(store, plan.batch_id, 0, StageName.PREVIEW, InfrastructureError("the disk is full"))
    run_stages(store, plan, {})
    assert build_report(store, plan.batch_id).counts["clips_failed"] == 0


def test_unfinished_task_is_told_as_such(store: LocalStore) -> None:
    plan = planned(store, [clip(1)])
    assert build_report(store, plan.batch_id).failed[0].reason == "its task has not finished"


def test_finished_clips_are_skipped_and_their_stages_reused(store: LocalStore, tmp_path: Path) -> None:
    finished = clip(1)
    deliver(store, finished, tmp_path)
    plan = planned(store, [finished, clip(2, NO_REFINER)])
    assert [len(shard.clips) for shard in plan.shards] == [1]
    run_stages(store, plan, {})
    report = build_report(store, plan.batch_id)
    assert [(c.clip_id, c.key) for c in report.skipped] == [(finished.clip_id, plan.finished[finished.clip_id])]
    assert (report.counts["clips_done"], report.counts["clips_skipped"]) == (1, 1)
    assert report.counts["stages_reused"] == 6 + 1


def test_batch_without_shards_has_a_report(store: LocalStore, tmp_path: Path) -> None:
    finished = clip(1)
    deliver(store, finished, tmp_path)
    plan = planned(store, [finished])
    assert not plan.shards
    report = build_report(store, plan.batch_id)
    assert (report.counts["clips_skipped"], report.counts["stages_computed"]) == (1, 0)
    assert report.is_within_limit


def test_flagged_file_of_an_earlier_run_is_not_called_good(store: LocalStore, tmp_path: Path) -> None:
    finished = clip(1)
    deliver(store, finished, tmp_path, flags=("clipped_audio",))
    plan = planned(store, [finished])
    report = build_report(store, plan.batch_id)
    assert [c.flags for c in report.flagged] == [("clipped_audio",)]
    assert not report.skipped


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
