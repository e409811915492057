"""The whole catalog in numbers, for a monitoring system: a few statements that read no more as the past grows."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Select, func, select

from magi2.catalog.engine import Database
from magi2.catalog.kept import LOADED
from magi2.catalog.records import BatchState, ClipState, Request, RunState
from magi2.catalog.statements import total
from magi2.catalog.states import UNFINISHED_BATCH
from magi2.catalog.tables import BatchClipRow, BatchRow, StageRunRow, TotalClipsRow, TotalRunsRow, WeightLoadRow
from magi2.types import StageName


@dataclass(frozen=True, kw_only=True)
class Totals:
    """Everything counted: batches and clips, and attempts at stages, of which a clip may have several.

    `runs` are attempts and `seconds` what they took together, by stage and outcome; `loads` are the seconds of loading
    weights. `recent_*` are those since a moment, all stages together. `failures` are failed attempts by error code,
    `retries` those of them that were tried again. What has nothing may be absent, except for states of clips.
    `waiting_since` is when the first of the clips that wait, of batches that may go on, came to wait. `progress_at` is
    when the last attempt ended.
    """

    batches: Mapping[BatchState, int]
    clips: Mapping[ClipState, int]
    runs: Mapping[tuple[StageName, RunState], int]
    seconds: Mapping[tuple[StageName, RunState], float]
    accelerator_seconds: Mapping[StageName, float]
    loads: Mapping[StageName, float]
    recent_runs: Mapping[RunState, int]
    recent_seconds: float
    recent_loads: float
    failures: Mapping[str, int]
    retries: Mapping[str, int]
    waiting_since: datetime | None
    progress_at: datetime | None


def read_totals(database: Database, *, recent_since: datetime) -> Totals:
    """Count. Raises InfrastructureError when the database does not answer."""
    return database.read(_read, recent_since)


def _read(connection: Connection, recent_since: datetime) -> Totals:
    batches = select(BatchRow.state, func.count()).group_by(BatchRow.state)
    clips = select(TotalClipsRow.state, func.sum(TotalClipsRow.clips)).group_by(TotalClipsRow.state)
    runs: Counter[tuple[StageName, RunState]] = Counter()
    seconds: defaultdict[tuple[StageName, RunState], float] = defaultdict(float)
    used: defaultdict[StageName, float] = defaultdict(float)
    loads: dict[StageName, float] = {}
    failures: Counter[str] = Counter()
    retries: Counter[str] = Counter()
    for row in connection.execute(_runs()):
        stage = StageName(row.stage)
        if row.state == LOADED:
            loads[stage] = row.seconds
            continue
        runs[stage, RunState(row.state)] += row.runs
        seconds[stage, RunState(row.state)] += row.seconds
        used[stage] += row.accelerator_seconds
        if row.state == RunState.FAILED:
            failures[row.error_code] += row.runs
            retries[row.error_code] += 0 if row.is_last else row.runs
    recent = connection.execute(_recent_runs(recent_since)).all()
    recent_runs: Counter[RunState] = Counter()
    for row in recent:
        recent_runs[RunState(row.state)] += 0 if row.stage == StageName.DELIVER else row.runs  # which makes no artifact
    return Totals(
        batches={BatchState(state): count for state, count in connection.execute(batches)},
        clips=dict.fromkeys(ClipState, 0) | {ClipState(state): count for state, count in connection.execute(clips)},
        runs=runs,
        seconds=seconds,
        accelerator_seconds=used,
        loads=loads,
        recent_runs=recent_runs,
        recent_seconds=sum(row.seconds for row in recent),
        recent_loads=connection.scalar(_recent_loads(recent_since)) or 0.0,
        failures=failures,
        retries=retries,
        waiting_since=connection.scalar(_waiting_since()),
        progress_at=connection.scalar(select(func.max(StageRunRow.finished_at))),
    )


def _runs() -> Select[*tuple[Any, ...]]:
    kept = TotalRunsRow
    key = kept.stage, kept.state, kept.is_last, kept.error_code
    names = "runs", "seconds", "accelerator_seconds"
    # The last digits of a sum from which all was taken off again may be less than nothing.
    sums = (func.sum(getattr(kept, name)).label(name) for name in names)
    return select(*key, *sums).where(kept.runs > 0).group_by(*key)


def _recent_runs(recent_since: datetime) -> Select[*tuple[Any, ...]]:
    sums = func.count().label("runs"), total(StageRunRow.seconds).label("seconds")
    recent = StageRunRow.finished_at >= recent_since
    return (
        select(StageRunRow.stage, StageRunRow.state, *sums).where(recent).group_by(StageRunRow.stage, StageRunRow.state)
    )


def _recent_loads(recent_since: datetime) -> Select[float]:
    return select(total(WeightLoadRow.seconds)).where(WeightLoadRow.at >= recent_since)


def _waiting_since() -> Select[datetime | None]:
    may_go_on = BatchRow.requested.is_(None) | (BatchRow.requested != Request.PAUSE)
    first = (
        select(func.min(BatchClipRow.updated_at).label("at"))
        .where(BatchClipRow.batch_id == BatchRow.batch_id, BatchClipRow.state == ClipState.WAITING)
        .scalar_subquery()
    )
    waiting = select(first.label("at")).where(BatchRow.state.in_(UNFINISHED_BATCH), may_go_on).subquery()
    return select(func.min(waiting.c.at))
