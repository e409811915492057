"""What a stage of a shard has to do."""

from __future__ import annotations

from magi2.artifacts.store import ArtifactStore
from magi2.batches.plan import Shard
from magi2.batches.results import failed_clips
from magi2.types import Clip, StageName


def due_clips(store: ArtifactStore, batch_id: str, shard: Shard, stage: StageName) -> tuple[Clip, ...]:
    """The shard's clips but those that failed in an earlier stage; none for a stage that the profile does not have."""
    stages = shard.profile.stages
    if stage not in stages:
        return ()
    failed = failed_clips(store, batch_id, shard.number, stages[: stages.index(stage)])
    return tuple(clip for clip in shard.clips if clip.clip_id not in failed)
