"""Batches in the catalog."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, case, delete, exists, func, or_, select, update

from magi2.batches.failure_groups import FailureGroup, group_failures
from magi2.catalog.engine import Database
from magi2.catalog.failures import failed_clips, refused_rows
from magi2.catalog.records import (
    Action,
    BatchRecord,
    BatchState,
    ClipState,
    NewBatch,
    Page,
    Profiles,
    Request,
    RunState,
    now,
)
from magi2.catalog.statements import chunks, clips_by_state, total, upsert
from magi2.catalog.states import BATCH_SOURCES, FINISHED_BATCH, UNFINISHED_BATCH, UNFINISHED_CLIP, StateError
from magi2.catalog.tables import (
    BatchActionRow,
    BatchClipRow,
    BatchRow,
    ProfileRow,
    RefusedRow,
    ShardRunsRow,
    StageRunRow,
)


class Batches:
    """What was asked for, and how far it is. All raise InfrastructureError when the database does not answer."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def create(self, batch: NewBatch, profiles: Profiles) -> None:
        """Enter a batch and the resolved profiles, by digest, of its clips.

        A batch that is there is brought up to date; one that is finished is left as it is.
        """
        self._database.write(insert_batch, batch, profiles)

    def refuse_rows(self, batch_id: str, reasons: Mapping[int, str]) -> None:
        """Enter the rows of the batch file, by number, that cannot be rendered. Raises StateError without a batch."""
        rows = [{"batch_id": batch_id, "row_number": number, "reason": text} for number, text in reasons.items()]
        for chunk in chunks(rows):
            self._database.write(upsert, RefusedRow, chunk, update=["reason"])

    def refused_rows(self, batch_id: str) -> dict[int, str]:
        """Why rows were refused, by their number."""
        query = select(RefusedRow.row_number, RefusedRow.reason).where(RefusedRow.batch_id == batch_id)
        rows = self._database.read(lambda connection: connection.execute(query.order_by(RefusedRow.row_number)).all())
        return {number: reason for number, reason in rows}

    def failure_groups(self, batch_id: str) -> list[FailureGroup]:
        """Failed clips and refused rows by stage and error code, the largest group first."""

        def work(connection: Connection) -> list[FailureGroup]:
            return group_failures([*failed_clips(connection, batch_id), *refused_rows(connection, batch_id)])

        return self._database.read(work)

    def get(self, batch_id: str) -> BatchRecord | None:
        """The batch, or None."""
        return self._database.read(get_batch, batch_id)

    def search(
        self, *, state: BatchState | None = None, text: str | None = None, offset: int = 0, limit: int = 50
    ) -> Page[BatchRecord]:
        """Batches, the newest first. `text` is looked for in id, name and source, whatever the case."""
        conditions: list[ColumnElement[bool]] = []
        if state is not None:
            conditions.append(BatchRow.state == state)
        if text:
            columns = (BatchRow.batch_id, BatchRow.name, BatchRow.source)
            conditions.append(or_(*(column.icontains(text, autoescape=True) for column in columns)))
        query = select(BatchRow.__table__).where(*conditions)
        ordered = query.order_by(BatchRow.created_at.desc(), BatchRow.batch_id).offset(offset).limit(limit)

        def work(connection: Connection) -> Page[BatchRecord]:
            total = connection.scalar(select(func.count()).select_from(BatchRow).where(*conditions))
            return Page([_record(row) for row in connection.execute(ordered)], total or 0)

        return self._database.read(work)

    def mark(self, batch_id: str, state: BatchState) -> None:
        """Move a batch to a state; one that is cancelled takes its unfinished clips along.

        A finished batch may run again, which also ends an old request. Raises StateError when the batch is absent,
        cannot get there from where it is, or is said to be done while clips are not finished.
        """
        self._database.write(_mark, batch_id, state)

    def unfinished(self) -> list[BatchRecord]:
        """The batches that have not ended, the oldest first."""
        query = select(BatchRow.__table__).where(BatchRow.state.in_(UNFINISHED_BATCH)).order_by(BatchRow.created_at)
        return self._database.read(lambda connection: [_record(row) for row in connection.execute(query)])

    def unfinished_by_hand(self) -> list[str]:
        """The ids of those that have not ended and that a command began, the oldest first."""
        return [batch.batch_id for batch in self.unfinished() if batch.run_id is None]

    def last_activity(self, batch_ids: Sequence[str] | None = None) -> dict[str, datetime]:
        """When a run of a clip last began or ended, by batch; by default of running ones that are not asked to stop."""
        return self._database.read(_last_activity, batch_ids)

    def lost_clips(self, batch_id: str, *, lost_shard: int | None = None) -> int:
        """How many clips failed by themselves, or with a shard that is not tried again; refused rows count.

        Clips that are failed only until their shard is tried again are left out.
        """
        return self._database.read(_lost_clips, batch_id, lost_shard)

    def delete(self, batch_id: str) -> None:
        """Forget a batch that has ended, with its clips, runs and actions; nothing where it is absent.

        Raises StateError for one that goes on.
        """
        self._database.write(_delete, batch_id)

    def accelerator_seconds(self, batch_ids: Sequence[str]) -> dict[str, float]:
        """What each of these batches took so far, all attempts and all ranks together."""
        return self._database.read(accelerator_seconds, batch_ids)


