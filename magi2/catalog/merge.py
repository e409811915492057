"""Bringing a batch in the catalog in line with its documents, while it may be running."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sqlalchemy import Connection, delete, exists, select, update

from magi2.catalog.batches import insert_batch
from magi2.catalog.clips import insert_clips, outcome, settle_clips
from magi2.catalog.documents import StoredBatch
from magi2.catalog.engine import Database
from magi2.catalog.records import BatchState, ClipState, PlannedClip, Run, RunState, now
from magi2.catalog.runs import FILE_STAGE, SUCCEEDED, runs_of_batch, upsert_runs
from magi2.catalog.statements import chunks, clips_by_state, upsert
from magi2.catalog.states import UNFINISHED_BATCH, UNFINISHED_CLIP
from magi2.catalog.tables import ArtifactRow, BatchClipRow, BatchRow, RefusedRow, StageRunRow
from magi2.types import StageName


def merge_batch(database: Database, stored: StoredBatch) -> None:
    """Enter what is missing and take out what was not planned, in transactions that hold nobody up for long.

    What the catalog knows beyond the documents stays: runs, requests, and states that were reached and that nothing
    contradicts. A clip becomes done when its file is proven, whatever it was. One that no file proves is not done, but
    what the documents say when nobody works on it, else what its last run tells; so is one that counts as failed though
    a later run goes on.
    """
    batch_id = stored.batch.batch_id
    database.write(insert_batch, stored.batch, stored.profiles)
    refused = [{"batch_id": batch_id, "row_number": row, "reason": why} for row, why in stored.refused.items()]
    for rows in chunks(refused):
        database.write(upsert, RefusedRow, rows)
    database.write(_take_out_unplanned, stored)
    for planned in chunks(PlannedClip(each.clip, each.shard) for each in stored.clips.values()):
        database.write(insert_clips, batch_id, planned)
    for runs in chunks(stored.runs):
        database.write(upsert_runs, batch_id, runs, where=StageRunRow.state == RunState.RUNNING)
    database.write(_settle, stored)


def untried_clips(connection: Connection, batch_id: str) -> set[str]:
    """The batch's clips that nothing was ever tried for, so that the catalog knows nothing of them by itself."""
    was_tried = exists().where(StageRunRow.batch_id == batch_id, StageRunRow.clip_id == BatchClipRow.clip_id)
    return set(connection.scalars(select(BatchClipRow.clip_id).where(BatchClipRow.batch_id == batch_id, ~was_tried)))


def _take_out_unplanned(connection: Connection, stored: StoredBatch) -> None:
    """Remove clips that the plan does not have. Those that cost something stay, and are no longer waited for."""
    batch_id = stored.batch.batch_id
    this_batch = BatchClipRow.batch_id == batch_id
    known = set(connection.scalars(select(BatchClipRow.clip_id).where(this_batch)))
    unplanned = known - stored.clips.keys()
    untried = untried_clips(connection, batch_id) & unplanned
    for clip_ids in chunks(untried):
        connection.execute(delete(BatchClipRow).where(this_batch, BatchClipRow.clip_id.in_(clip_ids)))
    values = {"state": ClipState.CANCELLED, "reason": "the batch's plan has it no more", "updated_at": now()}
    for clip_ids in chunks(unplanned - untried):
        these = this_batch, BatchClipRow.clip_id.in_(clip_ids), BatchClipRow.state.in_(UNFINISHED_CLIP)
        connection.execute(update(BatchClipRow).where(*these).values(**values))


def _settle(connection: Connection, stored: StoredBatch) -> None:
    _settle_clips(connection, stored)
    _settle_batch(connection, stored)


def _settle_clips(connection: Connection, stored: StoredBatch) -> None:
    batch_id = stored.batch.batch_id
    files, at_work, last = _files(connection, stored), _at_work(connection, stored), _last_runs(connection, batch_id)
    brought = _brought(stored, last.values())
    proven = {clip_id: key for clip_id, key in files.items() if clip_id in brought}
    columns = BatchClipRow.clip_id, BatchClipRow.state, BatchClipRow.artifact_key
    outcomes = []
    for clip_id, name, key in connection.execute(select(*columns).where(BatchClipRow.batch_id == batch_id)):
        state, failure = ClipState(name), None if clip_id in at_work else stored.failures.get(clip_id)
        if clip_id not in stored.clips:
            continue
        if clip_id in proven:
            if (state, key) != (ClipState.DONE, proven[clip_id]):
                outcomes.append(outcome(clip_id, ClipState.DONE, artifact_key=proven[clip_id]))
        elif _is_open(state, last.get(clip_id)):
            if failure:
                stage = failure.stage if failure.state is ClipState.FAILED else None
                ended = {"failed_stage": stage, "reason": failure.reason, "artifact_key": files.get(clip_id)}
                outcomes.append(outcome(clip_id, failure.state, **ended))
            elif state not in UNFINISHED_CLIP:
                outcomes.append(_outcome_of(clip_id, last.get(clip_id)))
    for chunk in chunks(outcomes):
        settle_clips(connection, batch_id, chunk)


