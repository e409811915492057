"""What people ask of a batch while it runs, and the log of who asked for what."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, Row, func, insert, or_, select, update

from magi2.catalog.batches import get_batch, require_batch
from magi2.catalog.engine import Database
from magi2.catalog.records import Action, ActionRecord, Actor, BatchRecord, Page, Request, now
from magi2.catalog.states import FINISHED_BATCH, StateError
from magi2.catalog.streak import Streak, find_streak
from magi2.catalog.tables import BatchActionRow, BatchRow
from magi2.config.price import check_budget
from magi2.errors import InputError
from magi2.types import StageName

BY_ITSELF = Actor("magi2", "MAGI-2")
"""Who pauses a batch when nobody does."""


class Control:
    """Wishes for batches. Each is entered together with its line in the log, or not at all.

    Whoever runs the batch obeys when it next asks: between two clips and between two stages of a shard. All raise
    StateError for a batch that is absent, InfrastructureError when the database does not answer.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def pause(self, batch_id: str, *, by: Actor) -> None:
        """Let nothing of the batch begin until it is resumed. Raises StateError when it is finished or cancelled."""
        self._database.write(_ask, batch_id, Request.PAUSE, Action.PAUSE, by)

    def resume(self, batch_id: str, *, by: Actor) -> None:
        """Let a paused batch go on. Raises StateError when it is finished or cancelled."""
        self._database.write(_ask, batch_id, None, Action.RESUME, by)

    def cancel(self, batch_id: str, *, by: Actor) -> None:
        """End the batch before its next clip, for good. Raises StateError when it is finished.

        The batch becomes cancelled when its run ends, or by `Batches.mark` as soon as the run is known to have ended.
        """
        self._database.write(_ask, batch_id, Request.CANCEL, Action.CANCEL, by)

    def set_priority(self, batch_id: str, priority: int, *, by: Actor) -> None:
        """Let the batch's waiting shards start before those of batches of lower priority."""
        self._database.write(_set, batch_id, {"priority": priority}, Action.SET_PRIORITY, by)

    def set_budget(self, batch_id: str, budget: float | None, *, by: Actor) -> None:
        """Set what the batch may cost, or None for no limit. Raises InputError for a budget that is none.

        Clips that were skipped for a lower one are rendered when their tasks are cleared, or by a rerun.
        """
        check_budget(budget)
        self._database.write(_set, batch_id, {"budget": budget}, Action.SET_BUDGET, by)

    def set_limit(self, batch_id: str, limit: int, *, by: Actor) -> None:
        """Set how many clips may fail. Raises InputError for less than none.

        What was left out of an ended batch for a lower one is rendered when the batch is resumed.
        """
        if limit < 0:
            raise InputError(f"the failure limit is {limit}, must be 0 or more")
        self._database.write(_set, batch_id, {"failure_limit": limit}, Action.SET_LIMIT, by)

    def pause_at_streak(self, batch_id: str, stage: StageName) -> Streak | None:
        """Pause the batch if its last clips at the stage make a streak of equal failures, which is returned.

        None also for a batch of which something else is asked already, or that is not in the catalog.
        """
        return self._database.write(_pause_at_streak, batch_id, stage)

    def pause_reason(self, batch: BatchRecord) -> str | None:
        """Why a batch is paused, for people; None for one that is not."""
        last = self.last_pause(batch.batch_id) if batch.is_paused else None
        return None if last is None else str(Streak.of(last.arguments) or f"paused by {last.by.name}")

    def last_streak(self, batch_id: str) -> Streak | None:
        """The streak that a batch was last paused for; None where somebody paused it, or nobody ever did."""
        last = self.last_pause(batch_id)
        return None if last is None else Streak.of(last.arguments)

    def last_pause(self, batch_id: str) -> ActionRecord | None:
        """When and by whom a batch was last paused, and of which streak its arguments tell if it was by itself."""
        return self._database.read(_last_pause, batch_id)

    def note(self, batch_id: str, action: Action, arguments: Mapping[str, Any], *, by: Actor) -> None:
        """Write down what was done to a batch by other means."""
        self._database.write(_log, batch_id, action, arguments, by)

    def actions(self, batch_id: str, *, offset: int = 0, limit: int = 50) -> Page[ActionRecord]:
        """What was done to a batch, the latest first."""
        query = select(BatchActionRow.__table__).where(BatchActionRow.batch_id == batch_id)
        count = select(func.count()).select_from(BatchActionRow).where(BatchActionRow.batch_id == batch_id)
        ordered = query.order_by(BatchActionRow.action_id.desc()).offset(offset).limit(limit)

        def work(connection: Connection) -> Page[ActionRecord]:
            return Page([_record(row) for row in connection.execute(ordered)], connection.scalar(count) or 0)

        return self._database.read(work)


def _ask(connection: Connection, batch_id: str, request: Request | None, action: Action, by: Actor) -> None:
    query = update(BatchRow).where(BatchRow.batch_id == batch_id, BatchRow.state.not_in(FINISHED_BATCH))
    if request is not Request.CANCEL:
        query = query.where(or_(BatchRow.requested.is_(None), BatchRow.requested != Request.CANCEL))
    if connection.execute(query.values(requested=request)).rowcount == 0:
        batch = require_batch(connection, batch_id)
        asked = f", was asked to {batch.requested}" if batch.requested else ""
        raise StateError(f"batch {batch_id} is {batch.state}{asked}: too late to {action}")
    _log(connection, batch_id, action, {}, by)


def _pause_at_streak(connection: Connection, batch_id: str, stage: StageName) -> Streak | None:
    batch = get_batch(connection, batch_id)
    streak = None if batch is None else find_streak(connection, batch, stage)
    if streak is None:
        return None
    these = BatchRow.batch_id == batch_id, BatchRow.state.not_in(FINISHED_BATCH), BatchRow.requested.is_(None)
    if connection.execute(update(BatchRow).where(*these).values(requested=Request.PAUSE)).rowcount == 0:
        return None
    _log(connection, batch_id, Action.PAUSE, streak.to_json(), BY_ITSELF)
    return streak


def _last_pause(connection: Connection, batch_id: str) -> ActionRecord | None:
    query = select(BatchActionRow.__table__).where(
        BatchActionRow.batch_id == batch_id, BatchActionRow.action == Action.PAUSE
    )
    row = connection.execute(query.order_by(BatchActionRow.action_id.desc()).limit(1)).one_or_none()
    return None if row is None else _record(row)


def _set(connection: Connection, batch_id: str, values: Mapping[str, Any], action: Action, by: Actor) -> None:
    connection.execute(update(BatchRow).where(BatchRow.batch_id == batch_id).values(**values))
    _log(connection, batch_id, action, values, by)


def _log(connection: Connection, batch_id: str, action: Action, arguments: Mapping[str, Any], by: Actor) -> None:
    require_batch(connection, batch_id)
    values = {"batch_id": batch_id, "at": now(), "user_id": by.user_id, "user_name": by.name}
    connection.execute(insert(BatchActionRow).values(**values, action=action, arguments=dict(arguments)))


def _record(row: Row[Any]) -> ActionRecord:
    return ActionRecord(
        batch_id=row.batch_id,
        at=row.at,
        by=Actor(row.user_id, row.user_name),
        action=Action(row.action),
        arguments=row.arguments,
    )
