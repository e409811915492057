"""Equal failures in a row: as many as a batch has for its limit pause it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy import Connection, and_, func, or_, select

from magi2.batches.failure_groups import masked
from magi2.catalog.records import Action, BatchRecord, ClipState, RunState
from magi2.catalog.runs import SUCCEEDED
from magi2.catalog.statements import was_retried
from magi2.catalog.tables import BatchActionRow, BatchClipRow, StageRunRow
from magi2.types import StageName


@dataclass(frozen=True)
class Streak:
    """So many clips in a row failed in one stage with one error code; `example` is the last message, masked."""

    streak: int
    stage: str
    code: str | None
    example: str | None

    def __str__(self) -> str:
        return f"{self.streak} clips in a row failed in {self.stage}, {self.code or 'no code'}: {self.example or '-'}"

    @classmethod
    def of(cls, arguments: Mapping[str, Any]) -> Streak | None:
        """The streak that the arguments of an action tell of, None where they tell of none."""
        return cls(**arguments) if "streak" in arguments else None

    def to_json(self) -> dict[str, Any]:
        """The arguments of an action that tell of it."""
        return asdict(self)


def find_streak(connection: Connection, batch: BatchRecord, stage: StageName) -> Streak | None:
    """The streak that the batch is to be paused for, if the clips that came to an end last at the stage make one.

    They count in the order of their ends, whatever their shards, since the batch was last resumed. A clip counts once,
    by its last attempt, and not while it is to be tried again.
    """
    if not batch.failure_streak:
        return None
    for_good = and_(BatchClipRow.state == ClipState.FAILED, BatchClipRow.failed_stage == StageRunRow.stage)
    query = (
        select(StageRunRow.state, StageRunRow.error_code, StageRunRow.error)
        .join(
            BatchClipRow,
            and_(BatchClipRow.batch_id == StageRunRow.batch_id, BatchClipRow.clip_id == StageRunRow.clip_id),
        )
        .where(
            StageRunRow.batch_id == batch.batch_id,
            StageRunRow.stage == stage,
            or_(StageRunRow.state.in_(SUCCEEDED), and_(StageRunRow.state == RunState.FAILED, for_good)),
            ~was_retried(),
        )
    )
    resumed = (BatchActionRow.batch_id == batch.batch_id, BatchActionRow.action == Action.RESUME)
    since = connection.scalar(select(func.max(BatchActionRow.at)).where(*resumed))
    if since is not None:
        query = query.where(StageRunRow.finished_at > since)
    latest = query.order_by(StageRunRow.finished_at.desc().nulls_last()).limit(batch.failure_streak)
    ends = [tuple(row) for row in connection.execute(latest)]
    outcomes = {(state, code) for state, code, _ in ends}
    if len(ends) < batch.failure_streak or len(outcomes) > 1 or ends[0][0] != RunState.FAILED:
        return None
    _, code, error = ends[0]
    return Streak(len(ends), stage.value, code, None if error is None else masked(error))
