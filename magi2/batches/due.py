"""What a stage of a shard has to do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from magi2.artifacts.store import ArtifactStore
from magi2.batches.plan import Shard
from magi2.batches.results import failed_clips
from magi2.batches.schema import ShardDocument
from magi2.types import Clip, StageName, clip_stages


def due_clips(store: ArtifactStore, batch_id: str, shard: Shard, stage: StageName) -> tuple[Clip, ...]:
    """The shard's clips but those that failed in an earlier stage, or need this one no more.

    None for a stage that the profile does not have; for deliver those that have a target.
    """
    stages = (*shard.profile.stages, StageName.DELIVER)
    if stage not in stages:
        return ()
    if stage is StageName.DELIVER:
        clips = [clip for clip in shard.clips if clip.deliveries]
    else:
        clips = [clip for clip in shard.clips if clip.clip_id not in shard.finished]
    failed = failed_clips(store, batch_id, shard.number, stages[: stages.index(stage)]) if clips else set()
    return tuple(clip for clip in clips if clip.clip_id not in failed)


def shard_stages(document: ShardDocument, profile: Mapping[str, Any]) -> tuple[StageName, ...]:
    """The stages that have something to do for any clip of a shard, in order. `profile` is resolved."""
    stages = clip_stages(profile, is_delivered=any(clip.deliveries for clip in document.clips))
    is_finished = all(clip.clip_id in document.finished for clip in document.clips)
    return tuple(stage for stage in stages if stage is StageName.DELIVER or not is_finished)
