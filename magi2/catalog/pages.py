"""Lists of clips as people page through them: short rows, ordered and cut by the database."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, Select, Text, and_, case, cast, func, or_, select
from sqlalchemy.orm import InstrumentedAttribute

from magi2.batches.failure_groups import group_failures
from magi2.catalog.clips import ClipQuery, clip_conditions
from magi2.catalog.engine import Database
from magi2.catalog.failures import failed_clips
from magi2.catalog.quality import ANY_FLAG, UNMEASURED
from magi2.catalog.records import ClipState, Page, RunState
from magi2.catalog.tables import (
    ArtifactRow,
    BatchClipRow,
    ClipRow,
    ShardClipsRow,
    ShardPositionRow,
    StageRunRow,
    is_flagged,
)
from magi2.types import StageName

PROMPT_CHARACTERS = 300
TAGS = 200
FAILURES = 50
OTHERS = 200

_STATES = ("failed", "running", "waiting", "skipped", "cancelled", "done")  # what needs a look comes first


class PageSort(StrEnum):
    """What a page of clips is ordered by; cost is that of the accelerators."""

    NAME = "name"
    STATE = "state"
    SECONDS = "seconds"
    COST = "cost"
    UPDATED = "updated"


@dataclass(frozen=True)
class ClipWork:
    """The stage that a running clip is in, and how far it is there; None while its shard works on another clip."""

    stage: StageName
    step: int | None = None
    steps: int | None = None


@dataclass(frozen=True)
class Neighbours:
    """The clips before and after one in a list, its place there, counted from 1, and how long the list is.

    All but `total` are None for a clip that the list does not have.
    """

    total: int
    place: int | None = None
    previous: str | None = None
    next: str | None = None


@dataclass(frozen=True, kw_only=True)
class ListedClip:
    """A clip of a batch in a list. `prompt` is cut; the seconds are those of all its attempts in this batch; `work` is
    what is done to it now. `shares_name` says that another clip of its batch has the same first name.

    Its defects are among the `flags` as they were last judged, see `magi2.catalog.quality`; it `is_measured` if they
    could be.
    """

    batch_id: str
    clip_id: str
    names: tuple[str, ...]
    prompt: str
    tags: tuple[str, ...]
    profile_name: str
    seed: int
    shard: int | None
    priority: int
    state: ClipState
    failed_stage: str | None
    reason: str | None
    artifact_key: str | None
    updated_at: datetime
    flags: tuple[str, ...] = ()
    is_measured: bool = False
    seconds: float = 0.0
    accelerator_seconds: float = 0.0
    work: ClipWork | None = None
    shares_name: bool = False


@dataclass(frozen=True)
class ListedFailures:
    """How many clips failed in a stage with an error code, the message of the first, masked, and the first clips."""

    stage: str | None
    reason: str | None
    error_code: str | None
    count: int
    examples: Sequence[ListedClip]


@dataclass(frozen=True)
class Facets:
    """The values that occur in a batch, each with its number of clips; of tags the most frequent."""

    states: Mapping[str, int]
    profiles: Mapping[str, int]
    tags: Mapping[str, int]
    flags: Mapping[str, int]


class Pages:
    """Clips in lists. All raise InfrastructureError when the database does not answer."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def clips(
        self,
        query: ClipQuery,
        *,
        sort: PageSort = PageSort.UPDATED,
        descending: bool = True,
        offset: int = 0,
        limit: int = 50,
    ) -> Page[ListedClip]:
        """Clips that meet the query, in an order that is the same on every page. It names a batch."""
        ids = _sorted(_found(query), sort, descending).offset(offset).limit(limit)
        if _is_kept(query):
            return self._database.read(_page, ids, _kept_count(query))
        return self._database.read(_counted_page, ids, select(func.count()).select_from(_found(query).subquery()))

    def neighbours(
        self, query: ClipQuery, clip_id: str, *, sort: PageSort = PageSort.UPDATED, descending: bool = True
    ) -> Neighbours:
        """Which clips come before and after one on the pages of `clips` with the same query and order."""
        return self._database.read(_neighbours, query, clip_id, sort, descending)

    def these(self, places: Sequence[tuple[str, str]]) -> list[ListedClip]:
        """The clips of these pairs of batch id and clip id, which are there, in this order."""
        return self._database.read(_listed, places)

    def others(self, batch_id: str, clip_id: str) -> list[ListedClip]:
        """Clips of the same prompt and images under another profile or seed, finished ones first, each once."""
        return self._database.read(_others, batch_id, clip_id)

    def facets(self, batch_id: str) -> Facets:
        """What the clips of the batch can be filtered by."""
        return self._database.read(_facets, batch_id)

    def failures(self, batch_id: str) -> Page[ListedFailures]:
        """Failed clips by stage and error code, the most frequent first."""
        return self._database.read(_failures, batch_id)


