"""What a shard does at the moment, and what loading weights took its stages."""

from __future__ import annotations

from dataclasses import dataclass, fields
from datetime import datetime

from sqlalchemy import and_, func, select

from magi2.catalog.engine import Database
from magi2.catalog.records import RunState, now
from magi2.catalog.statements import upsert
from magi2.catalog.tables import BatchClipRow, ClipRow, ShardPositionRow, StageRunRow, WeightLoadRow
from magi2.types import StageName


@dataclass(frozen=True, kw_only=True)
class ShardPosition:
    """The clip that a shard's stage works on, and how far its denoising is. `at` is when that was so."""

    shard: int
    stage: StageName
    attempt: int
    clip_id: str
    step: int
    steps: int
    steps_per_second: float | None
    at: datetime

    @property
    def seconds_left(self) -> float | None:
        """Until the last step, from `at`; None while the rate is unknown."""
        return (self.steps - self.step) / self.steps_per_second if self.steps_per_second else None


class Shards:
    """All raise StateError for a batch that is not there, and InfrastructureError like the others."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def at_step(self, batch_id: str, position: ShardPosition) -> None:
        """Enter where a shard is; what was known of it before goes."""
        row = {"batch_id": batch_id, **vars(position)}
        changing = [field.name for field in fields(ShardPosition) if field.name != "shard"]
        self._database.write(upsert, ShardPositionRow, [row], update=changing)

    def loaded(self, batch_id: str, shard: int, stage: StageName, *, attempt: int, seconds: float) -> None:
        """Enter that an attempt at a stage has its weights, and how long that took."""
        row = {"batch_id": batch_id, "shard": shard, "stage": stage, "attempt": attempt, "seconds": seconds}
        self._database.write(upsert, WeightLoadRow, [{**row, "at": now()}], update=["seconds", "at"])

    def profiles(self, batch_id: str) -> dict[int, str]:
        """The name of each shard's profile."""
        query = (
            select(BatchClipRow.shard, func.min(ClipRow.profile_name))
            .join(ClipRow, ClipRow.clip_id == BatchClipRow.clip_id)
            .where(BatchClipRow.batch_id == batch_id, BatchClipRow.shard.is_not(None))
            .group_by(BatchClipRow.shard)
        )
        rows = self._database.read(lambda connection: connection.execute(query).all())
        return {shard: profile for shard, profile in rows if shard is not None}

    def positions(self, batch_id: str) -> list[ShardPosition]:
        """Where those shards are whose stage still works on the clip that was entered last."""
        same_run = and_(
            StageRunRow.batch_id == ShardPositionRow.batch_id,
            StageRunRow.clip_id == ShardPositionRow.clip_id,
            StageRunRow.stage == ShardPositionRow.stage,
            StageRunRow.attempt == ShardPositionRow.attempt,
            StageRunRow.state == RunState.RUNNING,
        )
        columns = [getattr(ShardPositionRow, field.name) for field in fields(ShardPosition)]
        query = select(*columns).join(StageRunRow, same_run).where(ShardPositionRow.batch_id == batch_id)
        rows = self._database.read(lambda connection: connection.execute(query.order_by(ShardPositionRow.shard)).all())
        return [ShardPosition(**{**row._mapping, "stage": StageName(row.stage)}) for row in rows]
