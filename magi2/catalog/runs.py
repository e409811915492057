"""Stage runs in the catalog: who worked on which clip, how long, and what became of it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, delete, select, update

from magi2.catalog.clips import has_target, keep_files, outcome, settle_clips
from magi2.catalog.engine import Database
from magi2.catalog.records import BatchState, ClipState, Run, RunState, now
from magi2.catalog.statements import chunks, outcome_of_batch, total, upsert, was_retried
from magi2.catalog.tables import BatchClipRow, BatchRow, StageRunRow
from magi2.errors import Magi2Error
from magi2.types import StageName

FILE_STAGE = StageName.MUX
"""What makes a clip's file; a clip that is to be brought nowhere is done with it."""
_OUTCOME = [
    "state",
    "finished_at",
    "seconds",
    "accelerator_seconds",
    "peak_memory_bytes",
    "error_code",
    "error",
    "flags",
    "artifact_key",
]
_CLIP_STATES = {
    RunState.RUNNING: ClipState.RUNNING,
    RunState.FAILED: ClipState.FAILED,
    RunState.CANCELLED: ClipState.CANCELLED,
    RunState.MADE: ClipState.DONE,
    RunState.REUSED: ClipState.DONE,
}
SUCCEEDED = (RunState.MADE, RunState.REUSED)


class Runs:
    """Attempts at stages of clips. Every call may be repeated; all raise InfrastructureError like the others."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def start(
        self,
        batch_id: str,
        stage: StageName,
        clip_ids: Iterable[str],
        *,
        attempt: int,
        shard: int | None = None,
        host: str | None = None,
        at: datetime | None = None,
    ) -> None:
        """Enter that work on clips begins: run, clip and, if it was waiting, batch are running.

        A run of this attempt that has ended already is left alone. Raises StateError for a clip that the batch does
        not have.
        """
        run = Run(
            clip_id="",
            stage=stage,
            state=RunState.RUNNING,
            attempt=attempt,
            shard=shard,
            host=host,
            started_at=at or now(),
        )

        def work(connection: Connection, chunk: Sequence[str]) -> None:
            row = _run_row(batch_id, run)
            rows = [{**row, "clip_id": clip_id} for clip_id in chunk]
            running = StageRunRow.state == RunState.RUNNING
            upsert(connection, StageRunRow, rows, update=["shard", "host", "started_at"], where=running)
            batch = update(BatchRow).where(BatchRow.batch_id == batch_id, BatchRow.state == BatchState.WAITING)
            connection.execute(batch.values(state=BatchState.RUNNING))
            started = select(StageRunRow.clip_id).where(
                StageRunRow.batch_id == batch_id,
                StageRunRow.stage == stage,
                StageRunRow.attempt == attempt,
                running,
            )
            idle = BatchClipRow.state != ClipState.RUNNING
            current = _current(connection, batch_id, [replace(run, clip_id=clip_id) for clip_id in chunk])
            going_on = [run.clip_id for run in current]
            _go_on(connection, batch_id, going_on, idle & BatchClipRow.clip_id.in_(started))

        for chunk in chunks(clip_ids):
            self._database.write(work, chunk)

    def finish(self, batch_id: str, runs: Iterable[Run], *, tried_again: bool = False) -> None:
        """Enter what became of runs, started or not, and what follows for their clips.

        A failed run makes its clip failed, or waiting when it is `tried_again`; a cancelled one makes it cancelled. A
        clip is done with its file, or where that is to be brought somewhere when it is there. Nothing follows from the
        late end of an attempt that another has overtaken.
        Raises StateError for a clip that the batch does not have, or when that artifact is not in the index.
        """
        for chunk in chunks(runs):
            self._database.write(_finish, batch_id, chunk, tried_again)

    def withdraw(self, batch_id: str, stage: StageName, clip_ids: Iterable[str], *, attempt: int) -> None:
        """Enter that work on clips ended before it came to anything and will be taken up again: they are waiting."""
        for chunk in chunks(clip_ids):
            self._database.write(_withdraw, batch_id, stage, chunk, attempt)

    def end_running(self, batch_id: str, error: Magi2Error) -> None:
        """Enter that whoever worked on the batch is gone: its runs that have not ended are cancelled."""
        these = StageRunRow.batch_id == batch_id, StageRunRow.state == RunState.RUNNING
        values = {"state": RunState.CANCELLED, "finished_at": now(), "error_code": error.code, "error": str(error)}
        self._database.write(lambda connection: connection.execute(update(StageRunRow).where(*these).values(**values)))

    def accelerator_seconds(self, batch_id: str) -> dict[tuple[str, StageName], float]:
        """What each clip took in each stage so far, by clip id and stage, all attempts and all ranks together."""
        query = (
            select(StageRunRow.clip_id, StageRunRow.stage, total(StageRunRow.accelerator_seconds))
            .where(StageRunRow.batch_id == batch_id, StageRunRow.accelerator_seconds > 0)
            .group_by(StageRunRow.clip_id, StageRunRow.stage)
        )
        rows = self._database.read(lambda connection: connection.execute(query).all())
        return {(clip_id, StageName(stage)): seconds for clip_id, stage, seconds in rows}

    def made(self, batch_id: str) -> frozenset[tuple[str, StageName]]:
        """Clip id and stage of what the batch made, also where its last attempt found what an earlier one had made."""
        query = select(StageRunRow.clip_id, StageRunRow.stage).where(
            StageRunRow.batch_id == batch_id, ~was_retried(), outcome_of_batch() == RunState.MADE
        )
        rows = self._database.read(lambda connection: connection.execute(query).all())
        return frozenset((clip_id, StageName(stage)) for clip_id, stage in rows)

    def of_clip(self, batch_id: str, clip_id: str) -> list[Run]:
        """All runs of a clip in a batch, by stage and attempt."""
        query = select(StageRunRow.__table__).where(StageRunRow.batch_id == batch_id, StageRunRow.clip_id == clip_id)
        runs = self._database.read(lambda connection: [_run(row) for row in connection.execute(query)])
        return sorted(runs, key=lambda run: (run.stage.position, run.attempt))


def runs_of_batch(connection: Connection, batch_id: str) -> Iterator[Run]:
    """All runs of a batch's clips."""
    query = select(StageRunRow.__table__).where(StageRunRow.batch_id == batch_id)
    return (_run(row) for row in connection.execute(query))


