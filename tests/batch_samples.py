"""Plans made by hand, for tests of what comes after planning."""

from __future__ import annotations

from collections.abc import Sequence

from magi2.batches.plan import BatchOptions, BatchPlan, Shard
from magi2.config.profile import Profile
from magi2.types import Clip


def one_shard(batch_id: str, profile: Profile, clips: Sequence[Clip], number: int = 0) -> BatchPlan:
    """A batch of one shard, whatever is in the store."""
    return BatchPlan(
        batch_id=batch_id,
        name=batch_id,
        source="by hand",
        options=BatchOptions(),
        shards=(Shard(number, profile, tuple(clips)),),
        cached=(),
        refused=(),
        missing={},
        profiles={profile.digest(): profile},
    )
