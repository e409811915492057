"""How far many batches are, in a few statements for all of them, and what leads to a batch or a clip."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from sqlalchemy import ColumnElement, Connection, Select, and_, exists, func, literal_column, select

from magi2.catalog.clips import has_target
from magi2.catalog.counts import BatchCounts, Counting
from magi2.catalog.engine import Database
from magi2.catalog.records import ClipState, RunState
from magi2.catalog.runs import FILE_STAGE, SUCCEEDED
from magi2.catalog.statements import outcome_of_batch, total, was_retried
from magi2.catalog.states import UNFINISHED_CLIP
from magi2.catalog.tables import BatchClipRow, BatchRow, ClipRow, ProfileRow, RefusedRow, StageRunRow
from magi2.types import StageName, clip_stages

K = TypeVar("K", str, int)


class Overview:
    """Batches in numbers. All raise InfrastructureError when the database does not answer."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def counts(self, batch_ids: Sequence[str]) -> dict[str, BatchCounts]:
        """The numbers of each of these batches, in four statements."""
        return self._database.read(_of_batches, batch_ids)

    def shards(self, batch_id: str) -> dict[int, BatchCounts]:
        """The numbers of each shard of a batch, in three; clips that were finished before belong to none."""
        return self._database.read(_of_shards, batch_id)

    def batch_of_run(self, dag_id: str, run_id: str) -> tuple[str, str] | None:
        """Id and name of the batch that a run of Airflow renders, the latest if it was planned anew; or None."""
        query = select(BatchRow.batch_id, BatchRow.name).where(BatchRow.run_id == run_id, BatchRow.dag_id == dag_id)
        latest = query.order_by(BatchRow.created_at.desc()).limit(1)
        row = self._database.read(lambda connection: connection.execute(latest).one_or_none())
        return None if row is None else (row.batch_id, row.name)

    def profile(self, digest: str) -> Mapping[str, Any]:
        """A resolved profile; empty when there is none of this digest."""
        query = select(ProfileRow.content).where(ProfileRow.digest == digest)
        return self._database.read(lambda connection: connection.scalar(query)) or {}

    def profiles(self, batch_id: str) -> list[Mapping[str, Any]]:
        """The resolved profiles of a batch's clips."""
        digests = (
            select(ClipRow.profile_digest)
            .join(BatchClipRow, BatchClipRow.clip_id == ClipRow.clip_id)
            .where(BatchClipRow.batch_id == batch_id)
        )
        query = select(ProfileRow.content).where(ProfileRow.digest.in_(digests)).order_by(ProfileRow.digest)
        return list(self._database.read(lambda connection: connection.scalars(query).all()))

    def unknown_clips(self, batch_id: str, clip_ids: Sequence[str]) -> list[str]:
        """Those of these clip ids that the batch does not have."""
        query = select(BatchClipRow.clip_id).where(
            BatchClipRow.batch_id == batch_id, BatchClipRow.clip_id.in_(clip_ids)
        )
        known = set(self._database.read(lambda connection: connection.scalars(query).all()))
        return [clip_id for clip_id in clip_ids if clip_id not in known]

    def artifact_keys(self, batch_id: str, clip_id: str) -> dict[StageName, str]:
        """The keys of what the stages made of a clip, in this batch if it did, or else in the latest that did."""
        query = (
            select(StageRunRow.stage, StageRunRow.artifact_key)
            .join(BatchClipRow, BatchClipRow.batch_id == StageRunRow.batch_id)
            .where(
                BatchClipRow.clip_id == clip_id,
                StageRunRow.clip_id == clip_id,
                StageRunRow.artifact_key.is_not(None),
                StageRunRow.state.in_(SUCCEEDED),
            )
            .order_by((StageRunRow.batch_id == batch_id).asc(), StageRunRow.finished_at.asc().nulls_first())
        )
        rows = self._database.read(lambda connection: connection.execute(query).all())
        return {StageName(stage): key for stage, key in rows if key and stage != StageName.DELIVER}


def _of_batches(connection: Connection, batch_ids: Sequence[str]) -> dict[str, BatchCounts]:
    counting = _count(connection, BatchClipRow.batch_id.expression, BatchClipRow.batch_id.in_(batch_ids))
    refused = select(RefusedRow.batch_id, func.count()).where(RefusedRow.batch_id.in_(batch_ids))
    rows = {batch_id: count for batch_id, count in connection.execute(refused.group_by(RefusedRow.batch_id))}
    return {each: counting.get(each, Counting()).result(refused_rows=rows.get(each, 0)) for each in batch_ids}


