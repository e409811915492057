"""What the store's documents say of a batch as a whole: its plan, each shard's results and its report."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

from magi2.artifacts.ahead import in_order
from magi2.artifacts.store import ArtifactStore
from magi2.batches.documents import (
    all_results,
    batch_folder,
    batch_name,
    check_shard,
    fault_of,
    find_document,
    finished_name,
    report_name,
    shard_name,
)
from magi2.batches.receipts import final_places
from magi2.batches.schema import (
    BatchDocument,
    ClipResult,
    Document,
    FinishedDocument,
    ReportedClips,
    ResultsDocument,
    ShardDocument,
)
from magi2.catalog.records import ClipState, NewBatch, PlannedClip, Run, RunState
from magi2.errors import ConfigError, CorruptedArtifactError, InfrastructureError, InputError

T = TypeVar("T", bound=Document)


@dataclass(frozen=True)
class Failure:
    """Where and why a clip failed; or was skipped or cancelled, by its state."""

    stage: str | None
    reason: str | None
    state: ClipState = ClipState.FAILED


@dataclass(frozen=True)
class StoredBatch:
    """All that the store knows of a batch; clips by id, those found or reported finished with the key of their file."""

    batch: NewBatch
    profiles: dict[str, dict[str, Any]]
    refused: dict[int, str]
    clips: dict[str, PlannedClip]
    runs: list[Run]
    failures: dict[str, Failure]


def read_batch(store: ArtifactStore, batch_id: str) -> StoredBatch:
    """The batch as its documents tell it.

    Raises: CorruptedArtifactError naming the one that is absent, wrong, of a newer version, or not to be had from a
    store that gives others; InfrastructureError for a store that gives none.
    """
    try:
        return _read_batch(store, batch_id)
    except (InputError, InfrastructureError) as error:
        raise CorruptedArtifactError(fault_of(store, error)) from error


def _read_batch(store: ArtifactStore, batch_id: str) -> StoredBatch:
    plan = _read(store, batch_name(batch_id), BatchDocument)
    for digest in plan.profiles:
        with suppress(ConfigError):  # how another version resolved its profiles is its own affair
            plan.profile(digest)
    clips = _read_clips(store, plan)
    runs = _read_runs(store, batch_id, clips)
    report = find_document(store, report_name(batch_id), ReportedClips)
    for reported in (*report.done, *report.flagged) if report else ():
        planned = clips.get(reported.clip_id or "")
        if planned is not None and reported.key:
            clips[planned.clip.clip_id] = replace(planned, artifact_key=reported.key, is_delivered=True)
    return StoredBatch(
        batch=_new_batch(plan),
        profiles=plan.profiles,
        refused={row.row: row.reason for row in plan.refused},
        clips=clips,
        runs=runs,
        failures=(_reported_failures(report) if report else {}) | _failures(clips, runs),
    )


def _read_clips(store: ArtifactStore, plan: BatchDocument) -> dict[str, PlannedClip]:
    clips: dict[str, PlannedClip] = {}
    for shard in range(plan.shards):
        document = _read(store, shard_name(plan.batch_id, shard), ShardDocument)
        check_shard(document, plan.batch_id, shard)
        planned = [each.to_clip() for each in document.clips]
        for clip, places in zip(planned, in_order(partial(final_places, store, plan.batch_id), planned), strict=True):
            file = document.finished.get(clip.clip_id)
            placed = replace(clip, deliveries=places)
            clips[clip.clip_id] = PlannedClip(placed, shard, file.key if file else None)
    for finished in _read(store, finished_name(plan.batch_id), FinishedDocument).finished:
        clips[finished.clip_id] = PlannedClip(finished.to_clip(), None, finished.key)
    if len(clips) != plan.clips:
        folder = batch_folder(plan.batch_id)
        raise CorruptedArtifactError(f"{folder}: batch.json counts {plan.clips} clips, the others hold {len(clips)}")
    return clips


def _read_runs(store: ArtifactStore, batch_id: str, clips: dict[str, PlannedClip]) -> list[Run]:
    runs: dict[tuple[str, str, int], Run] = {}
    for document in all_results(store, batch_folder(batch_id)):
        for result in document.results:
            key = (result.clip_id, document.stage, document.attempt)
            planned = clips.get(result.clip_id)
            # Shards are numbered anew when a batch is planned anew; results of older ones are history.
            if planned is not None and (key not in runs or planned.shard == document.shard):
                runs[key] = _run(document, result)
    return list(runs.values())


def _failures(clips: dict[str, PlannedClip], runs: list[Run]) -> dict[str, Failure]:
    """The failures in the clips' present shards."""
    failed = (run for run in runs if run.state is RunState.FAILED and run.shard == clips[run.clip_id].shard)
    return {run.clip_id: Failure(run.stage, run.error) for run in failed}


def _reported_failures(report: ReportedClips) -> dict[str, Failure]:
    lists = {
        ClipState.FAILED: report.failed,
        ClipState.SKIPPED: (*report.over_budget, *report.stopped),
        ClipState.CANCELLED: report.cancelled,
    }
    return {
        clip.clip_id: Failure(clip.stage, clip.reason, state)
        for state, clips in lists.items()
        for clip in clips
        if clip.clip_id
    }


def _new_batch(plan: BatchDocument) -> NewBatch:
    same = ("batch_id", "name", "source", "created_at", "dag_id", "run_id", "requested_by", "parent_batch_id")
    return NewBatch(
        **{name: getattr(plan, name) for name in same},
        clips_total=plan.clips,
        failure_limit=plan.options.failure_limit,
        on_bad_rows=plan.options.on_bad_rows,
        priority=plan.options.priority,
        budget=plan.options.budget,
        on_limit=plan.options.on_limit,
        failure_streak=plan.options.failure_streak,
    )


def _run(document: ResultsDocument, result: ClipResult) -> Run:
    return Run(
        clip_id=result.clip_id,
        stage=document.stage,
        attempt=document.attempt,
        shard=document.shard,
        state=RunState(result.state),
        seconds=result.seconds,
        error_code=result.error_code,
        error=result.error,
        flags=result.flags,
        artifact_key=result.key,
    )


def _read(store: ArtifactStore, name: str, kind: type[T]) -> T:
    found = find_document(store, name, kind)
    if found is None:
        raise CorruptedArtifactError(f"{name}: document is missing")
    return found