def _found(query: ClipQuery) -> Select[str, str]:
    found = select(BatchClipRow.batch_id, BatchClipRow.clip_id)
    if query.profile is not None or query.text:
        found = found.join(ClipRow, ClipRow.clip_id == BatchClipRow.clip_id)
    return found.where(*clip_conditions(query))


def _is_kept(query: ClipQuery) -> bool:
    """Whether the catalog keeps how many clips meet the query."""
    return all(getattr(query, each.name) is None for each in fields(query) if each.name not in _KEPT_COLUMNS)


def _kept_count(query: ClipQuery) -> Select[int]:
    asked = ((column, getattr(query, name)) for name, column in _KEPT_COLUMNS.items())
    return select(func.sum(ShardClipsRow.clips)).where(
        *(column == value for column, value in asked if value is not None)
    )


_KEPT_COLUMNS: Mapping[str, ColumnElement[Any]] = {
    "batch_id": ShardClipsRow.batch_id.expression,
    "state": ShardClipsRow.state.expression,
    "shard": ShardClipsRow.shard.expression,
    "failed_stage": ShardClipsRow.failed_stage.expression,
    "profile": ShardClipsRow.profile_name.expression,
}
"""What a query may ask of clips that are counted already."""


def _page(connection: Connection, ids: Select[str, str], count: Select[int]) -> Page[ListedClip]:
    pairs = [(batch_id, clip_id) for batch_id, clip_id in connection.execute(ids)]
    return Page(_listed(connection, pairs), connection.scalar(count) or 0)


def _counted_page(connection: Connection, ids: Select[str, str], count: Select[int]) -> Page[ListedClip]:
    """A page of clips that are counted in the same scan, which reads every prompt when a text is looked for."""
    rows = connection.execute(ids.add_columns(func.count().over())).all()
    total = rows[0][2] if rows else connection.scalar(count) or 0
    return Page(_listed(connection, [(row.batch_id, row.clip_id) for row in rows]), total)


def _sorted(found: Select[str, str], sort: PageSort, descending: bool) -> Select[str, str]:
    return found.order_by(*_order(sort, descending))


def _order(sort: PageSort, descending: bool) -> tuple[ColumnElement[Any], ...]:
    column = _sort_column(sort)
    return column.desc() if descending else column.asc(), BatchClipRow.clip_id.expression


def _sort_column(sort: PageSort) -> ColumnElement[Any]:
    columns: dict[PageSort, ColumnElement[Any]] = {
        PageSort.NAME: BatchClipRow.first_name.expression,
        PageSort.STATE: case({state: rank for rank, state in enumerate(_STATES)}, value=BatchClipRow.state),
        PageSort.SECONDS: BatchClipRow.seconds.expression,
        PageSort.COST: BatchClipRow.accelerator_seconds.expression,
        PageSort.UPDATED: BatchClipRow.updated_at.expression,
    }
    return columns[sort]


def _neighbours(connection: Connection, query: ClipQuery, clip_id: str, sort: PageSort, descending: bool) -> Neighbours:
    """The clips are found once, with what they are ordered by; nothing is sorted, since only the nearest are wanted."""
    listed = _found(query).add_columns(_sort_column(sort).label("value"))
    here = connection.execute(listed.where(BatchClipRow.clip_id == clip_id)).one_or_none()
    if here is None:
        return Neighbours(connection.scalar(select(func.count()).select_from(listed.subquery())) or 0)
    found = listed.cte("found")
    value, key = found.c.value, found.c.clip_id
    is_more, is_less, is_equal = value > here.value, value < here.value, value == here.value
    up, down = value.asc(), value.desc()
    if descending:
        is_more, is_less, up, down = is_less, is_more, down, up
    before, after = or_(is_less, and_(is_equal, key < clip_id)), or_(is_more, and_(is_equal, key > clip_id))
    asked = (
        select(func.count()).select_from(found),
        select(func.count() + 1).select_from(found).where(before),
        select(key).where(before).order_by(down, key.desc()).limit(1),
        select(key).where(after).order_by(up, key).limit(1),
    )
    return Neighbours(*connection.execute(select(*(each.scalar_subquery() for each in asked))).one())


