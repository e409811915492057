"""Whether the kept numbers are what the rows add up to, and counting everything anew."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sqlalchemy import Connection, FromClause, Select, delete, func, or_, select, text, true, union_all

from magi2.catalog.engine import Database
from magi2.catalog.kept import KEPT_TABLES, LANES, Kept, Place, add_to_totals, as_text, count_batch, lane_of, lock_lanes
from magi2.catalog.tables import BatchRow, ShardClipsRow, ShardRunsRow

_NEAR_S = 0.001
"""Two sums of the same seconds differ by less, in whatever order they were added up."""
_NEAR_TOTAL_S = 1.0
_SECONDS = """
SELECT count(*) FROM batch_clips WHERE batch_id = :batch_id AND (
    abs(seconds - (SELECT coalesce(sum(r.seconds), 0) FROM stage_runs r
        WHERE r.batch_id = batch_clips.batch_id AND r.clip_id = batch_clips.clip_id)) > :near
    OR abs(accelerator_seconds - (SELECT coalesce(sum(r.accelerator_seconds), 0) FROM stage_runs r
        WHERE r.batch_id = batch_clips.batch_id AND r.clip_id = batch_clips.clip_id)) > :near)
"""
_ADD_UP = """
UPDATE batch_clips SET (seconds, accelerator_seconds) = (
    SELECT coalesce(sum(r.seconds), 0), coalesce(sum(r.accelerator_seconds), 0) FROM stage_runs r
    WHERE r.batch_id = batch_clips.batch_id AND r.clip_id = batch_clips.clip_id)
WHERE batch_id = :batch_id
"""


def miscounted(database: Database) -> Iterator[tuple[str | None, str]]:
    """Batches whose kept numbers are wrong, and why; None is all batches together.

    Each is looked at in one statement, so that what is written meanwhile is either in both or in neither.
    """
    for batch_id in database.read(_batch_ids):
        if wrong := database.read(_wrong_counts, batch_id):
            yield batch_id, f"{wrong} of the numbers that are kept of it are not what its rows add up to"
        if wrong := database.read(_wrong_seconds, batch_id):
            yield batch_id, f"the seconds that are kept of {wrong} of its clips are not those of their attempts"
    if wrong := database.read(_wrong_totals):
        yield None, f"{wrong} of the totals of all batches are not what the numbers of their shards add up to"


def recount(database: Database) -> None:
    """Count every batch anew, each in a transaction of its own, and then all of them together."""
    for batch_id in database.read(_batch_ids):
        database.write(_recount, batch_id)
    database.write(_recount_totals)


def _batch_ids(connection: Connection) -> list[str]:
    ids = (select(table.batch_id).distinct() for table in (BatchRow, ShardClipsRow, ShardRunsRow))
    return sorted({batch_id for query in ids for batch_id in connection.scalars(query)})


def _recount(connection: Connection, batch_id: str) -> None:
    connection.execute(text(_ADD_UP), {"batch_id": batch_id})
    lock_lanes(connection, range(LANES))
    count_batch(connection, batch_id)


def _recount_totals(connection: Connection) -> None:
    lock_lanes(connection, range(LANES))
    for kept in KEPT_TABLES:
        connection.execute(delete(kept.totals))
        connection.execute(as_text(add_to_totals(connection.dialect.name, kept, true(), 1), connection.dialect.name))


def _wrong_counts(connection: Connection, batch_id: str) -> int:
    return sum(
        connection.scalar(as_text(_difference(kept), connection.dialect.name), {"batch_id": batch_id}) or 0
        for kept in KEPT_TABLES
    )


def _difference(kept: Kept) -> Select[int]:
    fresh = kept.fresh(Place()).subquery()
    counted = select(*(each.label(name) for each, name in zip(fresh.c, kept.columns, strict=True))).subquery()
    stored = select(kept.table.__table__).where(Place().of(kept.table)).subquery()
    key = [name for name in kept.columns if name not in kept.sums]
    return _unequal(counted, stored, key, kept.sums, _NEAR_S)


def _wrong_totals(connection: Connection) -> int:
    return sum(connection.scalar(_total_difference(kept)) or 0 for kept in KEPT_TABLES)


def _total_difference(kept: Kept) -> Select[int]:
    key = [each.name for each in kept.totals.__table__.primary_key]
    columns = kept.table.__table__.c
    added = select(lane_of(kept.table).label("lane"), *(columns[name] for name in (*key[1:], *kept.sums))).subquery()
    return _unequal(added, kept.totals.__table__, key, kept.sums, _NEAR_TOTAL_S)


def _unequal(one: FromClause, other: FromClause, key: Sequence[str], sums: Sequence[str], near: float) -> Select[int]:
    """How many values of a key have other sums on the two sides; counts differ by one at least."""
    both = union_all(
        select(*(one.c[name] for name in key), *(one.c[name].label(name) for name in sums)),
        select(*(other.c[name] for name in key), *((-other.c[name]).label(name) for name in sums)),
    ).subquery()
    keys = [both.c[name] for name in key]
    differ = or_(
        func.abs(func.sum(both.c[sums[0]])) > 0, *(func.abs(func.sum(both.c[name])) > near for name in sums[1:])
    )
    return select(func.count()).select_from(select(*keys).group_by(*keys).having(differ).subquery())


def _wrong_seconds(connection: Connection, batch_id: str) -> int:
    return connection.scalar(text(_SECONDS), {"batch_id": batch_id, "near": _NEAR_S}) or 0
