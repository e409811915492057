"""Numbers that are kept beside what they count, so that no reader adds up the past.

Triggers note which shards a transaction changed, whoever wrote and by whatever statement. Before the transaction ends
`settle_counts` counts these shards anew, so a number is never a sum of changes that may have missed one. The totals
follow by the difference. A shard belongs to one of a few lanes, each with a lock that is taken last and in order: who
holds one waits for nobody's rows, and shards that work at once rarely wait for each other.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

from sqlalchemy import (
    ColumnElement,
    Connection,
    Executable,
    Select,
    TextClause,
    and_,
    cast,
    delete,
    exists,
    func,
    insert,
    literal,
    literal_column,
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
    Base,
    BatchClipRow,
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
SHARDS_AT_ONCE = 8
"""Of a batch of which more changed, everything is counted at once."""
_LOCK = 0x6D616769  # "magi"


class Kept(NamedTuple):
    """A table of kept numbers, what counts it anew, and the totals that add it up."""

    table: type[ShardClipsRow] | type[ShardRunsRow]
    totals: type[TotalClipsRow] | type[TotalRunsRow]
    sums: tuple[str, ...]
    fresh: Callable[[Place], Select[Any]]

    @property
    def columns(self) -> list[str]:
        """Those that are counted, in the order of `fresh`."""
        return [each.name for each in self.table.__table__.c if each.name != "number"]


@dataclass(frozen=True)
class Place:
    """What is counted at once: a batch, a shard of it or the clips of none, or one stage of these."""

    has_shard: bool | None = None
    has_stage: bool = False

    def of(self, table: type[Base]) -> ColumnElement[bool]:
        """The rows of the place that is given to the statement as `:batch_id`, `:shard` and `:stage`."""
        given = [column(table, "batch_id") == literal_column(":batch_id")]
        if self.has_shard is not None:
            shard = column(table, "shard")
            given.append(shard == literal_column(":shard") if self.has_shard else shard.is_(None))
        return and_(*given, self.at_stage(table))

    def at_stage(self, table: type[Base]) -> ColumnElement[bool]:
        """The rows of the stage, where only one is counted and the table tells them apart."""
        if self.has_stage and "stage" in table.__table__.c:
            return column(table, "stage") == literal_column(":stage")
        return true()


def column(table: type[Base], name: str) -> ColumnElement[Any]:
    """A column of a table by its name."""
    return table.__table__.c[name]


def settle_counts(connection: Connection) -> None:
    """Count anew what this transaction changed. To be called at its end, by `Database.write` of a catalog."""
    noted = connection.execute(_NOTED).all()
    if not noted:
        return
    changed: dict[str, dict[int | None, set[str | None]]] = defaultdict(lambda: defaultdict(set))
    for batch_id, shard, stage in noted:
        changed[batch_id][shard].add(stage)
    lock_lanes(connection, {lane for shards in changed.values() for lane in _lanes(shards)})
    for batch_id, shards in changed.items():
        if len(shards) > SHARDS_AT_ONCE:
            count_batch(connection, batch_id)
            continue
        for shard, stages in shards.items():
            for stage in [None] if None in stages else stages:
                place = Place(shard is not None, stage is not None)
                _count(connection, place, batch_id=batch_id, shard=shard, stage=stage)


def _lanes(shards: Collection[int | None]) -> Collection[int]:
    return range(LANES) if len(shards) > SHARDS_AT_ONCE else {(shard or 0) % LANES for shard in shards}


def lock_lanes(connection: Connection, lanes: Iterable[int]) -> None:
    """Keep others from counting in these lanes until the transaction ends; SQLite lets one write at a time anyway."""
    if connection.dialect.name == "postgresql":
        for lane in sorted(lanes):
            connection.execute(text("SELECT pg_advisory_xact_lock(:lock, :lane)"), {"lock": _LOCK, "lane": lane})


def count_batch(connection: Connection, batch_id: str) -> None:
    """Count a whole batch anew. All lanes must be locked."""
    _count(connection, Place(), batch_id=batch_id)


def lane_of(table: type[ShardClipsRow] | type[ShardRunsRow]) -> ColumnElement[int]:
    """The lane of a row's shard."""
    return func.coalesce(table.shard, 0) % LANES