def _listed(connection: Connection, pairs: Sequence[tuple[str, str]]) -> list[ListedClip]:
    """The clips at these places, in this order, in three statements whatever their number, one more while some run."""
    batch_ids, clip_ids = ({pair[index] for pair in pairs} for index in (0, 1))
    if not pairs:
        return []
    rows = connection.execute(_rows().where(BatchClipRow.batch_id.in_(batch_ids), BatchClipRow.clip_id.in_(clip_ids)))
    clips = {(row.batch_id, row.clip_id): _clip(row) for row in rows}
    these = StageRunRow.batch_id.in_(batch_ids), StageRunRow.clip_id.in_(clip_ids)
    flagged = select(StageRunRow.batch_id, StageRunRow.clip_id, StageRunRow.flags).where(
        *these, StageRunRow.state.in_((RunState.MADE, RunState.REUSED)), is_flagged("stage_runs.flags")
    )
    flags: dict[tuple[str, str], list[str]] = defaultdict(list)
    for row in connection.execute(flagged):
        flags[row.batch_id, row.clip_id] += row.flags
    shared = _shared_names(connection, batch_ids, {clip.names[0] for clip in clips.values() if clip.names})
    work = _work(connection, {pair for pair, clip in clips.items() if clip.state is ClipState.RUNNING})
    return [
        replace(
            clips[pair],
            work=work.get(pair),
            shares_name=(pair[0], *clips[pair].names[:1]) in shared,
            flags=tuple(dict.fromkeys([*clips[pair].flags, *flags[pair]])),
        )
        for pair in pairs
    ]


def _shared_names(connection: Connection, batch_ids: Collection[str], names: Collection[str]) -> set[tuple[str, str]]:
    """Those of these first names, each with its batch, that more than one clip there has."""
    name = BatchClipRow.first_name.expression
    query = (
        select(BatchClipRow.batch_id, name)
        .where(BatchClipRow.batch_id.in_(batch_ids), name.in_(names))
        .group_by(BatchClipRow.batch_id, name)
        .having(func.count() > 1)
    )
    return {(row.batch_id, row.first_name) for row in connection.execute(query)} if names else set()


def _work(connection: Connection, pairs: Collection[tuple[str, str]]) -> dict[tuple[str, str], ClipWork]:
    if not pairs:
        return {}
    batch_ids, clip_ids = ({pair[index] for pair in pairs} for index in (0, 1))
    of_this_run = and_(
        *(
            getattr(ShardPositionRow, name) == getattr(StageRunRow, name)
            for name in ("batch_id", "clip_id", "stage", "attempt")
        )
    )
    running = (
        select(
            StageRunRow.batch_id, StageRunRow.clip_id, StageRunRow.stage, ShardPositionRow.step, ShardPositionRow.steps
        )
        .outerjoin(ShardPositionRow, of_this_run)
        .where(
            StageRunRow.batch_id.in_(batch_ids),
            StageRunRow.clip_id.in_(clip_ids),
            StageRunRow.state == RunState.RUNNING,
        )
        .order_by(StageRunRow.started_at)
    )
    rows = connection.execute(running)
    return {(row.batch_id, row.clip_id): ClipWork(StageName(row.stage), row.step, row.steps) for row in rows}


def _rows() -> Select[*tuple[Any, ...]]:
    return (
        select(
            BatchClipRow.__table__,
            func.substr(ClipRow.prompt, 1, PROMPT_CHARACTERS + 1).label("prompt"),
            ClipRow.profile_name,
            ClipRow.seed,
            ArtifactRow.flags.label("artifact_flags"),
            ArtifactRow.measures.is_not(None).label("is_measured"),
        )
        .join(ClipRow, ClipRow.clip_id == BatchClipRow.clip_id)
        .outerjoin(ArtifactRow, ArtifactRow.key == BatchClipRow.artifact_key)
    )


def _clip(row: Row[Any]) -> ListedClip:
    is_cut = len(row.prompt) > PROMPT_CHARACTERS
    return ListedClip(
        batch_id=row.batch_id,
        clip_id=row.clip_id,
        names=tuple(row.names),
        prompt=f"{row.prompt[:PROMPT_CHARACTERS]}\u2026" if is_cut else row.prompt,
        tags=tuple(row.tags),
        profile_name=row.profile_name,
        seed=row.seed,
        shard=row.shard,
        priority=row.priority,
        state=ClipState(row.state),
        failed_stage=row.failed_stage,
        reason=row.reason,
        artifact_key=row.artifact_key,
        updated_at=row.updated_at,
        flags=(*(row.artifact_flags or ()), *(row.defects or ())),
        is_measured=bool(row.is_measured),
        seconds=row.seconds,
        accelerator_seconds=row.accelerator_seconds,
    )


