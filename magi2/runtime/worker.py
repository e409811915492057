"""`python -m magi2.runtime.worker --job FILE`: one rank of a stage, of many forked by `ranks`, else started alone."""

from __future__ import annotations

import argparse
import faulthandler
import logging
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from magi2.errors import (
    CancelledError,
    GroupLostError,
    InfrastructureError,
    Magi2Error,
    OutOfMemoryError,
    error_from_code,
    error_text,
    in_one_line,
)
from magi2.files import machine_error
from magi2.runtime.channel import connect
from magi2.runtime.exit_codes import ExitCode, exit_code
from magi2.runtime.job import StageJob
from magi2.runtime.process import die_with_parent
from magi2.runtime.progress import EventProgress
from magi2.types import Clip

if TYPE_CHECKING:
    from magi2.config.profile import Profile
    from magi2.config.settings import Settings
    from magi2.recipes.result import StageResult
    from magi2.stages.team import Team

logger = logging.getLogger(__name__)


def main() -> int:
    """Run the job; the exit code is one of `ExitCode`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--job", type=Path, required=True)
    path = parser.parse_args().job
    die_with_parent()
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    signal.signal(signal.SIGTERM, _terminate)
    try:
        # What `ranks` tells each of many; without it this is the only one.
        return _work(path, rank=int(os.environ.get("RANK", "0")), ranks=int(os.environ.get("WORLD_SIZE", "1")))
    except _Terminated:
        return ExitCode.CANCELLED


def _work(path: Path, *, rank: int, ranks: int) -> int:
    level = logging.INFO if rank == 0 else logging.WARNING
    logging.basicConfig(level=level, format=f"%(asctime)s %(levelname)s rank {rank} %(name)s: %(message)s")
    try:
        job = StageJob.read(path)
        # Before anything heavy is imported, so that a slow import is not taken for a rank that does not start.
        connection = connect(path.parent)
    except Magi2Error as error:
        logger.error("%s", error_text(error))
        return exit_code(error)
    with EventProgress(connection.fileno(), rank=rank, ranks=ranks, peak_memory=_peak_memory) as progress:
        return _run_and_tell(job, path.parent, rank, progress)


def _run_and_tell(job: StageJob, folder: Path, rank: int, progress: EventProgress) -> int:
    clip_id: str | None = None
    try:
        run_job(job, folder / f"scratch-{rank}", progress, publishes_results=rank == 0)
    except _Terminated:
        error: Magi2Error = CancelledError("ended by SIGTERM")
    except GroupLostError as lost:
        error, clip_id = lost.cause, lost.clip_id
        logger.error("the group is lost: %s", error_text(error))
    except Magi2Error as expected:
        error = machine_error(expected) or expected
        logger.error("%s", error_text(error))
    except Exception as unforeseen:
        logger.exception("the stage failed")
        error = _as_error(unforeseen)
    else:
        progress.finished()
        return ExitCode.DONE
    progress.failed(error, clip_id)
    return exit_code(error)


def run_job(job: StageJob, scratch: Path, progress: EventProgress, *, publishes_results: bool) -> None:
    """The stage over those of the shard's clips that no earlier stage failed on, and the document of its results.

    The rank that publishes results leads: it alone speaks to the store. No clip is left for a stage that the profile
    does not have.

    Raises: what keeps the whole shard from being rendered; GroupLostError when another group has to go on; once all is
    made that can be, the error of a clip that a further try may mend, unless this is the last one and other clips went
    better. Any other failure of a clip is in the results alone.
    """
    from magi2.config.settings import Settings
    from magi2.runtime.meeting import meet

    settings = replace(Settings.from_environment(), store=job.store)
    with meet(job.layout, settings) as team:
        progress.joined()
        if publishes_results:
            results = _lead(job, scratch, progress, settings, team)
        else:
            results = []
            _follow(job, progress, settings, team)
    demand_retry(job, results)


def _lead(job: StageJob, scratch: Path, progress: EventProgress, settings: Settings, team: Team) -> list[StageResult]:
    """Run the stage with whoever follows, and store its results."""
    from magi2.batches.due import due_clips
    from magi2.batches.leases import LeaseKeeper
    from magi2.batches.plan import load_shard
    from magi2.batches.results import write_results
    from magi2.catalog.gate import CancelCheck
    from magi2.deployment import Deployment
    from magi2.runtime.lock import artifact_locks
    from magi2.runtime.store_wait import StoreWait
    from magi2.stages.prepare import prepare
    from magi2.stages.render import run_stage

    check = CancelCheck(settings, job.batch_id).check
    deployment = Deployment(settings, store_identity=job.store_identity)
    patience = StoreWait(deployment, progress=progress, check=check)
    store = patience.store_of(job.batch_id)
    scratch.mkdir()
    shard = patience(lambda: load_shard(store, job.batch_id, job.shard, scratch))
    clips = patience(lambda: due_clips(store, job.batch_id, shard, job.stage))
    team.tell(shard.profile if clips else None)
    results: list[StageResult] = []
    if clips:
        lost = _lost_results(job, clips, progress)
        context = prepare(shard.profile, settings, clips, progress=progress, store_opener=lambda: store, team=team)
        context.force = frozenset({job.stage}) if job.force else frozenset()
        lease = LeaseKeeper(store, job.batch_id, job.shard, settings.lease_days)
        context.before_clip, context.patience = lease.after(check), patience
        if context.device.type == "cpu":
            context.artifact_lock = artifact_locks(job.store, progress.waiting)
        made = iter(run_stage(context, job.stage, [clip for clip in clips if clip.clip_id not in lost]))
        results = [lost.get(clip.clip_id) or next(made) for clip in clips]
    # Later stages and the report take a clip that has a failed row for lost.
    settled = [result for result in results if result.error is None or not job.is_tried_again(result.error)]
    patience(lambda: write_results(store, job.batch_id, job.shard, job.stage, job.attempt, settled))
    return results


def _follow(job: StageJob, progress: EventProgress, settings: Settings, team: Team) -> None:
    """Do what rank 0 says."""
    from magi2.stages.prepare import prepare
    from magi2.stages.render import follow_stage

    progress.waiting()
    profile: Profile | None = team.hear()
    if profile is not None:
        follow_stage(prepare(profile, settings, (), progress=progress, team=team), job.stage)


def _lost_results(job: StageJob, clips: Sequence[Clip], progress: EventProgress) -> dict[str, StageResult]:
    """Results of the clips that earlier groups did not survive, told at once, by clip id."""
    from magi2.recipes.result import StageResult

    errors = {clip.clip_id: error_from_code(clip.code, clip.message) for clip in job.lost}
    lost = {
        clip.clip_id: StageResult(job.stage, clip, "failed", 0.0, error=errors[clip.clip_id])
        for clip in clips
        if clip.clip_id in errors
    }
    for result in lost.values():
        progress.clip_finished(result)
    return lost


def demand_retry(job: StageJob, results: Sequence[StageResult]) -> None:
    """Raise the first error that may pass, if there is a try left for it or if no clip was spared."""
    passing = [result.error for result in results if result.error is not None and result.error.retryable]
    spares_none = len(passing) == len(results)
    if passing and (spares_none or not job.is_last_try):
        count = f"all {len(results)}" if spares_none else f"{len(passing)} of {len(results)}"
        raise type(passing[0])(f"{count} clips failed, the first with: {error_text(passing[0])}", hint="")


class _Terminated(BaseException):
    """Unwinds the main thread; no handler of a clip's errors may take it for one."""


def _terminate(number: int, frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a second one must not disturb the clearing up
    raise _Terminated


def _peak_memory() -> int:
    from magi2 import platform
    from magi2.config.settings import Settings

    name, _, _ = (Settings.from_environment().device or "").partition(":")
    return platform.memory_stats(accelerator=platform.current(name or None)).peak


def _as_error(error: Exception) -> Magi2Error:
    import torch

    text = f"{type(error).__name__}: {in_one_line(error)}"
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return OutOfMemoryError(text)
    if isinstance(error, torch.AcceleratorError | torch.distributed.DistError):
        return InfrastructureError(text)
    return machine_error(error) or Magi2Error(f"unforeseen {text}")


if __name__ == "__main__":
    sys.exit(main())
