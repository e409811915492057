"""The whole catalog in numbers, for a monitoring system: six statements, whatever the number of batches."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Select, case, func, select

from magi2.catalog.engine import Database
from magi2.catalog.records import BatchState, ClipState, Request, RunState
from magi2.catalog.statements import clips_by_state, total, was_retried
from magi2.catalog.states import UNFINISHED_BATCH
from magi2.catalog.tables import BatchClipRow, BatchRow, StageRunRow, WeightLoadRow
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
    runs = {(StageName(row.stage), RunState(row.state)): row for row in connection.execute(_runs(recent_since))}
    used: dict[StageName, float] = defaultdict(float)
    recent_runs: Counter[RunState] = Counter()
    for (stage, state), row in runs.items():
        used[stage] += row.accelerator_seconds
        recent_runs[state] += 0 if stage is StageName.DELIVER else row.recent_runs  # which makes no artifact
    loads = connection.execute(_loads(recent_since)).all()
    failures = connection.execute(_failures()).all()
    return Totals(
        batches={BatchState(state): count for state, count in connection.execute(batches)},
        clips=clips_by_state(connection),
        runs={key: row.runs for key, row in runs.items()},
        seconds={key: row.seconds for key, row in runs.items()},
        accelerator_seconds=used,
        loads={StageName(row.stage): row.seconds for row in loads},
        recent_runs=recent_runs,
        recent_seconds=sum(row.recent_seconds for row in runs.values()),
        recent_loads=sum(row.recent_seconds for row in loads),
        failures={row.error_code or "": row.failures for row in failures},
        retries={row.error_code or "": row.retries for row in failures},
        waiting_since=connection.scalar(_waiting_since()),
        progress_at=max((row.ended_at for row in runs.values() if row.ended_at), default=None),
    )


def _runs(recent_since: datetime) -> Select[*tuple[Any, ...]]:
    recent = StageRunRow.finished_at >= recent_since
    return select(
        StageRunRow.stage,
        StageRunRow.state,
        func.count().label("runs"),
        total(StageRunRow.seconds).label("seconds"),
        total(StageRunRow.accelerator_seconds).label("accelerator_seconds"),
        func.count().filter(recent).label("recent_runs"),
        total(case((recent, StageRunRow.seconds))).label("recent_seconds"),
        func.max(StageRunRow.finished_at).label("ended_at"),
    ).group_by(StageRunRow.stage, StageRunRow.state)


def _loads(recent_since: datetime) -> Select[*tuple[Any, ...]]:
    recent = case((WeightLoadRow.at >= recent_since, WeightLoadRow.seconds))
    columns = total(WeightLoadRow.seconds).label("seconds"), total(recent).label("recent_seconds")
    return select(WeightLoadRow.stage, *columns).group_by(WeightLoadRow.stage)


def _failures() -> Select[*tuple[Any, ...]]:
    return (
        select(
            StageRunRow.error_code,
            func.count().label("failures"),
            func.count().filter(was_retried()).label("retries"),
        )
        .where(StageRunRow.state == RunState.FAILED)
        .group_by(StageRunRow.error_code)
    )


def _waiting_since() -> Select[datetime | None]:
    may_go_on = BatchRow.requested.is_(None) | (BatchRow.requested != Request.PAUSE)
    return (
        select(func.min(BatchClipRow.updated_at))
        .join(BatchRow, BatchRow.batch_id == BatchClipRow.batch_id)
        .where(BatchClipRow.state == ClipState.WAITING, BatchRow.state.in_(UNFINISHED_BATCH), may_go_on)
    )
