"""The failures of a batch as the catalog knows them."""

from __future__ import annotations

from collections.abc import Iterator

from sqlalchemy import Connection, and_, select

from magi2.batches.failure_groups import Failure
from magi2.catalog.records import ClipState
from magi2.catalog.tables import BatchClipRow, RefusedRow, StageRunRow
from magi2.errors import InputError


def failed_clips(connection: Connection, batch_id: str) -> list[Failure]:
    """The clips that failed, by id, with the last error code that an attempt at the stage they failed in gave."""
    attempts = and_(
        StageRunRow.batch_id == BatchClipRow.batch_id,
        StageRunRow.clip_id == BatchClipRow.clip_id,
        StageRunRow.stage == BatchClipRow.failed_stage,
    )
    query = (
        select(BatchClipRow.clip_id, BatchClipRow.failed_stage, StageRunRow.error_code, BatchClipRow.reason)
        .outerjoin(StageRunRow, attempts)
        .where(BatchClipRow.batch_id == batch_id, BatchClipRow.state == ClipState.FAILED)
        .order_by(BatchClipRow.clip_id, StageRunRow.attempt)
    )
    found: dict[str, Failure] = {}
    for clip_id, stage, code, reason in connection.execute(query):
        earlier = found[clip_id].code if clip_id in found else None
        found[clip_id] = Failure(clip_id, stage, code or earlier, reason)
    return list(found.values())


def refused_rows(connection: Connection, batch_id: str) -> Iterator[Failure]:
    """The rows that were refused when the batch was planned."""
    query = select(RefusedRow.row_number, RefusedRow.reason).where(RefusedRow.batch_id == batch_id)
    for number, reason in connection.execute(query.order_by(RefusedRow.row_number)):
        yield Failure(f"row {number}", "plan", InputError.code, reason)
