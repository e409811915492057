"""How far many batches are, in a few statements for all of them, and what leads to a batch or a clip."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Select, func, select

from magi2.catalog.engine import Database
from magi2.catalog.records import ClipState, RunState
from magi2.catalog.runs import SUCCEEDED
from magi2.catalog.statements import was_retried
from magi2.catalog.states import UNFINISHED_CLIP
from magi2.catalog.tables import BatchClipRow, BatchRow, ClipRow, ProfileRow, RefusedRow, StageRunRow
from magi2.types import StageName, profile_stages


@dataclass(frozen=True, kw_only=True)
class StageTally:
    """A stage of a batch: clips by the state of their last attempt; seconds of all attempts together.

    `total` clips pass the stage; `found` of them were finished before the batch was planned. `left` have yet to pass.
    """

    total: int
    found: int
    left: int
    clips: Mapping[RunState, int]
    seconds: float
    accelerator_seconds: float
    peak_memory_bytes: int | None
    seconds_by_state: Mapping[RunState, float]

    @property
    def seconds_a_clip(self) -> float | None:
        """What a clip takes, by those that were made, or else reused; None when there is none."""
        state = next((each for each in SUCCEEDED if self.clips.get(each)), None)
        return None if state is None else self.seconds_by_state[state] / self.clips[state]


@dataclass(frozen=True, kw_only=True)
class Tally:
    """A batch in numbers: clips by state, every state is there; `found` of those done were finished before.

    `began` is the start of its first attempt at a stage.
    """

    clips: Mapping[ClipState, int]
    found: int
    refused_rows: int
    stages: Mapping[StageName, StageTally]
    began: datetime | None

    @property
    def accelerator_seconds(self) -> float:
        """What all attempts took, all ranks together."""
        return sum(stage.accelerator_seconds for stage in self.stages.values())

    def seconds_left(self, at: datetime) -> float | None:
        """Seconds from `at` to the end if the batch goes on as it did, None while a stage that is left has no example.

        The work left, clip by clip and stage by stage, at the pace of all attempts since the first began.
        """
        stages = self.stages.values()
        work = [(stage.left, stage.seconds_a_clip) for stage in stages if stage.left]
        done = sum(stage.seconds for stage in stages)
        if self.began is None or done <= 0 or any(seconds is None for _, seconds in work):
            return None
        elapsed = max((at - self.began).total_seconds(), 0.0)
        return sum(count * (seconds or 0.0) for count, seconds in work) * elapsed / done


@dataclass
class _Clips:
    """Clips of a batch, and of each of its stages, by state; `found` were finished before."""

    states: Counter[ClipState] = field(default_factory=Counter)
    found: int = 0
    by_stage: dict[StageName, Counter[ClipState]] = field(default_factory=lambda: defaultdict(Counter))
    found_by_stage: Counter[StageName] = field(default_factory=Counter)


class Overview:
    """Batches in numbers. All raise InfrastructureError when the database does not answer."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def tallies(self, batch_ids: Sequence[str]) -> dict[str, Tally]:
        """The numbers of each of these batches, in four statements."""
        return self._database.read(_tallies, batch_ids)

    def batch_of_run(self, dag_id: str, run_id: str) -> tuple[str, str] | None:
        """Id and name of the batch that a run of Airflow renders, the latest if it was planned anew; or None."""
        query = select(BatchRow.batch_id, BatchRow.name).where(BatchRow.run_id == run_id, BatchRow.dag_id == dag_id)
        latest = query.order_by(BatchRow.created_at.desc()).limit(1)
        row = self._database.read(lambda connection: connection.execute(latest).one_or_none())
        return None if row is None else (row.batch_id, row.name)

    def profile(self, digest: str) -> Mapping[str, Any]:
        """A resolved profile; empty when there is none of this digest."""
        query = select(ProfileRow.content).where(ProfileRow.digest == digest)
        return self._database.read(lambda connection: connection.scalar(query)) or {}

    def profiles(self, batch_id: str) -> list[Mapping[str, Any]]:
        """The resolved profiles of a batch's clips."""
        digests = (
            select(ClipRow.profile_digest)
            .join(BatchClipRow, BatchClipRow.clip_id == ClipRow.clip_id)
            .where(BatchClipRow.batch_id == batch_id)
        )
        query = select(ProfileRow.content).where(ProfileRow.digest.in_(digests)).order_by(ProfileRow.digest)
        return list(self._database.read(lambda connection: connection.scalars(query).all()))

    def unknown_clips(self, batch_id: str, clip_ids: Sequence[str]) -> list[str]:
        """Those of these clip ids that the batch does not have."""
        query = select(BatchClipRow.clip_id).where(
            BatchClipRow.batch_id == batch_id, BatchClipRow.clip_id.in_(clip_ids)
        )
        known = set(self._database.read(lambda connection: connection.scalars(query).all()))
        return [clip_id for clip_id in clip_ids if clip_id not in known]

    def artifact_keys(self, batch_id: str, clip_id: str) -> dict[StageName, str]:
        """The keys of what the stages made of a clip, in this batch if it did, or else in the latest that did."""
        query = (
            select(StageRunRow.stage, StageRunRow.artifact_key)
            .join(BatchClipRow, BatchClipRow.batch_id == StageRunRow.batch_id)
            .where(
                BatchClipRow.clip_id == clip_id,
                StageRunRow.clip_id == clip_id,
                StageRunRow.artifact_key.is_not(None),
                StageRunRow.state.in_(SUCCEEDED),
            )
            .order_by((StageRunRow.batch_id == batch_id).asc(), StageRunRow.finished_at.asc().nulls_first())
        )
        rows = self._database.read(lambda connection: connection.execute(query).all())
        return {StageName(stage): key for stage, key in rows if key}


