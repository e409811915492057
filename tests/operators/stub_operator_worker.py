"""The real worker around a stage that does what STUB_ACTION says, without models."""

import os
import sys
import time
from pathlib import Path

import magi2.errors
from magi2.artifacts.address import open_store
from magi2.batches.plan import load_shard
from magi2.batches.results import write_results
from magi2.recipes.result import StageResult
from magi2.runtime import worker
from magi2.runtime.job import StageJob
from magi2.runtime.progress import EventProgress


def run_job(job: StageJob, scratch: Path, progress: EventProgress, *, publishes_results: bool) -> None:
    store = open_store(job.store)
    scratch.mkdir()
    clips = load_shard(store, job.batch_id, job.shard, scratch).clips
    progress.stage_started(job.stage, len(clips))
    action = os.environ["STUB_ACTION"]
    if action == "wait":
        Path(os.environ["STUB_MARK"]).write_text(str(os.getpid()))
        time.sleep(3600)
    if action.endswith("Error"):
        raise getattr(magi2.errors, action)("the reason")
    results = []
    for number, clip in enumerate(clips):
        failed = number == 0
        error = magi2.errors.ImageError("no picture") if failed else None
        results.append(StageResult(job.stage, clip, "failed" if failed else "made", 1.0, None, (), error))
        progress.clip_finished(results[-1])
    write_results(store, job.batch_id, job.shard, job.stage, job.attempt, results)


if __name__ == "__main__":
    worker.run_job = run_job
    worker._peak_memory = lambda: 0
    sys.exit(worker.main())
