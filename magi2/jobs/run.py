"""One stage of one shard: whether it may start, what is stored already, the rest made, and all of it written down.

Airflow's tasks and the command line differ in how the rest is made (`Compute`), and in who listens.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeAlias

from magi2.artifacts.store import ArtifactStore, Patience, at_once
from magi2.batches.due import due_clips
from magi2.batches.failures import save_failure
from magi2.batches.leases import lease_for_stage
from magi2.batches.plan import Shard, load_shard
from magi2.batches.results import write_results
from magi2.catalog.gate import check_may_start
from magi2.checkpoints.whole import required_components
from magi2.deployment import Deployment
from magi2.errors import BatchCancelledError, BudgetSpentError, Magi2Error, PausedError, StoppedError, error_from_code
from magi2.files import machine_error
from magi2.jobs.recorder import CatalogRecorder
from magi2.recipes.lookup import StoredClip, reusable_results
from magi2.recipes.result import StageResult, without_manifests
from magi2.runtime.events import ClipFinished, Event, StageStarted
from magi2.runtime.job import StageJob
from magi2.types import Clip, StageName

logger = logging.getLogger(__name__)

OnEvent: TypeAlias = Callable[[Event], None]


@dataclass(frozen=True)
class StageWork:
    """A job, its shard, and those of the shard's clips that the stage has to do."""

    job: StageJob
    shard: Shard
    clips: tuple[Clip, ...]

    @classmethod
    def planned(cls, job: StageJob, store: ArtifactStore) -> StageWork:
        """What was planned, less what failed in earlier stages. Raises: InputError when there is no such shard."""
        shard = load_shard(store, job.batch_id, job.shard, scratch=None)
        return cls(job, shard, due_clips(store, job.batch_id, shard, job.stage))

    @property
    def clip_ids(self) -> list[str]:
        """Ids of the clips, in order."""
        return [clip.clip_id for clip in self.clips]


Compute: TypeAlias = Callable[[StageWork, OnEvent], Sequence[StageResult]]
"""Makes what a stage has to make, tells of it, and writes the stage's results to the store."""


def run_stage_job(
    work: StageWork,
    deployment: Deployment,
    compute: Compute,
    *,
    recorder: CatalogRecorder | None = None,
    on_event: OnEvent = lambda event: None,
    patience: Patience = at_once,
) -> Sequence[StageResult]:
    """One result per clip; a clip that failed is in them and raises nothing.

    `recorder` enters the course in the catalog, which is also asked whether the stage may start; None for a batch that
    the catalog does not know. `on_event` hears of progress. `patience` waits for a store that is away.
    Raises: PausedError when the work has to wait; BatchCancelledError, BudgetSpentError or StoppedError when it will
    not be done, its clips then being set aside; CheckpointError when something is to be made and the weights are
    hollow; what `compute` raises when there are no results, which the report will name; InfrastructureError when a
    disk is behind an error, whatever its class.
    """
    try:
        return _results(work, deployment, compute, recorder, on_event, patience)
    except PausedError as error:
        if recorder:
            recorder.on_stage_end(work.job, error)
        raise
    except Exception as error:
        fault = machine_error(error)  # a stale mount of weights is no fault of theirs
        told = fault or error
        if isinstance(told, Magi2Error):
            _write_down(work, told, deployment.store, recorder)
        if fault is None:
            raise
        raise fault from error