def insert_batch(connection: Connection, batch: NewBatch, profiles: Profiles) -> None:
    """Enter a batch that is waiting, with its profiles."""
    rows = [{"digest": digest, "content": dict(content)} for digest, content in profiles.items()]
    upsert(connection, ProfileRow, rows)
    values = vars(batch)
    row = {**values, "state": BatchState.WAITING, "requested": None, "finished_at": None}
    # What may have been changed since the batch was planned stays; for the limits see below.
    kept = ("batch_id", "created_at", "priority", "budget", "failure_limit")
    changeable = [name for name in values if name not in kept]
    is_open = BatchRow.state.not_in(FINISHED_BATCH)
    upsert(connection, BatchRow, [row], update=changeable, where=is_open)
    _take_limits(connection, batch, or_(is_open, BatchRow.run_id.is_(None)))


def _take_limits(connection: Connection, batch: NewBatch, condition: ColumnElement[bool]) -> None:
    """Take the limits of the plan, also of a command that is called again; none that somebody set is lowered."""
    was_set = exists().where(
        BatchActionRow.batch_id == batch.batch_id,
        BatchActionRow.action == Action.SET_LIMIT,
        BatchRow.failure_limit > batch.failure_limit,
    )
    limit = case((was_set, BatchRow.failure_limit), else_=batch.failure_limit)
    values = {"failure_limit": limit, "on_limit": batch.on_limit, "failure_streak": batch.failure_streak}
    connection.execute(update(BatchRow).where(BatchRow.batch_id == batch.batch_id, condition).values(**values))


def _delete(connection: Connection, batch_id: str) -> None:
    batch = get_batch(connection, batch_id)
    if batch is not None:
        require_ended(batch)
        connection.execute(delete(BatchRow).where(BatchRow.batch_id == batch_id))


def require_ended(batch: BatchRecord) -> None:
    """Raises StateError for a batch that goes on, or waits."""
    if batch.state not in FINISHED_BATCH:
        raise StateError(f"batch {batch.batch_id} is {batch.state}: cancel it before it is deleted")


def _mark(connection: Connection, batch_id: str, state: BatchState) -> None:
    batch = require_batch(connection, batch_id)
    counts = clips_by_state(connection, batch_id)
    unfinished = sum(counts[state] for state in UNFINISHED_CLIP)
    if state is BatchState.DONE and unfinished:
        raise StateError(f"batch {batch_id}: is not done, {unfinished} clips are not finished")
    reopened = batch.state in FINISHED_BATCH and state is BatchState.RUNNING
    query = (
        update(BatchRow)
        .where(BatchRow.batch_id == batch_id, BatchRow.state.in_(BATCH_SOURCES[state]))
        .values(
            state=state,
            finished_at=case((BatchRow.state == state, BatchRow.finished_at), else_=now())
            if state in FINISHED_BATCH
            else None,
            requested=None if reopened else BatchRow.requested,
        )
    )
    if connection.execute(query).rowcount == 0:
        raise StateError(f"batch {batch_id} is {batch.state} and cannot become {state}")
    if state is BatchState.CANCELLED:
        clips = update(BatchClipRow).where(BatchClipRow.batch_id == batch_id, BatchClipRow.state.in_(UNFINISHED_CLIP))
        connection.execute(clips.values(state=ClipState.CANCELLED, updated_at=now()))


