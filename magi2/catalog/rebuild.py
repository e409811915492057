"""Making the catalog again from what the store holds: manifests first, then the documents of batches.

What only the catalog knew is lost: the attempts before the last of a stage, and that a batch was cancelled.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from sqlalchemy import Connection, delete, select, update

from magi2.artifacts.store import ArtifactStore
from magi2.catalog.artifacts import insert_artifacts
from magi2.catalog.batches import insert_batch
from magi2.catalog.clips import insert_clips
from magi2.catalog.compare import Pair, Problem, ProblemKind, pairs
from magi2.catalog.documents import StoredBatch, batch_ids, is_stored, read_batch
from magi2.catalog.records import ArtifactRecord, BatchState, ClipState, PlannedClip, Run, RunState
from magi2.catalog.repository import Catalog
from magi2.catalog.runs import LAST_STAGE, run_row
from magi2.catalog.statements import chunks, upsert
from magi2.catalog.tables import ArtifactRow, BatchClipRow, BatchRow, ClipRow, ProfileRow, RefusedRow, StageRunRow
from magi2.errors import CorruptedArtifactError

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class RebuildReport:
    """What there is now, what was taken away, and what of the store could not be read."""

    artifacts: int
    artifacts_forgotten: int
    batches: int
    batches_removed: int
    clips: int
    problems: tuple[Problem, ...]


def rebuild(store: ArtifactStore, catalog: Catalog) -> RebuildReport:
    """Make the catalog say what the store proves, and nothing else. It may be in use meanwhile.

    A batch is replaced in one transaction. Clips that nothing proves finished or failed are waiting.
    """
    problems: list[Problem] = []
    artifacts, forgotten = _rebuild_artifacts(store, catalog, problems)
    batches, clips = 0, 0
    for batch_id in batch_ids(store):
        try:
            stored = read_batch(store, batch_id)
        except CorruptedArtifactError as error:
            problems.append(Problem(ProblemKind.DAMAGED, f"batches/{batch_id}", str(error)))
            continue
        catalog.database.write(_replace_batch, stored)
        logger.info("batch %s is entered again with %d clips", batch_id, len(stored.clips))
        batches, clips = batches + 1, clips + len(stored.clips)
    known = catalog.database.read(lambda connection: connection.scalars(select(BatchRow.batch_id)).all())
    gone = [batch_id for batch_id in known if not is_stored(store, batch_id)]
    catalog.database.write(_remove, gone)
    return RebuildReport(artifacts, forgotten, batches, len(gone), clips, tuple(problems))


def _rebuild_artifacts(store: ArtifactStore, catalog: Catalog, problems: list[Problem]) -> tuple[int, int]:
    """How many artifacts are in the index now, and how many were taken out."""
    found, forgotten = 0, 0
    for chunk in chunks(pairs(store, catalog.artifacts)):
        good = [pair for pair in chunk if pair.manifest is not None]
        bad = [pair.key for pair in chunk if pair.manifest is None and pair.record is not None]
        problems += [Problem(ProblemKind.DAMAGED, pair.place, pair.fault) for pair in chunk if pair.fault]
        catalog.artifacts.forget(bad)
        catalog.database.write(insert_artifacts, _changed(good))
        found, forgotten = found + len(good), forgotten + len(bad)
    return found, forgotten


def _changed(found: Iterable[Pair]) -> list[ArtifactRecord]:
    records = [(ArtifactRecord.of(pair.manifest), pair.record) for pair in found if pair.manifest]
    return [new for new, old in records if new != old]


def _replace_batch(connection: Connection, stored: StoredBatch) -> None:
    batch_id = stored.batch.batch_id
    requested = connection.scalar(select(BatchRow.requested).where(BatchRow.batch_id == batch_id))
    connection.execute(delete(BatchRow).where(BatchRow.batch_id == batch_id))
    insert_batch(connection, stored.batch, stored.profiles)
    refused = [{"batch_id": batch_id, "row_number": row, "reason": why} for row, why in stored.refused.items()]
    for rows in chunks(refused):
        upsert(connection, RefusedRow, rows)
    proven = _proven(connection, stored)
    for planned in chunks(stored.clips.items()):
        insert_clips(connection, batch_id, [_with_proof(each, proven.get(clip_id)) for clip_id, each in planned])
    for runs in chunks(stored.runs):
        upsert(connection, StageRunRow, [run_row(batch_id, run) for run in runs])
    failed = {run.clip_id: run for run in _failures(stored) if run.clip_id not in proven}
    for run in failed.values():
        clip = update(BatchClipRow).where(BatchClipRow.batch_id == batch_id, BatchClipRow.clip_id == run.clip_id)
        connection.execute(clip.values(state=ClipState.FAILED, failed_stage=run.stage, reason=run.error))
    finished = len(proven) + len(failed) == len(stored.clips)
    failure = BatchState.FAILED if len(failed) > stored.batch.failure_limit else BatchState.DONE
    moments = [run.finished_at for run in stored.runs if run.finished_at]
    connection.execute(
        update(BatchRow)
        .where(BatchRow.batch_id == batch_id)
        .values(
            state=failure if finished else BatchState.WAITING,
            finished_at=max(moments, default=None) if finished else None,
            requested=requested,
        )
    )


def _proven(connection: Connection, stored: StoredBatch) -> Mapping[str, str]:
    """The clips whose delivered artifact is in the index, and its key."""
    claims = {clip_id: planned.artifact_key for clip_id, planned in stored.clips.items() if planned.artifact_key}
    for run in stored.runs:
        if run.stage is LAST_STAGE and run.state in (RunState.MADE, RunState.REUSED) and run.artifact_key:
            claims[run.clip_id] = run.artifact_key
    indexed: set[str] = set()
    for keys in chunks(claims.values()):
        query = select(ArtifactRow.key).where(ArtifactRow.key.in_(keys), ArtifactRow.stage == LAST_STAGE)
        indexed.update(connection.scalars(query))
    return {clip_id: key for clip_id, key in claims.items() if key in indexed}


def _with_proof(planned: PlannedClip, key: str | None) -> PlannedClip:
    return replace(planned, artifact_key=key)


def _failures(stored: StoredBatch) -> Iterable[Run]:
    """The failed runs that no later attempt of their clip's present shard made good."""
    last: dict[tuple[str, str], Run] = {}
    for run in stored.runs:
        key = (run.clip_id, run.stage)
        if run.shard == stored.clips[run.clip_id].shard and (key not in last or run.attempt > last[key].attempt):
            last[key] = run
    return (run for run in last.values() if run.state is RunState.FAILED)


def _remove(connection: Connection, batch_ids: Iterable[str]) -> None:
    """Remove batches, and clips and profiles that no batch has any more."""
    for chunk in chunks(batch_ids):
        connection.execute(delete(BatchRow).where(BatchRow.batch_id.in_(chunk)))
    connection.execute(delete(ClipRow).where(ClipRow.clip_id.not_in(select(BatchClipRow.clip_id))))
    connection.execute(delete(ProfileRow).where(ProfileRow.digest.not_in(select(ClipRow.profile_digest))))
