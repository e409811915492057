"""What a shard does at the moment, and what loading weights took its stages."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime

from sqlalchemy import ColumnElement, Connection, and_, func, literal_column, select

from magi2.catalog.engine import Database
from magi2.catalog.records import ClipState, RunState, now
from magi2.catalog.runs import SUCCEEDED
from magi2.catalog.statements import upsert
from magi2.catalog.tables import BatchClipRow, ClipRow, ProfileRow, ShardPositionRow, StageRunRow, WeightLoadRow
from magi2.types import StageName, profile_stages


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


@dataclass(frozen=True, kw_only=True)
class ShardTally:
    """A shard in numbers: the stages of its profile, its clips by state, those that have passed a stage.

    `running` are the stages that work on it. Accelerator-seconds are of all attempts, all ranks together.
    """

    shard: int
    profile: str
    stages: tuple[StageName, ...]
    clips: Mapping[ClipState, int]
    passed: Mapping[StageName, int]
    running: tuple[StageName, ...]
    accelerator_seconds: float


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

    def tallies(self, batch_id: str) -> list[ShardTally]:
        """The shards of a batch, in four statements; clips that were finished before belong to none."""
        return self._database.read(_tallies, batch_id)

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


def _tallies(connection: Connection, batch_id: str) -> list[ShardTally]:
    ours = BatchClipRow.batch_id == batch_id, BatchClipRow.shard.is_not(None)
    shard_of = func.coalesce(BatchClipRow.shard, literal_column("0"))  # for the type: there are no others here
    profile = func.min(ClipRow.profile_name), func.min(ClipRow.profile_digest)
    states = (
        select(shard_of, BatchClipRow.state, func.count(), *profile)
        .join(ClipRow, ClipRow.clip_id == BatchClipRow.clip_id)
        .where(*ours)
        .group_by(shard_of, BatchClipRow.state)
    )
    clips: dict[int, dict[ClipState, int]] = defaultdict(dict)
    profiles: dict[int, tuple[str, str]] = {}
    for shard, state, count, name, digest in connection.execute(states):
        clips[shard][ClipState(state)] = count
        profiles[shard] = name, digest
    digests = {digest for _, digest in profiles.values()}
    contents = select(ProfileRow.digest, ProfileRow.content).where(ProfileRow.digest.in_(digests))
    stages = {digest: profile_stages(content) for digest, content in connection.execute(contents)}
    passed, running, used = _by_stage(connection, shard_of, ours)
    return [
        ShardTally(
            shard=shard,
            profile=profiles[shard][0],
            stages=stages[profiles[shard][1]],
            clips=clips[shard],
            passed=passed[shard],
            running=tuple(stage for stage in StageName if (shard, stage) in running),
            accelerator_seconds=used[shard],
        )
        for shard in sorted(clips)
    ]


def _by_stage(
    connection: Connection, shard_of: ColumnElement[int], ours: Sequence[ColumnElement[bool]]
) -> tuple[dict[int, dict[StageName, int]], set[tuple[int, StageName]], dict[int, float]]:
    """Clips of each shard that have passed each stage, stages that run, and accelerator-seconds by shard."""
    # By the shard that a clip is in now: an earlier plan may have put it into another.
    same_clip = and_(StageRunRow.batch_id == BatchClipRow.batch_id, StageRunRow.clip_id == BatchClipRow.clip_id)
    runs = select(shard_of, StageRunRow.stage).join(StageRunRow, same_clip).where(*ours)
    running = runs.where(StageRunRow.state == RunState.RUNNING).distinct()
    now_running = {(shard, StageName(stage)) for shard, stage in connection.execute(running)}
    succeeded = func.count(StageRunRow.clip_id.distinct()).filter(StageRunRow.state.in_(SUCCEEDED))
    seconds = func.coalesce(func.sum(StageRunRow.accelerator_seconds), 0.0)
    totals = runs.add_columns(succeeded, seconds).group_by(shard_of, StageRunRow.stage)
    passed: dict[int, dict[StageName, int]] = defaultdict(dict)
    used: dict[int, float] = defaultdict(float)
    for shard, stage, count, accelerator_seconds in connection.execute(totals):
        passed[shard][StageName(stage)] = count
        used[shard] += accelerator_seconds
    return passed, now_running, used
