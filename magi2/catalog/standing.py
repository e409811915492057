"""What decides whether a stage of a shard may start now."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import ColumnElement, Connection, and_, exists, or_, select

from magi2.catalog.batches import accelerator_seconds, get_batch
from magi2.catalog.records import BatchRecord, BatchState, Request, RunState
from magi2.catalog.states import FINISHED_BATCH, UNFINISHED_CLIP
from magi2.catalog.tables import BatchClipRow, BatchRow, StageRunRow
from magi2.types import StageName


@dataclass(frozen=True, kw_only=True)
class Standing:
    """How a shard stands before one of its stages.

    `requested`: what is asked of its batch; of one that had finished, and now runs again, nothing is. `ahead`: a
    running batch of higher priority with clips that wait for the stage or an earlier one, and are not at work.
    """

    requested: Request | None
    budget: float | None
    accelerator_seconds: float
    ahead: str | None


def requested(connection: Connection, batch_id: str) -> Request | None:
    """What is asked of a batch; nothing of one that is absent or finished."""
    batch = get_batch(connection, batch_id)
    return None if batch is None or batch.state in FINISHED_BATCH else batch.requested


def standing(connection: Connection, batch_id: str, stage: StageName) -> Standing | None:
    """How a batch stands before a stage of one of its shards, or None when it is not in the catalog."""
    batch = get_batch(connection, batch_id)
    if batch is None:
        return None
    return Standing(
        requested=requested(connection, batch_id),
        budget=batch.budget,
        accelerator_seconds=accelerator_seconds(connection, [batch_id])[batch_id],
        ahead=_ahead(connection, batch, stage),
    )


def has_reached(connection: Connection, batch_id: str, shard: int, stage: StageName) -> bool:
    """Whether work on the stage was begun for any clip of the shard."""
    query = select(StageRunRow.clip_id).join(BatchClipRow, _same_clip())
    these = StageRunRow.batch_id == batch_id, BatchClipRow.shard == shard, StageRunRow.stage == stage
    return connection.scalar(query.where(*these).limit(1)) is not None


def _ahead(connection: Connection, batch: BatchRecord, stage: StageName) -> str | None:
    later = list(StageName)[list(StageName).index(stage) :]
    begun = exists().where(_same_clip(), or_(StageRunRow.stage.in_(later), StageRunRow.state == RunState.RUNNING))
    waits = exists().where(
        BatchClipRow.batch_id == BatchRow.batch_id,
        BatchClipRow.state.in_(UNFINISHED_CLIP),
        BatchClipRow.shard.is_not(None),
        ~begun,
    )
    going_on = BatchRow.state == BatchState.RUNNING, BatchRow.requested.is_(None)
    query = select(BatchRow.batch_id).where(*going_on, BatchRow.priority > batch.priority, waits)
    found: str | None = connection.scalar(query.order_by(BatchRow.priority.desc(), BatchRow.created_at).limit(1))
    return found


def _same_clip() -> ColumnElement[bool]:
    return and_(StageRunRow.batch_id == BatchClipRow.batch_id, StageRunRow.clip_id == BatchClipRow.clip_id)
