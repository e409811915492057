"""Statements that SQLite and PostgreSQL both understand, on lists of any length."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, TypeVar

from sqlalchemy import ColumnElement, Connection, and_, case, exists, func, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import InstrumentedAttribute, aliased

from magi2.catalog.records import ClipState, RunState
from magi2.catalog.tables import Base, BatchClipRow, StageRunRow

CHUNK = 1000  # rows of a statement; both databases bound the values in one

T = TypeVar("T")


def chunks(items: Iterable[T], size: int = CHUNK) -> Iterator[list[T]]:
    """The items in lists of at most `size`."""
    iterator = iter(items)
    while chunk := list(islice(iterator, size)):
        yield chunk


def upsert(
    connection: Connection,
    table: type[Base],
    rows: Iterable[Mapping[str, Any]],
    *,
    update: Sequence[str] = (),
    keep_unless_given: Sequence[str] = (),
    where: ColumnElement[bool] | None = None,
) -> None:
    """Insert rows; of those whose primary key is there, replace the columns `update` if `where` holds.

    Columns of `keep_unless_given` are replaced by values that are not NULL only.
    """
    columns = table.__table__.c
    key = [column.name for column in table.__table__.primary_key]
    # In order of the key, so that two writers of the same rows wait for each other instead of locking each other out.
    unique = {tuple(row[name] for name in key): row for row in rows}
    if not unique:
        return
    statement = (sqlite.insert if connection.dialect.name == "sqlite" else postgresql.insert)(table)
    new: dict[str, ColumnElement[Any]] = {name: statement.excluded[name] for name in update}
    new |= {name: func.coalesce(statement.excluded[name], columns[name]) for name in keep_unless_given}
    if new:
        statement = statement.on_conflict_do_update(index_elements=key, set_=new, where=where)
    else:
        statement = statement.on_conflict_do_nothing(index_elements=key)
    connection.execute(statement, [unique[each] for each in sorted(unique)])


def total(column: ColumnElement[Any] | InstrumentedAttribute[Any]) -> ColumnElement[float]:
    """The sum of a column of seconds, 0 without any."""
    return func.coalesce(func.sum(column), 0.0)


def clips_by_state(connection: Connection, batch_id: str | None = None) -> dict[ClipState, int]:
    """The clips of a batch, or of all, by state; every state is there."""
    query = select(BatchClipRow.state, func.count()).group_by(BatchClipRow.state)
    if batch_id is not None:
        query = query.where(BatchClipRow.batch_id == batch_id)
    return dict.fromkeys(ClipState, 0) | {ClipState(state): count for state, count in connection.execute(query)}


def was_retried() -> ColumnElement[bool]:
    """Whether an attempt at a stage of a clip, a `StageRunRow`, was followed by another in its batch."""
    later = aliased(StageRunRow)
    return exists().where(*_same_work(later), later.attempt > StageRunRow.attempt)


def outcome_of_batch() -> ColumnElement[str]:
    """What an attempt, a `StageRunRow`, came to for its batch: what it found is made if an earlier attempt made it."""
    earlier = aliased(StageRunRow)
    was_made_before = exists().where(
        *_same_work(earlier),
        earlier.attempt < StageRunRow.attempt,
        earlier.state == RunState.MADE,
        earlier.artifact_key == StageRunRow.artifact_key,
    )
    found_again = and_(StageRunRow.state == RunState.REUSED, was_made_before)
    return case((found_again, RunState.MADE.value), else_=StageRunRow.state)


def _same_work(other: type[StageRunRow]) -> tuple[ColumnElement[bool], ...]:
    """That another attempt is at the same stage of the same clip in the same batch."""
    return (
        other.batch_id == StageRunRow.batch_id,
        other.clip_id == StageRunRow.clip_id,
        other.stage == StageRunRow.stage,
    )