def _of_shards(connection: Connection, batch_id: str) -> dict[int, BatchCounts]:
    # By the shard that a clip is in now: an earlier plan may have put it into another.
    shard = func.coalesce(BatchClipRow.shard, literal_column("0"))  # for the type: there are no others here
    counting = _count(connection, shard, and_(BatchClipRow.batch_id == batch_id, BatchClipRow.shard.is_not(None)))
    return {number: counting[number].result() for number in sorted(counting)}


def _count(connection: Connection, key: ColumnElement[K], condition: ColumnElement[bool]) -> dict[K, Counting]:
    """The clips that meet the condition, added up for each value of `key`."""
    clips = connection.execute(_clips(key, condition)).all()
    digests = {row.profile_digest for row in clips}
    contents = select(ProfileRow.digest, ProfileRow.content).where(ProfileRow.digest.in_(digests))
    profiles = {digest: content for digest, content in connection.execute(contents)}
    counting: dict[K, Counting] = {row.key: Counting() for row in clips}
    for row in clips:
        counting[row.key].add_clips(
            ClipState(row.state),
            clip_stages(profiles[row.profile_digest], is_delivered=row.has_target),
            row.clips,
            failed_stage=row.failed_stage,
            is_reused=row.is_reused,
            is_found=row.is_reused and not row.has_shard,
            is_stored=row.is_stored,
        )
    for row in connection.execute(_runs(key, condition)):
        counting[row.key].add_runs(
            StageName(row.stage),
            RunState(row.outcome),
            row.runs,
            clip_state=ClipState(row.clip_state),
            is_last=row.is_last,
            seconds=row.seconds,
            accelerator_seconds=row.accelerator_seconds,
            peak_memory_bytes=row.peak_memory_bytes,
            began=row.began,
        )
    return counting


def _clips(key: ColumnElement[K], condition: ColumnElement[bool]) -> Select[*tuple[Any, ...]]:
    """Clips by profile, state, target, and whether they are reused: done, and their batch did not make their file; or
    stored: not done, and their file was there when the batch was planned.
    """
    of_clip = StageRunRow.batch_id == BatchClipRow.batch_id, StageRunRow.clip_id == BatchClipRow.clip_id
    was_made = exists().where(*of_clip, StageRunRow.stage == FILE_STAGE, StageRunRow.state == RunState.MADE)
    had_file = exists().where(*of_clip, StageRunRow.stage == FILE_STAGE, StageRunRow.state.in_(SUCCEEDED))
    is_waiting = BatchClipRow.state.in_(UNFINISHED_CLIP)
    clips = (
        select(
            key.label("key"),
            ClipRow.profile_digest,
            BatchClipRow.state,
            BatchClipRow.failed_stage,
            BatchClipRow.shard.is_not(None).label("has_shard"),
            has_target().label("has_target"),
            and_(BatchClipRow.state == ClipState.DONE, ~was_made).label("is_reused"),
            and_(is_waiting, BatchClipRow.artifact_key.is_not(None), ~had_file).label("is_stored"),
        )
        .join(ClipRow, ClipRow.clip_id == BatchClipRow.clip_id)
        .where(condition)
        .subquery()
    )
    return select(*clips.c, func.count().label("clips")).group_by(*clips.c)


def _runs(key: ColumnElement[K], condition: ColumnElement[bool]) -> Select[*tuple[Any, ...]]:
    """Attempts by stage, outcome, state of the clip, and whether they were its last at the stage."""
    same_clip = and_(StageRunRow.batch_id == BatchClipRow.batch_id, StageRunRow.clip_id == BatchClipRow.clip_id)
    runs = (
        select(
            key.label("key"),
            StageRunRow.stage,
            outcome_of_batch().label("outcome"),
            BatchClipRow.state.label("clip_state"),
            (~was_retried()).label("is_last"),
            StageRunRow.seconds,
            StageRunRow.accelerator_seconds,
            StageRunRow.peak_memory_bytes,
            StageRunRow.started_at,
        )
        .join(BatchClipRow, same_clip)
        .where(condition)
        .subquery()
    )
    keys = runs.c.key, runs.c.stage, runs.c.outcome, runs.c.clip_state, runs.c.is_last
    return select(
        *keys,
        func.count().label("runs"),
        total(runs.c.seconds).label("seconds"),
        total(runs.c.accelerator_seconds).label("accelerator_seconds"),
        func.max(runs.c.peak_memory_bytes).label("peak_memory_bytes"),
        func.min(runs.c.started_at).label("began"),
    ).group_by(*keys)