def _results(
    work: StageWork,
    deployment: Deployment,
    compute: Compute,
    recorder: CatalogRecorder | None,
    on_event: OnEvent,
    patience: Patience,
) -> Sequence[StageResult]:
    job, store = work.job, deployment.store
    if recorder:
        if work.clips:
            place = job.batch_id, job.shard, job.stage
            patience(lambda: check_may_start(deployment.settings, store, *place))
        recorder.on_stage_start(job, work.clip_ids)
    if not work.clips:
        return []
    stored = patience(lambda: _stored(work, deployment))
    if stored is None and job.stage is not StageName.DELIVER:
        deployment.weights.require_filled(required_components(work.shard.profile, work.clips))
    with _recorded(job, recorder, on_event) as tell:
        if stored is None:
            return _computed(work, store, compute, tell, patience)
        patience(lambda: write_results(store, job.batch_id, job.shard, job.stage, job.attempt, stored))
        tell(StageStarted(job.stage.value, len(stored)))
        for result in stored:
            tell(
                ClipFinished(
                    result.clip.clip_id, "reused", result.key, result.seconds, result.flags, measures=result.measures
                )
            )
        return without_manifests(stored)


def _computed(
    work: StageWork, store: ArtifactStore, compute: Compute, tell: OnEvent, patience: Patience
) -> Sequence[StageResult]:
    """What `compute` makes. What it told of until its batch was stopped is written down: the report needs the failures.

    Raises what `compute` does.
    """
    job, told = work.job, list[ClipFinished]()

    def hear(event: Event) -> None:
        if isinstance(event, ClipFinished):
            told.append(event)
        tell(event)

    try:
        return compute(work, hear)
    except StoppedError:
        clips = {clip.clip_id: clip for clip in work.clips}
        results = [stage_result(job.stage, clips[event.clip_id], event) for event in told]
        settled = [each for each in results if each.error is None or not job.is_tried_again(each.error)]
        patience(lambda: write_results(store, job.batch_id, job.shard, job.stage, job.attempt, settled))
        raise


def stage_result(stage: StageName, clip: Clip, event: ClipFinished) -> StageResult:
    """What was told of a clip."""
    error = error_from_code(event.error_code, event.error or "") if event.error_code else None
    return StageResult(stage, clip, event.state, event.seconds, event.key, event.flags, error, event.measures)


@contextmanager
def _recorded(job: StageJob, recorder: CatalogRecorder | None, on_event: OnEvent) -> Iterator[OnEvent]:
    """Tells a listener at once and the recorder in a thread, which has heard all when the block is left.

    Else a catalog or store that says nothing would hold up whoever watches over the ranks and hears of a cancel, for
    as long as they are waited for. The recorder rests when one is away, so that no long queue arises.
    """
    if recorder is None:
        yield on_event
        return
    entered: list[Future[None]] = []

    def tell(event: Event) -> None:
        entered.append(thread.submit(recorder.on_event, job, event))
        on_event(event)

    with ThreadPoolExecutor(1, "recorder") as thread:
        yield tell
    for entry in entered:
        entry.result()  # raises what is no trouble of the catalog's, but a fault of ours


def _stored(work: StageWork, deployment: Deployment) -> list[StageResult] | None:
    """Results when the store has all that the stage would make: no process, no model and no accelerator is needed.

    Whatever is found, here or by the stage, is held from then on.
    """
    job, store, book = work.job, deployment.store, deployment.recipe_book(work.shard.profile)
    clips = {clip.clip_id: StoredClip(store, book, clip) for clip in work.clips}
    lease_for_stage(store, job.batch_id, job.shard, job.stage, clips)
    if job.force or job.stage is StageName.DELIVER:  # what is at a target is for the stage to see
        return None
    return reusable_results(store, book, job.stage, clips.values())


def _write_down(work: StageWork, error: Magi2Error, store: ArtifactStore, recorder: CatalogRecorder | None) -> None:
    """Tell the catalog and the report why there are no results."""
    job = work.job
    if recorder:
        recorder.on_stage_end(job, error)
    try:
        save_failure(store, job.batch_id, job.shard, job.stage, error, attempt=job.attempt)
    except Magi2Error as second:
        logger.warning("the report will not name the reason: %s", second)
    if recorder and isinstance(error, BatchCancelledError | BudgetSpentError | StoppedError):
        recorder.on_set_aside(job, work.clip_ids, error)