def _others(connection: Connection, batch_id: str, clip_id: str) -> list[ListedClip]:
    digest = select(ClipRow.prompt_digest).where(ClipRow.clip_id == clip_id).scalar_subquery()
    alike = select(ClipRow.clip_id, ClipRow.figures).where(ClipRow.prompt_digest == digest).order_by(ClipRow.clip_id)
    images = {row.clip_id: _images(row.figures) for row in connection.execute(alike.limit(OTHERS))}
    clip_ids = [each for each, found in images.items() if each != clip_id and found == images.get(clip_id)]
    places = (
        select(BatchClipRow.batch_id, BatchClipRow.clip_id)
        .where(BatchClipRow.clip_id.in_(clip_ids))
        .order_by(
            (BatchClipRow.state == ClipState.DONE).desc(),
            (BatchClipRow.batch_id == batch_id).desc(),
            BatchClipRow.updated_at.desc(),
        )
    )
    best: dict[str, str] = {}
    for row in connection.execute(places):
        best.setdefault(row.clip_id, row.batch_id)
    return _listed(connection, [(where, each) for each, where in best.items()])


def _images(figures: Iterable[Mapping[str, Any]]) -> list[tuple[int, str]]:
    return sorted((each["number"], each["sha256"]) for each in figures)


def _facets(connection: Connection, batch_id: str) -> Facets:
    ours = BatchClipRow.batch_id == batch_id
    lists = cast(BatchClipRow.tags, Text)
    tags: Counter[str] = Counter()
    for members, count in connection.execute(select(lists, func.count()).where(ours).group_by(lists)):
        for tag in set(json.loads(members)):
            tags[tag] += count
    return Facets(
        states=_kept_by(connection, ShardClipsRow.state, batch_id),
        profiles=_kept_by(connection, ShardClipsRow.profile_name, batch_id),
        tags=dict(tags.most_common(TAGS)),
        flags=_flags(connection, batch_id),
    )


def _kept_by(connection: Connection, column: InstrumentedAttribute[str], batch_id: str) -> dict[str, int]:
    query = select(column, func.sum(ShardClipsRow.clips)).where(ShardClipsRow.batch_id == batch_id).group_by(column)
    return {value: count for value, count in connection.execute(query)}


def _flags(connection: Connection, batch_id: str) -> dict[str, int]:
    """How many clips have each flag, whatever tells of it; those that were not measured are counted too."""
    clips: dict[str, set[str]] = defaultdict(set)
    ours = BatchClipRow.batch_id == batch_id
    delivered = select(BatchClipRow.clip_id, ArtifactRow.flags).join(
        ArtifactRow, ArtifactRow.key == BatchClipRow.artifact_key
    )
    told = (
        select(BatchClipRow.clip_id, BatchClipRow.defects).where(ours, is_flagged("batch_clips.defects")),
        delivered.where(ours, is_flagged("artifacts.flags")),
        select(StageRunRow.clip_id, StageRunRow.flags).where(
            StageRunRow.batch_id == batch_id,
            StageRunRow.state.in_((RunState.MADE, RunState.REUSED)),
            is_flagged("stage_runs.flags"),
        ),
    )
    for query in told:
        for clip_id, flags in connection.execute(query):
            for flag in flags:
                clips[flag].add(clip_id)
    kept = ShardClipsRow.batch_id == batch_id, ShardClipsRow.state == ClipState.DONE, ShardClipsRow.defects == ""
    unmeasured = connection.scalar(select(func.sum(ShardClipsRow.clips)).where(*kept))
    counts = {flag: len(members) for flag, members in sorted(clips.items(), key=lambda item: -len(item[1]))}
    everything = {ANY_FLAG: len(set().union(*clips.values()))} if clips else {}
    return everything | counts | ({UNMEASURED: unmeasured} if unmeasured else {})


def _failures(connection: Connection, batch_id: str) -> Page[ListedFailures]:
    groups = group_failures(failed_clips(connection, batch_id))
    shown = groups[:FAILURES]
    places = [(batch_id, clip_id) for group in shown for clip_id in group.clips]
    listed = {clip.clip_id: clip for clip in _listed(connection, places)}
    rows = [
        ListedFailures(each.stage, each.example, each.code, each.count, [listed[clip_id] for clip_id in each.clips])
        for each in shown
    ]
    return Page(rows, len(groups))
