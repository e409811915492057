"""The whole catalog in numbers, for a monitoring system: six statements, whatever the number of batches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Select, func, select

from magi2.catalog.engine import Database
from magi2.catalog.records import BatchState, ClipState, Request, RunState
from magi2.catalog.statements import was_retried
from magi2.catalog.states import UNFINISHED_BATCH
from magi2.catalog.tables import BatchClipRow, BatchRow, StageRunRow, WeightLoadRow
from magi2.types import StageName


@dataclass(frozen=True)
class RunTotal:
    """Attempts of one stage that ended in one state, and what they took together; `recent`: since a moment."""

    count: int
    seconds: float
    accelerator_seconds: float
    recent: int
    recent_seconds: float


@dataclass(frozen=True)
class LoadTotal:
    """Seconds that a stage took to load weights, all in all and since a moment."""

    seconds: float
    recent_seconds: float


@dataclass(frozen=True, kw_only=True)
class Totals:
    """Everything counted. A state, a stage or an error code that has nothing may be absent.

    `failures` are failed attempts of clips at stages by error code, `retries` those of them that were tried again.
    `waiting_since` is when the first of the clips that wait, of batches that may go on, came to wait. `progress_at` is
    when the last attempt ended.
    """

    batches: Mapping[BatchState, int]
    clips: Mapping[ClipState, int]
    runs: Mapping[tuple[StageName, RunState], RunTotal]
    loads: Mapping[StageName, LoadTotal]
    failures: Mapping[str, int]
    retries: Mapping[str, int]
    waiting_since: datetime | None
    progress_at: datetime | None


def read_totals(database: Database, *, recent_since: datetime) -> Totals:
    """Count. Raises InfrastructureError when the database does not answer."""
    return database.read(_read, recent_since)


def _read(connection: Connection, recent_since: datetime) -> Totals:
    batches = select(BatchRow.state, func.count()).group_by(BatchRow.state)
    clips = select(BatchClipRow.state, func.count()).group_by(BatchClipRow.state)
    runs = connection.execute(_runs(recent_since)).all()
    failures = connection.execute(_failures()).all()
    return Totals(
        batches={BatchState(state): count for state, count in connection.execute(batches)},
        clips={ClipState(state): count for state, count in connection.execute(clips)},
        runs={(StageName(row.stage), RunState(row.state)): RunTotal(*row[2:7]) for row in runs},
        loads={StageName(stage): LoadTotal(*rest) for stage, *rest in connection.execute(_loads(recent_since))},
        failures={row.error_code or "": row.failures for row in failures},
        retries={row.error_code or "": row.retries for row in failures},
        waiting_since=connection.scalar(_waiting_since()),
        progress_at=max((row.last for row in runs if row.last), default=None),
    )


def _runs(recent_since: datetime) -> Select[*tuple[Any, ...]]:
    recent = StageRunRow.finished_at >= recent_since
    return select(
        StageRunRow.stage,
        StageRunRow.state,
        func.count(),
        func.coalesce(func.sum(StageRunRow.seconds), 0.0),
        func.coalesce(func.sum(StageRunRow.accelerator_seconds), 0.0),
        func.count().filter(recent),
        func.coalesce(func.sum(StageRunRow.seconds).filter(recent), 0.0),
        func.max(StageRunRow.finished_at).label("last"),
    ).group_by(StageRunRow.stage, StageRunRow.state)


def _loads(recent_since: datetime) -> Select[*tuple[Any, ...]]:
    recent = WeightLoadRow.at >= recent_since
    seconds = func.sum(WeightLoadRow.seconds)
    return select(WeightLoadRow.stage, seconds, func.coalesce(seconds.filter(recent), 0.0)).group_by(
        WeightLoadRow.stage
    )


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