def _count(connection: Connection, place: Place, **given: Any) -> None:
    for statement in _statements(connection.dialect.name, place):
        connection.execute(statement, {name: given[name] for name in statement._bindparams})


@cache
def _statements(dialect: str, place: Place) -> tuple[TextClause, ...]:
    """As text, which is run many times: putting such statements together takes longer than they do."""
    return tuple(as_text(each, dialect) for kept in KEPT_TABLES for each in _replace(dialect, kept, place))


def as_text(statement: Executable, dialect: str) -> TextClause:
    """A statement in the words of a database; what is to be given is written as `:name` in a `literal_column`."""
    language = sqlite.dialect if dialect == "sqlite" else postgresql.dialect
    words = language(paramstyle="named")  # type: ignore[no-untyped-call]
    return text(str(statement.compile(dialect=words, compile_kwargs={"literal_binds": True})))  # type: ignore[attr-defined]


def _replace(dialect: str, kept: Kept, place: Place) -> Iterator[Executable]:
    these = place.of(kept.table)
    yield add_to_totals(dialect, kept, these, -1)
    yield delete(kept.table).where(these)
    yield insert(kept.table).from_select(kept.columns, kept.fresh(place))
    yield add_to_totals(dialect, kept, these, 1)


def add_to_totals(dialect: str, kept: Kept, these: ColumnElement[bool], sign: int) -> Executable:
    """Add kept numbers to the totals, or with -1 take them off."""
    key = [each.name for each in kept.totals.__table__.primary_key]
    labels = [lane_of(kept.table), *(column(kept.table, name) for name in key[1:])]
    sums = [sign * func.sum(column(kept.table, name)) for name in kept.sums]
    query = select(*labels, *sums).where(these).group_by(*labels)
    rows = (sqlite.insert if dialect == "sqlite" else postgresql.insert)(kept.totals)
    added = rows.from_select([*key, *kept.sums], query)
    new = {name: column(kept.totals, name) + added.excluded[name] for name in kept.sums}
    return added.on_conflict_do_update(index_elements=key, set_=new)


def alike_clips(place: Place) -> Select[Any]:
    """How many clips of a place are alike, as `ShardClipsRow` has them.

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
            ClipRow.profile_name,
            BatchClipRow.state,
            BatchClipRow.failed_stage,
            has_target().label("has_target"),
            and_(BatchClipRow.state == ClipState.DONE, ~was_made).label("is_reused"),
            and_(is_unfinished, BatchClipRow.artifact_key.is_not(None), ~had_file).label("is_stored"),
            func.coalesce(cast(BatchClipRow.defects, Text), "").label("defects"),
        )
        .join(ClipRow, ClipRow.clip_id == BatchClipRow.clip_id)
        .where(place.of(BatchClipRow))
        .subquery()
    )
    return select(*clips.c, func.count()).group_by(*clips.c)


def alike_runs(place: Place) -> Select[Any]:
    """How many attempts at clips of a place are alike, as `ShardRunsRow` has them, and how many loads of weights."""
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
        .where(place.of(BatchClipRow), place.at_stage(StageRunRow))
        .subquery()
    )
    key = list(each.c)[:8]
    runs = select(
        *key,
        func.count(),
        total(each.c.seconds),
        total(each.c.accelerator_seconds),
        func.max(each.c.peak_memory_bytes),
        func.min(each.c.started_at),
    ).group_by(*key)
    if place.has_shard is False:
        return runs
    shard = WeightLoadRow.batch_id, WeightLoadRow.shard, WeightLoadRow.stage
    labels = literal(LOADED), literal(LOADED), literal(""), true(), literal("")
    sums = func.count(), func.sum(WeightLoadRow.seconds), literal(0.0), null(), null()
    loads = select(*shard, *labels, *sums).where(place.of(WeightLoadRow)).group_by(*shard)
    return select(union_all(runs, loads).subquery())


KEPT_TABLES = (
    Kept(ShardClipsRow, TotalClipsRow, ("clips",), alike_clips),
    Kept(ShardRunsRow, TotalRunsRow, ("runs", "seconds", "accelerator_seconds"), alike_runs),
)
_NOTED = text("DELETE FROM changed_counts RETURNING batch_id, shard, stage")
