"""Answering a job from the store when nothing is left to make: no process, no model, no accelerator; torch-free."""

from __future__ import annotations

from collections.abc import Collection

from magi2.artifacts.store import ArtifactStore
from magi2.batches.plan import load_shard
from magi2.batches.results import write_results
from magi2.checkpoints.layout import CheckpointFolder
from magi2.config.settings import Settings
from magi2.recipes.load import recipe_book
from magi2.recipes.lookup import stored_results
from magi2.runtime.events import ClipFinished
from magi2.runtime.job import StageJob


def reuse_shard(
    job: StageJob, store: ArtifactStore, settings: Settings, clip_ids: Collection[str]
) -> tuple[ClipFinished, ...] | None:
    """What a worker would tell of these clips of the job's shard if all are stored, with the results written; or None.

    A job that is forced always goes to a worker. Raises what `load_shard` and `recipe_book` do.
    """
    if job.force:
        return None
    shard = load_shard(store, job.batch_id, job.shard, scratch=None)
    book = recipe_book(shard.profile, settings, CheckpointFolder(settings.checkpoint_root()))
    clips = [clip for clip in shard.clips if clip.clip_id in clip_ids]
    results = stored_results(store, book, job.stage, clips)
    if results is None:
        return None
    write_results(store, job, results)
    return tuple(
        ClipFinished(result.clip.clip_id, "reused", result.key, result.seconds, result.flags) for result in results
    )