def count_failures(connection: Connection, batch_id: str) -> int:
    """How many clips of the batch failed; refused rows count."""
    clips = BatchClipRow.batch_id == batch_id, BatchClipRow.state == ClipState.FAILED
    rows = select(func.count()).select_from(RefusedRow).where(RefusedRow.batch_id == batch_id)
    failed = select(func.count()).select_from(BatchClipRow).where(*clips)
    return (connection.scalar(failed) or 0) + (connection.scalar(rows) or 0)


def accelerator_seconds(connection: Connection, batch_ids: Sequence[str]) -> dict[str, float]:
    """What each of these batches took so far."""
    query = select(ShardRunsRow.batch_id, total(ShardRunsRow.accelerator_seconds)).group_by(ShardRunsRow.batch_id)
    rows = connection.execute(query.where(ShardRunsRow.batch_id.in_(batch_ids)))
    return dict.fromkeys(batch_ids, 0.0) | {batch_id: seconds for batch_id, seconds in rows}


def _last_activity(connection: Connection, batch_ids: Sequence[str] | None) -> dict[str, datetime]:
    these = (
        (BatchRow.state == BatchState.RUNNING, BatchRow.requested.is_(None))
        if batch_ids is None
        else (BatchRow.batch_id.in_(batch_ids),)
    )
    query = (
        select(
            BatchRow.batch_id,
            BatchRow.created_at,
            func.max(StageRunRow.started_at),
            func.max(StageRunRow.finished_at),
        )
        .outerjoin(StageRunRow, StageRunRow.batch_id == BatchRow.batch_id)
        .where(*these)
        .group_by(BatchRow.batch_id, BatchRow.created_at)
    )
    return {batch_id: max(filter(None, moments)) for batch_id, *moments in connection.execute(query)}


def _lost_clips(connection: Connection, batch_id: str, lost_shard: int | None) -> int:
    by_itself = exists().where(
        StageRunRow.batch_id == BatchClipRow.batch_id,
        StageRunRow.clip_id == BatchClipRow.clip_id,
        StageRunRow.stage == BatchClipRow.failed_stage,
        StageRunRow.state == RunState.FAILED,
        StageRunRow.seconds.is_not(None),  # only the result of a clip has them
    )
    these = BatchClipRow.batch_id == batch_id, BatchClipRow.state == ClipState.FAILED
    lost = by_itself if lost_shard is None else or_(by_itself, BatchClipRow.shard == lost_shard)
    clips = select(func.count()).select_from(BatchClipRow).where(*these, lost)
    rows = select(func.count()).select_from(RefusedRow).where(RefusedRow.batch_id == batch_id)
    return (connection.scalar(clips) or 0) + (connection.scalar(rows) or 0)


def get_batch(connection: Connection, batch_id: str) -> BatchRecord | None:
    """The batch, or None."""
    row = connection.execute(select(BatchRow.__table__).where(BatchRow.batch_id == batch_id)).one_or_none()
    return None if row is None else _record(row)


def planned_ids(connection: Connection) -> list[str]:
    """All batches but those that were refused as a whole, which have no clips and no documents."""
    refused = exists().where(RefusedRow.batch_id == BatchRow.batch_id)
    query = select(BatchRow.batch_id).where(or_(BatchRow.clips_total > 0, ~refused))
    return list(connection.scalars(query.order_by(BatchRow.batch_id)))


def require_batch(connection: Connection, batch_id: str) -> BatchRecord:
    """The batch. Raises StateError when there is none."""
    batch = get_batch(connection, batch_id)
    if batch is None:
        raise StateError(f"there is no batch {batch_id!r} in the catalog")
    return batch


def _record(row: Row[Any]) -> BatchRecord:
    values = {each.name: getattr(row, each.name) for each in fields(BatchRecord)}
    requested = row.requested and Request(row.requested)
    return BatchRecord(**{**values, "state": BatchState(row.state), "requested": requested})
