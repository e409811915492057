"""A batch rendered for real on the tiny checkpoint and entered in store and catalog as a run would, without Airflow."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from magi2.artifacts.address import open_store
from magi2.artifacts.store import ArtifactStore
from magi2.batches.batch_file import read_batch
from magi2.batches.plan import BatchOptions, BatchPlan, Shard, plan_batch, save_plan
from magi2.batches.results import write_results
from magi2.checkpoints.layout import CheckpointFolder
from magi2.config.profiles import Profiles
from magi2.config.settings import Settings
from magi2.deployment import Deployment
from magi2.errors import error_text
from magi2.jobs.recorder import CatalogRecorder
from magi2.recipes.load import recipe_book
from magi2.recipes.result import StageResult
from magi2.report.build import build_report, save_report
from magi2.runtime.events import ClipFinished
from magi2.runtime.job import StageJob
from magi2.stages.prepare import prepare
from magi2.stages.render import run_stage

SMALL = (
    "preview.steps=1",
    "preview.width=64",
    "preview.height=32",
    "text.use_negative_prompt=false",
    "text.max_tokens=400",
)
MARKUP = '<img src=x onerror="document.title=\'owned\'"><script>document.title="owned"</script>'
BACKWARDS = "\u202eexit eht ta nrut\u202c & <b>bold</b>"
FOX = "a red fox trots over fresh snow"
TOO_LONG = ("over and over " * 715).strip()
"""10,010 characters: more tokens than the encoder takes, so that this clip fails for a reason of its own."""

ROWS: tuple[dict[str, Any], ...] = (
    {"prompt": FOX, "seed": 7, "name": "fox", "tags": ["snow", "animals"]},
    {"prompt": FOX, "seed": 8, "name": "fox-again", "tags": ["animals"]},
    {"prompt": MARKUP, "seed": 1, "name": BACKWARDS, "tags": ["<i>tag</i>"]},
    {"prompt": TOO_LONG, "seed": 1, "name": "endless"},
)


def render_batch(
    path: Path, settings: Settings, *, run_id: str, profile: str = "tiny-preview", overrides: Sequence[str] = SMALL
) -> str:
    """Plan and render a batch file; the batch's id."""
    store = open_store(settings.store)
    profiles, weights = Profiles(settings.configs, profile, overrides), CheckpointFolder(settings.checkpoint_root())
    batch = read_batch(path, profiles)  # not as plans of files do, which find a clip that is to fail in a stage
    books = {digest: recipe_book(each, settings, weights) for digest, each in batch.profiles.items()}
    plan = plan_batch(
        batch,
        name=path.stem,
        source=str(path),
        store=store,
        book_of=books.__getitem__,
        options=BatchOptions(),
        origin={"dag_id": "magi2_render_batch", "run_id": run_id, "requested_by": "ann"},
    )
    save_plan(plan, store)
    recorder = CatalogRecorder.of(Deployment(settings))
    recorder.on_plan(plan)
    for shard in plan.shards:
        _render_shard(plan, shard, settings, store, recorder)
    report = build_report(store, plan.batch_id)
    save_report(report, store)
    recorder.on_report(report)
    return plan.batch_id


def write_rows(path: Path, rows: Sequence[Mapping[str, Any]] = ROWS) -> Path:
    """A batch file of these rows."""
    path.write_text("\n".join(json.dumps(row) for row in rows))
    return path


def _render_shard(
    plan: BatchPlan, shard: Shard, settings: Settings, store: ArtifactStore, recorder: CatalogRecorder
) -> None:
    context = prepare(shard.profile, settings, shard.clips)
    clips = list(shard.clips)
    for stage in shard.profile.stages:
        job = StageJob(plan.batch_id, shard.number, stage, settings.store)
        recorder.on_stage_start(job, [clip.clip_id for clip in clips])
        results = run_stage(context, stage, clips)
        write_results(store, job.batch_id, job.shard, job.stage, job.attempt, results)
        for result in results:
            recorder.on_event(job, _event(result))
        clips = [result.clip for result in results if result.error is None]


def _event(result: StageResult) -> ClipFinished:
    error = result.error
    return ClipFinished(
        clip_id=result.clip.clip_id,
        state=result.state,
        key=result.key,
        seconds=result.seconds,
        flags=result.flags,
        error_code=error.code if error else None,
        error=error_text(error) if error else None,
        peak_memory_bytes=1 << 30,
        accelerator_seconds=result.seconds,
    )
