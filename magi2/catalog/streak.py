"""Equal failures in a row: as many as a batch has for its limit pause it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Select, and_, or_, select

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
    clips: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.streak} clips in a row failed in {self.stage}, {self.code or 'no code'}: {self.example or '-'}"

    @classmethod
    def of(cls, arguments: Mapping[str, Any]) -> Streak | None:
        """The streak that the arguments of an action tell of, None where they tell of none."""
        return cls(**{**arguments, "clips": tuple(arguments["clips"])}) if "streak" in arguments else None

    def to_json(self) -> dict[str, Any]:
        """The arguments of an action that tell of it."""
        return {**asdict(self), "clips": list(self.clips)}


def find_streak(connection: Connection, batch: BatchRecord, stage: StageName) -> Streak | None:
    """The streak that the batch is to be paused for, if the clips that came to an end last at the stage make one.

    They count in the order of their ends, whatever their shards, since the batch was last resumed. A clip counts once,
    by its last attempt, and not while it is to be tried again; nor does one that the batch was paused for before, since
    a stage that goes on tries it anew.
    """
    if not batch.failure_streak:
        return None
    actions = _actions(connection, batch.batch_id)
    query = _ends(batch.batch_id, stage).where(StageRunRow.clip_id.not_in(_paused_for(actions, stage)))
    since = max((at for at, action, _ in actions if action == Action.RESUME), default=None)
    if since is not None:
        query = query.where(StageRunRow.finished_at > since)
    ends = [tuple(row) for row in connection.execute(query.limit(batch.failure_streak))]
    outcomes = {(state, code) for _, state, code, _ in ends}
    if len(ends) < batch.failure_streak or len(outcomes) > 1 or ends[0][1] != RunState.FAILED:
        return None
    _, _, code, error = ends[0]
    example = None if error is None else masked(error)
    return Streak(len(ends), stage.value, code, example, tuple(clip_id for clip_id, *_ in ends))


def _ends(batch_id: str, stage: StageName) -> Select[*tuple[Any, ...]]:
    """What clips came to at a stage for good, the latest first."""
    same_clip = and_(BatchClipRow.batch_id == StageRunRow.batch_id, BatchClipRow.clip_id == StageRunRow.clip_id)
    for_good = and_(
        StageRunRow.state == RunState.FAILED,
        BatchClipRow.state == ClipState.FAILED,
        BatchClipRow.failed_stage == StageRunRow.stage,
    )
    return (
        select(StageRunRow.clip_id, StageRunRow.state, StageRunRow.error_code, StageRunRow.error)
        .join(BatchClipRow, same_clip)
        .where(StageRunRow.batch_id == batch_id, StageRunRow.stage == stage, ~was_retried())
        .where(or_(StageRunRow.state.in_(SUCCEEDED), for_good))
        .order_by(StageRunRow.finished_at.desc().nulls_last())
    )


def _actions(connection: Connection, batch_id: str) -> list[tuple[datetime, str, Mapping[str, Any]]]:
    wanted = BatchActionRow.action.in_((Action.PAUSE, Action.RESUME))
    query = select(BatchActionRow.at, BatchActionRow.action, BatchActionRow.arguments)
    rows = connection.execute(query.where(BatchActionRow.batch_id == batch_id, wanted))
    return [(at, action, arguments) for at, action, arguments in rows]


def _paused_for(actions: Iterable[tuple[datetime, str, Mapping[str, Any]]], stage: StageName) -> set[str]:
    """The clips whose failures at the stage have paused the batch."""
    streaks = (Streak.of(arguments) for _, _, arguments in actions)
    return {clip_id for streak in streaks if streak and streak.stage == stage for clip_id in streak.clips}
