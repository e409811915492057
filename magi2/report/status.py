"""How far a batch is, shard by shard, from the catalog."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any

from magi2.batches.failure_groups import FailureGroup
from magi2.batches.failure_limit import FailureCount
from magi2.catalog import BatchRecord, Catalog
from magi2.catalog.counts import BatchCounts
from magi2.catalog.overview import Overview
from magi2.catalog.shards import ShardPosition
from magi2.catalog.states import FINISHED_BATCH
from magi2.config.price import Price
from magi2.errors import InputError
from magi2.types import StageName


@dataclass(frozen=True, kw_only=True)
class ShardStatus:
    """A shard: the stage that runs, and the clip and step that it has come to, where that is known.

    `seconds_left` is an estimate for the whole shard on the machine that works on it; None without an example.
    """

    shard: int
    profile: str
    counts: BatchCounts
    position: ShardPosition | None
    seconds_left: float | None
    cost: float | None

    @property
    def stage(self) -> StageName | None:
        """The stage that works on it."""
        if self.position is not None:
            return self.position.stage
        return next((stage for stage, counts in self.counts.stages.items() if counts.running), None)

    def to_json(self) -> dict[str, Any]:
        """The shard as JSON values."""
        clips, position = self.counts.clips, self.position
        names = ("clip_id", "step", "steps", "steps_per_second")
        return {
            "shard": self.shard,
            "profile": self.profile,
            "clips": clips.total,
            "done": clips.done,
            "failed": clips.failed,
            "unfinished": clips.unfinished,
            "stage": self.stage,
            **{name: getattr(position, name) if position else None for name in names},
            "seconds_left": self.seconds_left,
            "accelerator_seconds": self.counts.accelerator_seconds,
            "cost": self.cost,
        }


@dataclass(frozen=True, kw_only=True)
class BatchStatus:
    """A batch as it stands; its shards and kinds of failures where only one batch was asked for.

    `paused_because` says who paused it, or what it was paused for by itself.
    """

    batch: BatchRecord
    counts: BatchCounts
    seconds_left: float | None
    cost: float | None
    shards: tuple[ShardStatus, ...] = ()
    failure_groups: tuple[FailureGroup, ...] = ()
    paused_because: str | None = None

    @property
    def is_finished(self) -> bool:
        """Whether nothing of it will change by itself."""
        return self.batch.state in FINISHED_BATCH

    @property
    def failures(self) -> FailureCount:
        """The failures, refused rows among them, beside their limit."""
        return self.batch.failures(self.counts.clips.failed + self.counts.refused_rows)

    def to_json(self) -> dict[str, Any]:
        """The status as JSON values."""
        names = ("batch_id", "name", "source", "state", "requested", "run_id", "requested_by", "priority", "budget")
        return {
            **{name: getattr(self.batch, name) for name in names},
            "failures": str(self.failures),
            "failure_limit": self.batch.failure_limit,
            "is_stopped": self.failures.is_stopped,
            "failure_groups": [group.to_json() for group in self.failure_groups],
            "paused_because": self.paused_because,
            "found": self.counts.found,
            "seconds_left": self.seconds_left,
            "accelerator_seconds": self.counts.accelerator_seconds,
            "cost": self.cost,
            "clips": self.counts.clips.by_state,
            "stages": {stage: asdict(counts) for stage, counts in self.counts.stages.items()},
            "shards": [shard.to_json() for shard in self.shards],
        }


def batch_status(catalog: Catalog, batch_id: str, price: Price | None, *, at: datetime) -> BatchStatus:
    """One batch with its shards. Raises InputError when the catalog does not have it."""
    batch = catalog.batches.get(batch_id)
    if batch is None:
        raise InputError(
            f"there is no batch {batch_id!r} in the catalog {catalog.database.place}",
            hint="magi2 status lists them; magi2 catalog rebuild enters what the store has",
        )
    overview = Overview(catalog.database)
    # Before the batch's numbers: clips that are being entered meanwhile are in those, whatever shards were there.
    shards = overview.shards(batch_id)
    counts = overview.counts([batch_id])[batch_id]
    profiles = catalog.shards.profiles(batch_id)
    positions = {position.shard: position for position in catalog.shards.positions(batch_id)}
    statuses = (
        ShardStatus(
            shard=number,
            profile=profiles[number],
            counts=shard,
            position=positions.get(number),
            seconds_left=_seconds_left(shard, positions.get(number), counts),
            cost=price.cost(shard.accelerator_seconds) if price else None,
        )
        for number, shard in shards.items()
    )
    status = _status(catalog, batch, counts, price, at)
    groups = catalog.batches.failure_groups(batch_id)
    return replace(status, shards=tuple(statuses), failure_groups=tuple(groups))


def recent_batches(catalog: Catalog, price: Price | None, *, limit: int, at: datetime) -> list[BatchStatus]:
    """The newest batches, without their shards."""
    batches = catalog.batches.search(limit=limit).rows
    counts = Overview(catalog.database).counts([batch.batch_id for batch in batches])
    return [_status(catalog, batch, counts[batch.batch_id], price, at) for batch in batches]


def _status(
    catalog: Catalog, batch: BatchRecord, counts: BatchCounts, price: Price | None, at: datetime
) -> BatchStatus:
    return BatchStatus(
        batch=batch,
        counts=counts,
        seconds_left=None if batch.state in FINISHED_BATCH else counts.seconds_left(at),
        cost=price.cost(counts.accelerator_seconds) if price else None,
        paused_because=catalog.control.pause_reason(batch),
    )


def _seconds_left(shard: BatchCounts, position: ShardPosition | None, batch: BatchCounts) -> float | None:
    """The shard's clips that have yet to pass each stage, at what the batch's clips took there on average."""
    seconds_left = 0.0
    for stage, counts in shard.stages.items():
        seconds = batch.stages[stage].seconds_a_clip
        if counts.left and seconds is None:
            return None
        passed = position.step / position.steps if position and position.stage is stage and position.steps else 0.0
        seconds_left += max(counts.left - passed, 0.0) * (seconds or 0.0)
    return seconds_left
