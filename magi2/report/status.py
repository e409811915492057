"""How far a batch is, shard by shard, from the catalog."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from magi2.catalog import BatchRecord, Catalog, ClipState
from magi2.catalog.overview import Overview, Tally
from magi2.catalog.shards import ShardPosition, ShardTally
from magi2.catalog.states import FINISHED_BATCH, UNFINISHED_CLIP
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
    clips: int
    done: int
    failed: int
    unfinished: int
    stage: StageName | None
    clip_id: str | None
    step: int | None
    steps: int | None
    steps_per_second: float | None
    seconds_left: float | None
    accelerator_seconds: float
    cost: float | None


@dataclass(frozen=True, kw_only=True)
class BatchStatus:
    """A batch as it stands. `clips` by state, every state is there; `found` of those done were finished before."""

    batch: BatchRecord
    clips: Mapping[ClipState, int]
    found: int
    seconds_left: float | None
    accelerator_seconds: float
    cost: float | None
    shards: tuple[ShardStatus, ...]

    @property
    def done(self) -> int:
        """Clips that are finished."""
        return self.clips[ClipState.DONE]

    @property
    def failed(self) -> int:
        """Clips that failed."""
        return self.clips[ClipState.FAILED]

    @property
    def is_finished(self) -> bool:
        """Whether nothing of it will change by itself."""
        return self.batch.state in FINISHED_BATCH

    def to_json(self) -> dict[str, Any]:
        """The status as JSON values."""
        own = ("found", "seconds_left", "accelerator_seconds", "cost")
        names = ("batch_id", "name", "source", "state", "requested", "run_id", "requested_by", "priority", "budget")
        return {
            **{name: getattr(self.batch, name) for name in names},
            **{name: getattr(self, name) for name in own},
            "clips": dict(self.clips),
            "shards": [asdict(shard) for shard in self.shards],
        }


def batch_status(catalog: Catalog, batch_id: str, price: Price | None, *, at: datetime) -> BatchStatus:
    """One batch with its shards. Raises InputError when the catalog does not have it."""
    batch = catalog.batches.get(batch_id)
    if batch is None:
        raise InputError(
            f"there is no batch {batch_id!r} in the catalog {catalog.database.place}",
            hint="magi2 status lists them; magi2 catalog rebuild enters what the store has",
        )
    # Before the batch's numbers: clips that are being entered meanwhile are in those, whatever shards were there.
    shard_tallies = catalog.shards.tallies(batch_id)
    tally = Overview(catalog.database).tallies([batch_id])[batch_id]
    positions = {position.shard: position for position in catalog.shards.positions(batch_id)}
    shards = (_shard(shard, positions.get(shard.shard), tally, price) for shard in shard_tallies)
    return _batch(batch, tally, price, at, tuple(shards))


def recent_batches(catalog: Catalog, price: Price | None, *, limit: int, at: datetime) -> list[BatchStatus]:
    """The newest batches, without their shards."""
    batches = catalog.batches.search(limit=limit).rows
    tallies = Overview(catalog.database).tallies([batch.batch_id for batch in batches])
    return [_batch(batch, tallies[batch.batch_id], price, at, ()) for batch in batches]


def _batch(
    batch: BatchRecord, tally: Tally, price: Price | None, at: datetime, shards: tuple[ShardStatus, ...]
) -> BatchStatus:
    return BatchStatus(
        batch=batch,
        clips=tally.clips,
        found=tally.found,
        seconds_left=None if batch.state in FINISHED_BATCH else tally.seconds_left(at),
        accelerator_seconds=tally.accelerator_seconds,
        cost=price.cost(tally.accelerator_seconds) if price else None,
        shards=shards,
    )


def _shard(shard: ShardTally, position: ShardPosition | None, tally: Tally, price: Price | None) -> ShardStatus:
    return ShardStatus(
        shard=shard.shard,
        profile=shard.profile,
        clips=sum(shard.clips.values()),
        done=shard.clips.get(ClipState.DONE, 0),
        failed=shard.clips.get(ClipState.FAILED, 0),
        unfinished=_unfinished(shard),
        stage=position.stage if position else next(iter(shard.running), None),
        clip_id=position.clip_id if position else None,
        step=position.step if position else None,
        steps=position.steps if position else None,
        steps_per_second=position.steps_per_second if position else None,
        seconds_left=_seconds_left(shard, position, tally),
        accelerator_seconds=shard.accelerator_seconds,
        cost=price.cost(shard.accelerator_seconds) if price else None,
    )


def _unfinished(shard: ShardTally) -> int:
    return sum(shard.clips.get(state, 0) for state in UNFINISHED_CLIP)


def _seconds_left(shard: ShardTally, position: ShardPosition | None, tally: Tally) -> float | None:
    """The shard's clips that have yet to pass each stage, at what the batch's clips took there on average."""
    unfinished, left = _unfinished(shard), 0.0
    for stage in shard.stages if unfinished else ():
        ahead = max(shard.passed.get(stage, 0) - shard.clips.get(ClipState.DONE, 0), 0)
        seconds = tally.stages[stage].seconds_a_clip
        if unfinished > ahead and seconds is None:
            return None
        passed = position.step / position.steps if position and position.stage is stage and position.steps else 0.0
        left += max(unfinished - ahead - passed, 0.0) * (seconds or 0.0)
    return left
