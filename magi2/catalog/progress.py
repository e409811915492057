"""Counting: how far a batch is."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Select, and_, func, select

from magi2.catalog.records import ClipState, StageProgress
from magi2.catalog.states import UNFINISHED_CLIP
from magi2.catalog.tables import BatchClipRow, ClipRow, ProfileRow, StageRunRow
from magi2.types import StageName, profile_stages


def clip_counts(connection: Connection, batch_ids: Sequence[str]) -> dict[str, dict[ClipState, int]]:
    """Clips by state for each of these batches; every state is there."""
    counts = {batch_id: dict.fromkeys(ClipState, 0) for batch_id in batch_ids}
    query = (
        select(BatchClipRow.batch_id, BatchClipRow.state, func.count())
        .where(BatchClipRow.batch_id.in_(batch_ids))
        .group_by(BatchClipRow.batch_id, BatchClipRow.state)
    )
    for batch_id, state, count in connection.execute(query):
        counts[batch_id][ClipState(state)] = count
    return counts


def stage_progress(connection: Connection, batch_id: str) -> dict[StageName, StageProgress]:
    """The stages that the batch's profiles have, in order."""
    unfinished = _unfinished_by_stage(connection, batch_id)
    reached = {stage: count for stage, count in connection.execute(_reached(batch_id))}
    states: dict[str, dict[str, int]] = defaultdict(dict)
    for stage, state, count in connection.execute(_last_attempts(batch_id)):
        states[stage][state] = count
    costs = {row.stage: row for row in connection.execute(_costs(batch_id))}
    progress = {}
    for stage in (each for each in StageName if each in unfinished):
        cost = costs.get(stage)
        progress[stage] = StageProgress(
            waiting=unfinished[stage] - reached.get(stage, 0),
            **states[stage],
            seconds=cost.seconds if cost else 0.0,
            accelerator_seconds=cost.accelerator_seconds if cost else 0.0,
            peak_memory_bytes=cost.peak_memory_bytes if cost else None,
        )
    return progress


def _unfinished_by_stage(connection: Connection, batch_id: str) -> Counter[StageName]:
    """How many unfinished clips have the stage in their profile; every stage of the batch's profiles is there."""
    query = (
        select(ClipRow.profile_digest, func.count().filter(BatchClipRow.state.in_(UNFINISHED_CLIP)))
        .join(BatchClipRow, BatchClipRow.clip_id == ClipRow.clip_id)
        .where(BatchClipRow.batch_id == batch_id)
        .group_by(ClipRow.profile_digest)
    )
    counts = {digest: count for digest, count in connection.execute(query)}
    profiles = select(ProfileRow.digest, ProfileRow.content).where(ProfileRow.digest.in_(counts))
    stages: Counter[StageName] = Counter()
    for digest, content in connection.execute(profiles):
        for stage in profile_stages(content):
            stages[stage] += counts[digest]
    return stages


def _reached(batch_id: str) -> Select[*tuple[Any, ...]]:
    clip = and_(BatchClipRow.batch_id == StageRunRow.batch_id, BatchClipRow.clip_id == StageRunRow.clip_id)
    return (
        select(StageRunRow.stage, func.count(StageRunRow.clip_id.distinct()))
        .join(BatchClipRow, clip)
        .where(StageRunRow.batch_id == batch_id, BatchClipRow.state.in_(UNFINISHED_CLIP))
        .group_by(StageRunRow.stage)
    )


def _last_attempts(batch_id: str) -> Select[*tuple[Any, ...]]:
    """Clips by stage and state of their last attempt."""
    last = (
        select(StageRunRow.clip_id, StageRunRow.stage, func.max(StageRunRow.attempt).label("attempt"))
        .where(StageRunRow.batch_id == batch_id)
        .group_by(StageRunRow.clip_id, StageRunRow.stage)
        .subquery()
    )
    same = and_(
        StageRunRow.clip_id == last.c.clip_id,
        StageRunRow.stage == last.c.stage,
        StageRunRow.attempt == last.c.attempt,
    )
    return (
        select(StageRunRow.stage, StageRunRow.state, func.count())
        .join(last, same)
        .where(StageRunRow.batch_id == batch_id)
        .group_by(StageRunRow.stage, StageRunRow.state)
    )


def _costs(batch_id: str) -> Select[*tuple[Any, ...]]:
    """What all attempts took, by stage."""
    return (
        select(
            StageRunRow.stage,
            func.coalesce(func.sum(StageRunRow.seconds), 0.0).label("seconds"),
            func.coalesce(func.sum(StageRunRow.accelerator_seconds), 0.0).label("accelerator_seconds"),
            func.max(StageRunRow.peak_memory_bytes).label("peak_memory_bytes"),
        )
        .where(StageRunRow.batch_id == batch_id)
        .group_by(StageRunRow.stage)
    )