def _run_row(batch_id: str, run: Run) -> dict[str, Any]:
    return {**vars(run), "batch_id": batch_id, "flags": list(run.flags)}


def upsert_runs(
    connection: Connection, batch_id: str, runs: Sequence[Run], *, where: ColumnElement[bool] | None = None
) -> None:
    """Enter runs that have ended; of those that are there, replace the outcome if `where` holds."""
    rows = [_run_row(batch_id, run) for run in runs]
    begun = ["shard", "host", "started_at"]
    upsert(connection, StageRunRow, rows, update=_OUTCOME, keep_unless_given=begun, where=where)


def _finish(connection: Connection, batch_id: str, runs: Sequence[Run], tried_again: bool) -> None:
    upsert_runs(connection, batch_id, [run for run in runs if run.state is not RunState.REUSED])
    # An attempt that was interrupted by a pause finds what it made itself: that stays made, and keeps what it took.
    reused = [run for run in runs if run.state is RunState.REUSED]
    upsert_runs(connection, batch_id, reused, where=StageRunRow.state != RunState.MADE)
    runs = _current(connection, batch_id, runs)
    files = _files_to_bring(connection, batch_id, runs)

    def ends(run: Run) -> bool:
        return run.state not in SUCCEEDED or is_last(run.stage, has_target=run.clip_id in files)

    going_on = [run for run in runs if not ends(run)]
    # What was cancelled meanwhile stays so, until it is started again.
    idle = BatchClipRow.state.in_((ClipState.WAITING, ClipState.FAILED))
    _go_on(connection, batch_id, [run.clip_id for run in going_on], idle)
    keep_files(connection, batch_id, {run.clip_id: run.artifact_key for run in going_on if run.stage is FILE_STAGE})
    settle_clips(connection, batch_id, [_outcome(run, tried_again, files) for run in runs if ends(run)])


