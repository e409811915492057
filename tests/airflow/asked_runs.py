"""Runs DAGs in this process by `dag.test`; stages make clips without models, and wishes come as the prompts say.

Each line "state NAME JSON" on standard output tells how a run ended.
"""

from __future__ import annotations

import json
import runpy
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

from airflow.models.taskreschedule import TaskReschedule
from airflow.utils.session import create_session
from sqlalchemy import func, select

from magi2.artifacts.manifest import ManifestDraft
from magi2.batches.results import write_results
from magi2.catalog import Actor, BatchState, Catalog, NewBatch
from magi2.deployment import Deployment
from magi2.jobs.run import OnEvent, StageWork
from magi2.recipes.result import StageResult
from magi2.runtime.events import ClipFinished
from magi2.runtime.job import StageJob
from magi2.types import ACCELERATOR_STAGES, StageName
from magi2_airflow.base import StageOperator

DAGS = Path(__file__).parents[2] / "dags"
ANN = Actor("1", "ann")


def catalog() -> Catalog:
    return Deployment.from_environment().catalog


def compute(operator: StageOperator, work: StageWork, on_event: OnEvent) -> list[StageResult]:
    """What the launcher and the worker do, with a second on an accelerator for each clip."""
    job, deployment = work.job, Deployment.from_environment()
    store, book, results = deployment.store, deployment.recipe_book(work.shard.profile), []
    for clip in work.clips:
        key = None
        if job.stage is StageName.MUX:
            recipe = book.chain(clip, clip.prompt)[job.stage]
            with store.stage_folder(recipe.stage, recipe.key) as folder:
                (folder / "clip.mp4").write_bytes(b"clip")
                key = store.publish(ManifestDraft(recipe), {"clip.mp4": folder / "clip.mp4"}).key
        results.append(StageResult(job.stage, clip, "made", 1.0, key))
        cost = 1.0 if job.stage in ACCELERATOR_STAGES else 0.0
        on_event(ClipFinished(clip.clip_id, "made", key, 1.0, accelerator_seconds=cost))
        obey(job, clip.prompt)
    write_results(store, job.batch_id, job.shard, job.stage, job.attempt, results)
    return results


def obey(job: StageJob, prompt: str) -> None:
    """Somebody asks for what the prompt says."""
    if prompt == "pause after encode" and job.stage is StageName.ENCODE:
        catalog().control.pause(job.batch_id, by=ANN)
        threading.Thread(target=resume_when_waiting, args=(job.batch_id,), daemon=True).start()
    if prompt == "cancel after enhance" and job.stage is StageName.ENHANCE:
        catalog().control.cancel(job.batch_id, by=ANN)


def resume_when_waiting(batch_id: str) -> None:
    while not reschedules():
        time.sleep(0.1)
    catalog().control.resume(batch_id, by=ANN)


def reschedules() -> int:
    with create_session() as session:
        return int(session.scalar(select(func.count()).select_from(TaskReschedule)) or 0)


def test(name: str, conf: dict[str, Any]) -> str:
    """The id of a run of a DAG, made to its end."""
    dag = runpy.run_path(str(DAGS / f"{name}.py"))["dag"]
    for task in dag.tasks:
        if isinstance(task, StageOperator):
            task.wait = timedelta(seconds=1)
    run = dag.test(run_conf=conf)
    states = {f"{ti.task_id}/{ti.map_index}": ti.state for ti in run.get_task_instances()}
    sys.stdout.write(f"state {name} {json.dumps({'run': run.state, 'reschedules': reschedules(), **states})}\n")
    return str(run.run_id)


def main(paused: str, cancelled: str) -> None:
    StageOperator.compute = compute  # type: ignore[assignment,method-assign]
    test("magi2_render_batch", {"batch": paused, "budget": 2.5, "priority": 4})
    failed = test("magi2_render_batch", {"batch": cancelled})
    for batch_id, run_id in (("ended", failed), ("deleted", "no_such_run")):
        batch = NewBatch(
            batch_id=batch_id, name="n", source="s", clips_total=0, dag_id="magi2_render_batch", run_id=run_id
        )
        catalog().batches.create(batch, {})
        catalog().batches.mark(batch_id, BatchState.RUNNING)
    test("magi2_watch", {"min_free_percent": 100})


if __name__ == "__main__":
    main(*sys.argv[1:])
