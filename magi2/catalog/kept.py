"""Numbers that are kept beside what they count, so that no reader adds up the past.

Triggers note which shards a transaction changed, whoever wrote and by whatever statement. Before the transaction ends
`settle_counts` counts these shards anew, so a number is never a sum of changes that may have missed one. The totals
follow by the difference. A shard belongs to one of a few lanes, each with a lock that is taken last and in order: who
holds one waits for nobody's rows, and shards that work at once rarely wait for each other.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any, NamedTuple

from sqlalchemy import (
    ColumnElement,
    Connection,
    Select,
    and_,
    cast,
    delete,
    exists,
    func,
    insert,
    literal,
    null,
    select,
    text,
    true,
    union_all,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.types import Text

from magi2.catalog.clips import has_target
from magi2.catalog.records import ClipState, RunState
from magi2.catalog.runs import FILE_STAGE, SUCCEEDED
from magi2.catalog.statements import outcome_of_batch, total, was_retried
from magi2.catalog.states import UNFINISHED_CLIP
from magi2.catalog.tables import (
    BatchClipRow,
    ChangedCountRow,
    ClipRow,
    ShardClipsRow,
    ShardRunsRow,
    StageRunRow,
    TotalClipsRow,
    TotalRunsRow,
    WeightLoadRow,
)

LOADED = "loaded"
"""In place of a run's state: loads of weights."""
LANES = 16
_LOCK = 0x6D616769  # "magi"
_ROUNDED_S = 3  # digits in which two sums of the same seconds agree, in whatever order they were added up


class _Kept(NamedTuple):
    """A table of kept numbers, what it is counted from, and the totals that add it up."""

    table: type[ShardClipsRow] | type[ShardRunsRow]
    totals: type[TotalClipsRow] | type[TotalRunsRow]
    sums: tuple[str, ...]

    @property
    def columns(self) -> list[str]:
        return [column.name for column in self.table.__table__.c if column.name != "number"]

    def of(self, batch_id: str) -> ColumnElement[bool]:
        return self.table.batch_id == batch_id


_CLIPS = _Kept(ShardClipsRow, TotalClipsRow, ("clips",))
_RUNS = _Kept(ShardRunsRow, TotalRunsRow, ("runs", "seconds", "accelerator_seconds"))


def settle_counts(connection: Connection) -> None:
    """Count anew what this transaction changed. To be called at its end, by `Database.write` of a catalog."""
    noted = delete(ChangedCountRow).returning(ChangedCountRow.batch_id, ChangedCountRow.shard, ChangedCountRow.stage)
    changed: dict[tuple[str, int | None], set[str | None]] = defaultdict(set)
    for batch_id, shard, stage in connection.execute(noted):
        changed[batch_id, shard].add(stage)
    _lock(connection, {(shard or 0) % LANES for _, shard in changed})
    for (batch_id, shard), stages in changed.items():
        ours = BatchClipRow.batch_id == batch_id, BatchClipRow.shard.is_not_distinct_from(shard)
        kept = ShardClipsRow.batch_id == batch_id, ShardClipsRow.shard.is_not_distinct_from(shard)
        _replace(connection, _CLIPS, and_(*kept), alike_clips(and_(*ours)))
        runs, loads = true(), and_(WeightLoadRow.batch_id == batch_id, WeightLoadRow.shard == shard)
        kept = ShardRunsRow.batch_id == batch_id, ShardRunsRow.shard.is_not_distinct_from(shard)
        if None not in stages:
            kept += (ShardRunsRow.stage.in_(stages),)
            runs, loads = StageRunRow.stage.in_(stages), loads & WeightLoadRow.stage.in_(stages)
        _replace(connection, _RUNS, and_(*kept), alike_runs(and_(*ours, runs), loads))


def _lock(connection: Connection, lanes: Iterable[int]) -> None:
    """Keep others from counting in these lanes until the transaction ends; SQLite lets one write at a time anyway."""
    if connection.dialect.name == "postgresql":
        for lane in sorted(lanes):
            connection.execute(text("SELECT pg_advisory_xact_lock(:lock, :lane)"), {"lock": _LOCK, "lane": lane})