def is_last(stage: StageName, *, has_target: bool) -> bool:
    """Whether a clip is done when it has passed a stage."""
    return stage is StageName.DELIVER or (stage is FILE_STAGE and not has_target)


def _files_to_bring(connection: Connection, batch_id: str, runs: Sequence[Run]) -> dict[str, str | None]:
    """The clips of these runs that have a target, with the key of their file as far as it is known."""
    columns = BatchClipRow.clip_id, BatchClipRow.artifact_key
    these = BatchClipRow.batch_id == batch_id, BatchClipRow.clip_id.in_({run.clip_id for run in runs})
    return {clip_id: key for clip_id, key in connection.execute(select(*columns).where(*these, has_target()))}


def _withdraw(connection: Connection, batch_id: str, stage: StageName, clip_ids: Sequence[str], attempt: int) -> None:
    runs = StageRunRow.batch_id == batch_id, StageRunRow.clip_id.in_(clip_ids), StageRunRow.stage == stage
    connection.execute(
        delete(StageRunRow).where(*runs, StageRunRow.attempt == attempt, StageRunRow.state == RunState.RUNNING)
    )
    withdrawn = [Run(clip_id=clip_id, stage=stage, state=RunState.RUNNING, attempt=attempt) for clip_id in clip_ids]
    current = [run.clip_id for run in _current(connection, batch_id, withdrawn)]
    clips = BatchClipRow.batch_id == batch_id, BatchClipRow.clip_id.in_(current)
    running = update(BatchClipRow).where(*clips, BatchClipRow.state == ClipState.RUNNING)
    connection.execute(running.values(state=ClipState.WAITING, updated_at=now()))


def _current(connection: Connection, batch_id: str, runs: Sequence[Run]) -> list[Run]:
    """Those of the runs that no later attempt has overtaken, nor a later stage that began after they did."""
    these = StageRunRow.batch_id == batch_id, StageRunRow.clip_id.in_({run.clip_id for run in runs})
    columns = StageRunRow.clip_id, StageRunRow.stage, StageRunRow.attempt, StageRunRow.started_at
    known: dict[str, dict[tuple[StageName, int], datetime | None]] = defaultdict(dict)
    for clip_id, stage, attempt, started_at in connection.execute(select(*columns).where(*these)):
        known[clip_id][StageName(stage), attempt] = started_at

    def is_overtaken(run: Run) -> bool:
        began = known[run.clip_id].get((run.stage, run.attempt)) or run.started_at
        return any(
            attempt > run.attempt if stage is run.stage else run.stage in stage.before and _is_later(other, began)
            for (stage, attempt), other in known[run.clip_id].items()
        )

    return [run for run in runs if not is_overtaken(run)]


def _is_later(moment: datetime | None, than: datetime | None) -> bool:
    return moment is not None and than is not None and moment > than


def _outcome(run: Run, tried_again: bool, files: Mapping[str, str | None]) -> dict[str, Any]:
    """What a run leads to for its clip. One that is not brought where it should be keeps its file."""
    key = run.artifact_key if run.state in SUCCEEDED else None
    if run.stage is StageName.DELIVER:
        key = key or files.get(run.clip_id)
    state = ClipState.WAITING if tried_again and run.state is RunState.FAILED else _CLIP_STATES[run.state]
    return outcome(
        run.clip_id,
        state,
        failed_stage=run.stage if state is ClipState.FAILED else None,
        reason=run.error,
        artifact_key=key,
    )


def _go_on(connection: Connection, batch_id: str, clip_ids: Sequence[str], condition: ColumnElement[bool]) -> None:
    """Make those of the clips that meet the condition running."""
    if clip_ids:
        these = BatchClipRow.batch_id == batch_id, BatchClipRow.clip_id.in_(clip_ids)
        values = {"state": ClipState.RUNNING, "failed_stage": None, "reason": None, "updated_at": now()}
        connection.execute(update(BatchClipRow).where(*these, condition).values(**values))


def _run(row: Row[Any]) -> Run:
    values = {field.name: getattr(row, field.name) for field in fields(Run)}
    return Run(**{**values, "stage": StageName(row.stage), "state": RunState(row.state), "flags": tuple(row.flags)})
