"""The real worker around stages that only publish a small artifact under the key that the real one would have."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from magi2.artifacts.address import open_store
from magi2.artifacts.manifest import ManifestDraft
from magi2.artifacts.recipe import Recipe
from magi2.artifacts.store import ArtifactStore
from magi2.batches.plan import load_shard
from magi2.batches.results import write_results
from magi2.checkpoints.layout import CheckpointFolder
from magi2.config.settings import Settings
from magi2.prompts.caption import Caption
from magi2.recipes.book import RecipeBook
from magi2.recipes.captions import CAPTION
from magi2.recipes.load import recipe_book
from magi2.recipes.result import StageResult
from magi2.runtime import worker
from magi2.runtime.job import StageJob
from magi2.runtime.progress import EventProgress
from magi2.types import Clip, StageName


def run_job(job: StageJob, scratch: Path, progress: EventProgress, *, publishes_results: bool) -> None:
    """As `magi2.runtime.worker.run_job`, without models."""
    store, settings = open_store(job.store), Settings.from_environment()
    scratch.mkdir()
    shard = load_shard(store, job.batch_id, job.shard, scratch)
    book = recipe_book(shard.profile, settings, CheckpointFolder(settings.checkpoint_root()))
    progress.stage_started(job.stage, len(shard.clips))
    if job.stage is StageName.ENCODE and book.negative:
        _publish(store, book.negative, b"negative")
    results = []
    for clip in shard.clips:
        started = time.monotonic()
        recipe, content = _recipe(book, job.stage, clip)
        key = _publish(store, recipe, content)
        results.append(StageResult(job.stage, clip, "made", time.monotonic() - started, key))
        progress.clip_finished(results[-1])
    write_results(store, job.batch_id, job.shard, job.stage, job.attempt, results)


def _recipe(book: RecipeBook, stage: StageName, clip: Clip) -> tuple[Recipe, bytes]:
    if stage is StageName.ENHANCE:
        return book.enhance(clip), Caption(clip.prompt).to_json()
    return book.chain(clip, clip.prompt)[stage], clip.clip_id.encode()


def _publish(store: ArtifactStore, recipe: Recipe, content: bytes) -> str:
    name = CAPTION if recipe.stage == StageName.ENHANCE else "payload.bin"
    with store.stage_folder(recipe.stage, recipe.key) as folder:
        (folder / name).write_bytes(content)
        return store.publish(ManifestDraft(recipe), {name: folder / name}).key


if __name__ == "__main__":
    worker.run_job = run_job
    worker._peak_memory = lambda: 0
    sys.exit(worker.main())
