"""How far many batches are, in a few statements for all of them, and what leads to a batch or a clip."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from sqlalchemy import Connection, Select, func, select

from magi2.catalog.counts import BatchCounts, Counting
from magi2.catalog.engine import Database
from magi2.catalog.kept import LOADED
from magi2.catalog.records import ClipState, RunState
from magi2.catalog.runs import SUCCEEDED
from magi2.catalog.tables import (
    BatchClipRow,
    BatchRow,
    ClipRow,
    ProfileRow,
    RefusedRow,
    ShardClipsRow,
    ShardRunsRow,
    StageRunRow,
)
from magi2.types import StageName, clip_stages


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
    counting = _count(connection, batch_ids, by="batch_id")
    refused = select(RefusedRow.batch_id, func.count()).where(RefusedRow.batch_id.in_(batch_ids))
    rows = {batch_id: count for batch_id, count in connection.execute(refused.group_by(RefusedRow.batch_id))}
    return {each: counting.get(each, Counting()).result(refused_rows=rows.get(each, 0)) for each in batch_ids}


def _of_shards(connection: Connection, batch_id: str) -> dict[int, BatchCounts]:
    # By the shard that a clip is in now: an earlier plan may have put it into another.
    counting = _count(connection, [batch_id], by="shard")
    return {shard: counting[shard].result() for shard in sorted(each for each in counting if each is not None)}


def _count(
    connection: Connection, batch_ids: Sequence[str], *, by: Literal["batch_id", "shard"]
) -> dict[Any, Counting]:
    """What is kept of these batches, added up for each value of a column."""
    clips = connection.execute(_clips(batch_ids, by)).all()
    digests = {row.profile_digest for row in clips}
    contents = select(ProfileRow.digest, ProfileRow.content).where(ProfileRow.digest.in_(digests))
    profiles = {digest: content for digest, content in connection.execute(contents)}
    counting: dict[Any, Counting] = defaultdict(Counting)
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
    for row in connection.execute(_runs(batch_ids, by)):
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


def _clips(batch_ids: Sequence[str], by: str) -> Select[*tuple[Any, ...]]:
    kept = ShardClipsRow
    key = (
        getattr(kept, by).label("key"),
        kept.profile_digest,
        kept.state,
        kept.failed_stage,
        kept.shard.is_not(None).label("has_shard"),
        kept.has_target,
        kept.is_reused,
        kept.is_stored,
    )
    return select(*key, func.sum(kept.clips).label("clips")).where(kept.batch_id.in_(batch_ids)).group_by(*key)


def _runs(batch_ids: Sequence[str], by: str) -> Select[*tuple[Any, ...]]:
    kept = ShardRunsRow
    key = getattr(kept, by).label("key"), kept.stage, kept.outcome, kept.clip_state, kept.is_last
    sums = (
        func.sum(kept.runs).label("runs"),
        func.sum(kept.seconds).label("seconds"),
        func.sum(kept.accelerator_seconds).label("accelerator_seconds"),
        func.max(kept.peak_memory_bytes).label("peak_memory_bytes"),
        func.min(kept.began).label("began"),
    )
    return select(*key, *sums).where(kept.batch_id.in_(batch_ids), kept.state != LOADED).group_by(*key)