def _tallies(connection: Connection, batch_ids: Sequence[str]) -> dict[str, Tally]:
    clips = _clips(connection, batch_ids)
    runs: dict[str, list[Any]] = defaultdict(list)
    for row in connection.execute(_runs(batch_ids)):
        runs[row.batch_id].append(row)
    refused = select(RefusedRow.batch_id, func.count()).where(RefusedRow.batch_id.in_(batch_ids))
    rows = {batch_id: count for batch_id, count in connection.execute(refused.group_by(RefusedRow.batch_id))}
    return {each: _tally(clips[each], runs[each], rows.get(each, 0)) for each in batch_ids}


def _clips(connection: Connection, batch_ids: Sequence[str]) -> dict[str, _Clips]:
    was_found = (BatchClipRow.shard.is_(None) & (BatchClipRow.state == ClipState.DONE)).label("was_found")
    query = (
        select(BatchClipRow.batch_id, ClipRow.profile_digest, BatchClipRow.state, was_found, func.count())
        .join(ClipRow, ClipRow.clip_id == BatchClipRow.clip_id)
        .where(BatchClipRow.batch_id.in_(batch_ids))
        .group_by(BatchClipRow.batch_id, ClipRow.profile_digest, BatchClipRow.state, was_found)
    )
    rows = connection.execute(query).all()
    contents = select(ProfileRow.digest, ProfileRow.content).where(ProfileRow.digest.in_({row[1] for row in rows}))
    stages = {digest: profile_stages(content) for digest, content in connection.execute(contents)}
    clips = {batch_id: _Clips() for batch_id in batch_ids}
    for batch_id, digest, state, found, count in rows:
        batch = clips[batch_id]
        batch.states[ClipState(state)] += count
        batch.found += count if found else 0
        for stage in stages[digest]:
            batch.by_stage[stage][ClipState(state)] += count
            batch.found_by_stage[stage] += count if found else 0
    return clips


def _runs(batch_ids: Sequence[str]) -> Select[*tuple[Any, ...]]:
    """Attempts by batch, stage, state and whether they were a clip's last at the stage."""
    is_last = ~was_retried()
    runs = select(StageRunRow, is_last.label("is_last")).where(StageRunRow.batch_id.in_(batch_ids)).subquery()
    keys = runs.c.batch_id, runs.c.stage, runs.c.state, runs.c.is_last
    return select(
        *keys,
        func.count().label("clips"),
        func.coalesce(func.sum(runs.c.seconds), 0.0).label("seconds"),
        func.coalesce(func.sum(runs.c.accelerator_seconds), 0.0).label("accelerator_seconds"),
        func.max(runs.c.peak_memory_bytes).label("peak_memory_bytes"),
        func.min(runs.c.started_at).label("began"),
    ).group_by(*keys)


def _tally(clips: _Clips, runs: Sequence[Any], refused_rows: int) -> Tally:
    order = [stage for stage in StageName if stage in clips.by_stage]
    last = {stage: {RunState(row.state): row for row in runs if row.stage == stage and row.is_last} for stage in order}
    failed = {stage: last[stage][RunState.FAILED].clips if RunState.FAILED in last[stage] else 0 for stage in order}
    stages = {}
    for index, stage in enumerate(order):
        states, ours = clips.by_stage[stage], [row for row in runs if row.stage == stage]
        passed = sum(last[stage][state].clips for state in SUCCEEDED if state in last[stage])
        failed_later = sum(failed[each] for each in order[index + 1 :])
        # Clips on their way that have passed: those that have, less those that are at the end or failed further on.
        ahead = passed + clips.found_by_stage[stage] - states[ClipState.DONE] - failed_later
        unfinished = sum(states[each] for each in UNFINISHED_CLIP)
        stages[stage] = StageTally(
            total=states.total(),
            found=clips.found_by_stage[stage],
            left=min(max(unfinished - ahead, 0), unfinished),
            clips={state: row.clips for state, row in last[stage].items()},
            seconds=sum(row.seconds for row in ours),
            accelerator_seconds=sum(row.accelerator_seconds for row in ours),
            peak_memory_bytes=max((row.peak_memory_bytes for row in ours if row.peak_memory_bytes), default=None),
            seconds_by_state={state: row.seconds for state, row in last[stage].items()},
        )
    began = min((row.began for row in runs if row.began), default=None)
    counts = {state: clips.states[state] for state in ClipState}
    return Tally(clips=counts, found=clips.found, refused_rows=refused_rows, stages=stages, began=began)