def _replace(connection: Connection, kept: _Kept, these: ColumnElement[bool], fresh: Select[Any]) -> None:
    _carry(connection, kept, these, -1)
    connection.execute(delete(kept.table).where(these))
    connection.execute(insert(kept.table).from_select(kept.columns, fresh))
    _carry(connection, kept, these, 1)


def _carry(connection: Connection, kept: _Kept, these: ColumnElement[bool], sign: int) -> None:
    """Add kept numbers to the totals, or with -1 take them off."""
    key = [column.name for column in kept.totals.__table__.primary_key]
    labels = [func.coalesce(kept.table.shard, 0) % LANES, *(getattr(kept.table, name) for name in key[1:])]
    sums = [sign * func.sum(getattr(kept.table, name)) for name in kept.sums]
    query = select(*labels, *sums).where(these).group_by(*labels)
    rows = (sqlite.insert if connection.dialect.name == "sqlite" else postgresql.insert)(kept.totals)
    added = rows.from_select([*key, *kept.sums], query)
    new = {name: getattr(kept.totals, name) + added.excluded[name] for name in kept.sums}
    connection.execute(added.on_conflict_do_update(index_elements=key, set_=new))


def alike_clips(condition: ColumnElement[bool]) -> Select[Any]:
    """How many `BatchClipRow`s that meet the condition are alike, as `ShardClipsRow` has them.

    One is reused that is done, and whose batch did not make its file; one is stored that is not done, and whose file
    was there when the batch was planned.
    """
    of_clip = StageRunRow.batch_id == BatchClipRow.batch_id, StageRunRow.clip_id == BatchClipRow.clip_id
    was_made = exists().where(*of_clip, StageRunRow.stage == FILE_STAGE, StageRunRow.state == RunState.MADE)
    had_file = exists().where(*of_clip, StageRunRow.stage == FILE_STAGE, StageRunRow.state.in_(SUCCEEDED))
    is_unfinished = BatchClipRow.state.in_(UNFINISHED_CLIP)
    clips = (
        select(
            BatchClipRow.batch_id,
            BatchClipRow.shard,
            ClipRow.profile_digest,
            BatchClipRow.state,
            BatchClipRow.failed_stage,
            has_target().label("has_target"),
            and_(BatchClipRow.state == ClipState.DONE, ~was_made).label("is_reused"),
            and_(is_unfinished, BatchClipRow.artifact_key.is_not(None), ~had_file).label("is_stored"),
            func.coalesce(cast(BatchClipRow.defects, Text), "").label("defects"),
        )
        .join(ClipRow, ClipRow.clip_id == BatchClipRow.clip_id)
        .where(condition)
        .subquery()
    )
    return select(*clips.c, func.count()).group_by(*clips.c)


def alike_runs(condition: ColumnElement[bool], loads: ColumnElement[bool]) -> Select[Any]:
    """How many attempts are alike at clips that meet the condition, as `ShardRunsRow` has them; and of these loads."""
    same_clip = and_(StageRunRow.batch_id == BatchClipRow.batch_id, StageRunRow.clip_id == BatchClipRow.clip_id)
    each = (
        select(
            BatchClipRow.batch_id,
            BatchClipRow.shard,
            StageRunRow.stage,
            StageRunRow.state,
            outcome_of_batch().label("outcome"),
            BatchClipRow.state.label("clip_state"),
            (~was_retried()).label("is_last"),
            func.coalesce(StageRunRow.error_code, "").label("error_code"),
            StageRunRow.seconds,
            StageRunRow.accelerator_seconds,
            StageRunRow.peak_memory_bytes,
            StageRunRow.started_at,
        )
        .join(BatchClipRow, same_clip)
        .where(condition)
        .subquery()
    )
    key = [each.c[name] for name in _RUNS.columns[:8]]
    runs = select(
        *key,
        func.count(),
        total(each.c.seconds),
        total(each.c.accelerator_seconds),
        func.max(each.c.peak_memory_bytes),
        func.min(each.c.started_at),
    ).group_by(*key)
    place = WeightLoadRow.batch_id, WeightLoadRow.shard, WeightLoadRow.stage
    labels = literal(LOADED), literal(LOADED), literal(""), true(), literal("")
    sums = func.count(), func.sum(WeightLoadRow.seconds), literal(0.0), null(), null()
    both = union_all(runs, select(*place, *labels, *sums).where(loads).group_by(*place)).subquery()
    return select(both)
