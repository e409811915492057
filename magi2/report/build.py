"""A batch's report from the store's documents; torch-free."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import UTC, datetime

from magi2.artifacts.store import ArtifactStore
from magi2.batches.documents import (
    all_results,
    batch_folder,
    load_batch,
    load_finished,
    report_name,
    report_text_name,
    write_document,
)
from magi2.batches.schema import (
    FinishedClip,
    RefusedRow,
    ReportDocument,
    ReportedClip,
    StageCount,
)
from magi2.catalog.cost import BatchCost
from magi2.catalog.counts import BatchCounts
from magi2.config.profile import tier_text
from magi2.errors import (
    MAX_PROMPT,
    BatchCancelledError,
    BudgetSpentError,
    StoppedError,
    cut,
)
from magi2.quality.thresholds import USUAL, Thresholds
from magi2.report.counts import count_clips
from magi2.report.markdown import to_markdown
from magi2.report.outcomes import BatchResults, ShardOutcomes, StoredFiles, judged, reported, stored_file, stored_files
from magi2.types import StageName, profile_stages

LISTS = ("failed", "flagged", "over_budget", "cancelled", "stopped", "done")
"""The lists of a report, in the order in which people want them."""


def build_report(
    store: ArtifactStore,
    batch_id: str,
    *,
    started_at: datetime | None = None,
    cost: BatchCost | None = None,
    made: Collection[tuple[str, StageName]] = (),
    thresholds: Thresholds = USUAL,
    failure_limit: int | None = None,
) -> ReportDocument:
    """The report of a planned batch; a clip that is not finished has failed in the first stage without a result.

    `started_at` is when its run began, by default when it was planned. `cost` is what the catalog knows of it, `made`
    the clip ids and stages that any attempt of the batch has made: what a later one reuses of them counts as made.
    `thresholds` say what of the clips' measures counts as a defect. `failure_limit` is the batch's by now, by default
    as it was planned.
    Results that cannot be read are the reason that stands at the clips which only they could tell of.
    Raises: InputError for an unknown batch, CorruptedArtifactError for another damaged document.
    """
    batch, now = load_batch(store, batch_id), datetime.now(UTC)
    finished = load_finished(store, batch_id).finished
    unreadable: dict[str, str] = {}
    results = BatchResults(all_results(store, batch_folder(batch_id), unreadable=unreadable), made, unreadable)
    shards = [ShardOutcomes(store, batch, shard, results, thresholds) for shard in range(batch.shards)]
    lists: dict[str, list[ReportedClip]] = {name: [] for name in LISTS}
    lists["failed"] += map(_refused, batch.refused)
    digests = {clip.clip_id: clip.profile_digest for clip in finished}
    digests |= {clip_id: shard.profile_digest for shard in shards for clip_id in shard.passes}
    clips = [clip for shard in shards for clip in shard.clips()]
    files = stored_files(store, finished) if finished else {}
    clips += [
        _finished_before(files, clip, thresholds, is_reused=not results.was_made(clip.clip_id, StageName.MUX))
        for clip in finished
    ]
    for clip in clips:
        tier = tier_text(batch.settings(digests[clip.clip_id or ""]))
        lists[_list_of(clip)].append(_priced(clip.model_copy(update={"tier": tier}), cost))
    passes: dict[str, Sequence[StageName]] = {
        clip.clip_id: profile_stages(batch.settings(clip.profile_digest)) for clip in finished
    }
    for shard in shards:
        passes |= shard.passes
    stages = _stage_counts(count_clips(lists, passes, results.was_made), cost)
    return ReportDocument(
        batch_id=batch_id,
        name=batch.name,
        source=batch.source,
        run_id=batch.run_id,
        failure_limit=batch.options.failure_limit if failure_limit is None else failure_limit,
        on_limit=batch.options.on_limit,
        seconds=(now - (started_at or batch.created_at)).total_seconds(),
        finished_at=now,
        **{name: tuple(members) for name, members in lists.items()},
        stages=stages,
        stages_reused=sum(count.reused for stage, count in stages.items() if stage != StageName.DELIVER),
        accelerator_seconds=cost.accelerator_seconds if cost else None,
        cost=cost.total if cost else None,
        budget=batch.options.budget,
        currency=cost.price.currency if cost and cost.price else None,
    )


def save_report(report: ReportDocument, store: ArtifactStore) -> str:
    """Write or replace the report's documents; the name of the JSON one."""
    store.put_document(report_text_name(report.batch_id), to_markdown(report).encode())
    write_document(store, report_name(report.batch_id), report)
    return report_name(report.batch_id)


def _list_of(clip: ReportedClip) -> str:
    """Where a clip belongs."""
    if clip.stage is None:
        return "flagged" if clip.flags else "done"
    unrendered = {
        BudgetSpentError.code: "over_budget",
        BatchCancelledError.code: "cancelled",
        StoppedError.code: "stopped",
    }
    return unrendered.get(clip.error_code or "", "failed")


def _priced(clip: ReportedClip, cost: BatchCost | None) -> ReportedClip:
    if cost is None or clip.clip_id is None:
        return clip
    seconds = cost.clip_seconds.get(clip.clip_id, 0.0)
    return clip.model_copy(update={"accelerator_seconds": seconds, "cost": cost.of_clip(clip.clip_id)})


def _stage_counts(counts: BatchCounts, cost: BatchCost | None) -> dict[str, StageCount]:
    """The stages that any clip has come to."""
    return {
        stage.value: StageCount(
            computed=each.made,
            reused=each.reused,
            failed=each.failed,
            seconds=round(each.seconds, 3),
            accelerator_seconds=cost.stage_seconds.get(stage, 0.0) if cost else 0.0,
            cost=cost.of_stage(stage) if cost else None,
        )
        for stage, each in counts.stages.items()
        if each.done or each.failed
    }


def _finished_before(
    files: StoredFiles, clip: FinishedClip, thresholds: Thresholds, *, is_reused: bool
) -> ReportedClip:
    file = stored_file(clip.clip_id, clip, files)
    quality = judged(clip, file.measures, thresholds)
    return reported(clip, key=clip.key, flags=file.flags, reused=is_reused, quality=quality)


def _refused(row: RefusedRow) -> ReportedClip:
    reason = cut(row.reason, MAX_PROMPT)
    return ReportedClip(row=row.row, names=(f"row {row.row}",), stage="plan", error_code="input", reason=reason)
