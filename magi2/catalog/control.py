"""What people ask of a batch while it runs, and the log of who asked for what."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, Row, func, insert, or_, select, update

from magi2.catalog.batches import require_batch
from magi2.catalog.engine import Database
from magi2.catalog.records import Action, ActionRecord, Actor, Page, Request, now
from magi2.catalog.states import FINISHED_BATCH, StateError
from magi2.catalog.tables import BatchActionRow, BatchRow
from magi2.config.price import check_budget


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