def _is_open(state: ClipState, last: Run | None) -> bool:
    """Whether a state that no file proves may be another: it is not final, or the clip's last run tells otherwise."""
    if state is ClipState.FAILED:
        return last is not None and last.state not in (RunState.FAILED, RunState.CANCELLED)
    return state in UNFINISHED_CLIP or state is ClipState.DONE


def _outcome_of(clip_id: str, last: Run | None) -> dict[str, Any]:
    """Where a clip stands by its last run alone, with no file that proves it done."""
    if last is None or (last.stage.position >= FILE_STAGE.position and last.state in SUCCEEDED):
        return outcome(clip_id, ClipState.WAITING)
    if last.state is RunState.FAILED:
        return outcome(clip_id, ClipState.FAILED, failed_stage=last.stage, reason=last.error)
    return outcome(clip_id, ClipState.CANCELLED if last.state is RunState.CANCELLED else ClipState.RUNNING)


def _last_runs(connection: Connection, batch_id: str) -> dict[str, Run]:
    """The last run of each clip: the highest attempt at the furthest stage that it came to."""
    last: dict[str, Run] = {}
    for run in runs_of_batch(connection, batch_id):
        other = last.get(run.clip_id)
        if other is None or (run.stage.position, run.attempt) > (other.stage.position, other.attempt):
            last[run.clip_id] = run
    return last


def _at_work(connection: Connection, stored: StoredBatch) -> set[str]:
    """Clips with a run that has not ended, unless the documents tell of a later one."""
    last: dict[str, tuple[int, int]] = {}
    for run in stored.runs:
        last[run.clip_id] = max((run.stage.position, run.attempt), last.get(run.clip_id, (-1, 0)))
    running = select(StageRunRow.clip_id, StageRunRow.stage, StageRunRow.attempt).where(
        StageRunRow.batch_id == stored.batch.batch_id, StageRunRow.state == RunState.RUNNING
    )
    return {
        clip_id
        for clip_id, stage, attempt in connection.execute(running)
        if (StageName(stage).position, attempt) > last.get(clip_id, (-1, 0))
    }


def _brought(stored: StoredBatch, last: Iterable[Run]) -> set[str]:
    """The clips that are where they were to be brought, if anywhere."""
    runs = (run for run in (*stored.runs, *last) if run.stage is StageName.DELIVER and run.state in SUCCEEDED)
    planned = stored.clips.items()
    nowhere = (clip_id for clip_id, each in planned if each.is_delivered or not each.clip.deliveries)
    return {*nowhere, *(run.clip_id for run in runs)}


def _files(connection: Connection, stored: StoredBatch) -> dict[str, str]:
    """The clips whose file is in the index, and its key."""
    claims = {clip_id: planned.artifact_key for clip_id, planned in stored.clips.items() if planned.artifact_key}
    for run in stored.runs:
        if run.stage is FILE_STAGE and run.state in SUCCEEDED and run.artifact_key:
            claims[run.clip_id] = run.artifact_key
    for clip_id, run in _last_runs(connection, stored.batch.batch_id).items():  # of a stage that has not ended
        if run.stage is FILE_STAGE and run.state in SUCCEEDED and run.artifact_key:
            claims.setdefault(clip_id, run.artifact_key)
    indexed: set[str] = set()
    for keys in chunks(claims.values()):
        query = select(ArtifactRow.key).where(ArtifactRow.key.in_(keys), ArtifactRow.stage == FILE_STAGE)
        indexed.update(connection.scalars(query))
    return {clip_id: key for clip_id, key in claims.items() if key in indexed}


def _settle_batch(connection: Connection, stored: StoredBatch) -> None:
    batch_id = stored.batch.batch_id
    state = connection.scalar(select(BatchRow.state).where(BatchRow.batch_id == batch_id))
    counts = clips_by_state(connection, batch_id)
    unfinished = sum(counts[each] for each in UNFINISHED_CLIP)
    moment = None
    failures = counts[ClipState.FAILED] + len(stored.refused)
    limit = connection.scalar(select(BatchRow.failure_limit).where(BatchRow.batch_id == batch_id)) or 0
    ended = BatchState.DONE if failures <= limit else BatchState.FAILED
    if state in (BatchState.DONE, BatchState.FAILED) and not unfinished:
        moment = connection.scalar(select(BatchRow.finished_at).where(BatchRow.batch_id == batch_id))
        state = ended
    elif state in UNFINISHED_BATCH and not unfinished:
        state = ended
        if any(failure.state is ClipState.CANCELLED for failure in stored.failures.values()):
            state = BatchState.CANCELLED
        moment = max((run.finished_at for run in stored.runs if run.finished_at), default=None)
    elif state == BatchState.DONE and unfinished:
        state = BatchState.WAITING
    else:
        return
    query = update(BatchRow).where(BatchRow.batch_id == batch_id)
    connection.execute(query.values(state=state, finished_at=moment))
