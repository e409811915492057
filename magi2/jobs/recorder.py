"""Entering a batch's course in the catalog while it runs.

The store is the truth, and the catalog never stops a render. While it cannot be reached it falls behind; what it does
not accept, which is a fault of this program, it goes without. The log says so, and `magi2 catalog rebuild` brings it
up to date.
"""

from __future__ import annotations

import logging
import math
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from magi2.artifacts.manifest import Manifest
from magi2.artifacts.store import ArtifactStore
from magi2.batches.plan import BatchPlan
from magi2.batches.receipts import final_places
from magi2.batches.refused import RefusedBatch
from magi2.batches.schema import ReportDocument, ReportedClip
from magi2.catalog import BatchRecord, BatchState, Catalog, ClipState, NewBatch, PlannedClip, Run, RunState
from magi2.catalog.cost import BatchCost
from magi2.catalog.engine import RETRY_S
from magi2.catalog.shards import ShardPosition
from magi2.config.price import Price
from magi2.deployment import Deployment
from magi2.errors import (
    BatchCancelledError,
    CancelledError,
    ConfigError,
    InfrastructureError,
    Magi2Error,
    PausedError,
    StoppedError,
    error_from_code,
    reason_of,
)
from magi2.jobs.step_rate import Pace, Position
from magi2.runtime.events import ClipFinished, Event, ModelsLoaded, Step
from magi2.runtime.job import StageJob
from magi2.types import NEGATIVE, StageName

logger = logging.getLogger(__name__)

SLOW_S = 15.0
"""A catalog that takes longer for one entry is as good as away."""


class CatalogRecorder:
    """Enters a plan, a stage or a report, and raises no Magi2Error.

    When the catalog is away, not usable or slower than `SLOW_S`, it warns and enters nothing for `RETRY_S` seconds of
    `clock`; an entry that is not accepted is logged as an error each time, and the next one is entered all the same.
    """

    def __init__(
        self, store: ArtifactStore, open_: Callable[[], Catalog], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._store = store
        self._open = open_
        self._clock = clock
        self._catalog: Catalog | None = None
        self._away_until = -math.inf
        self._unfinished: list[str] = []
        self._pace = Pace()

    @classmethod
    def of(cls, deployment: Deployment) -> CatalogRecorder:
        """The recorder of a deployment's catalog, which is not opened before the first entry."""
        return cls(deployment.store, lambda: deployment.catalog)

    def on_plan(self, plan: BatchPlan) -> None:
        """A batch is about to run."""
        self._enter(lambda catalog: _enter_plan(catalog, self._store, plan))

    def on_refused(self, batch: RefusedBatch) -> None:
        """Nothing of a batch is started."""
        self._enter(lambda catalog: _enter_refusal(catalog, batch))

    def on_stage_start(self, job: StageJob, clip_ids: Sequence[str]) -> None:
        """A stage begins with these clips."""
        self._unfinished = list(clip_ids)

        def work(catalog: Catalog) -> None:
            host = socket.gethostname()
            catalog.batches.mark(job.batch_id, BatchState.RUNNING)
            catalog.runs.start(job.batch_id, job.stage, clip_ids, attempt=job.attempt, shard=job.shard, host=host)

        self._enter(work)

    def on_event(self, job: StageJob, event: Event) -> None:
        """The stage that was started tells of its progress."""
        if isinstance(event, ClipFinished):
            self._unfinished.remove(event.clip_id)
            self._enter(lambda catalog: _enter_result(catalog, self._store, job, event))
        elif isinstance(event, ModelsLoaded):
            place, seconds = (job.batch_id, job.shard, job.stage), event.seconds
            self._enter(lambda catalog: catalog.shards.loaded(*place, attempt=job.attempt, seconds=seconds))
        elif isinstance(event, Step) and (position := self._pace.hear(event)):
            at_step = _shard_position(job, position)
            self._enter(lambda catalog: catalog.shards.at_step(job.batch_id, at_step))

    def on_artifacts(self, stage: StageName, keys: Sequence[str]) -> None:
        """A stage of no batch has made or found these artifacts."""
        self._enter(
            lambda catalog: catalog.artifacts.index(m for key in keys for m in _manifests(self._store, stage, key))
        )

    def on_stage_end(self, job: StageJob, error: Magi2Error) -> None:
        """The stage that was started ended without results for the clips not heard of; what is tried again waits."""
        if isinstance(error, PausedError):
            clip_ids, attempt = self._unfinished, job.attempt
            self._enter(lambda catalog: catalog.runs.withdraw(job.batch_id, job.stage, clip_ids, attempt=attempt))
            return
        state = RunState.CANCELLED if isinstance(error, CancelledError) else RunState.FAILED
        ended = Run(
            clip_id="",
            stage=job.stage,
            state=state,
            attempt=job.attempt,
            shard=job.shard,
            host=socket.gethostname(),
            finished_at=datetime.now(UTC),
            error_code=error.code,
            error=reason_of(error),
        )
        runs = [replace(ended, clip_id=clip_id) for clip_id in self._unfinished]
        tried_again = job.is_tried_again(error)
        self._enter(lambda catalog: catalog.runs.finish(job.batch_id, runs, tried_again=tried_again))
        if state is RunState.FAILED and not tried_again:
            self._enter(lambda catalog: _pause_at_streak(catalog, job))

    def on_lost(self, batch_id: str, error: Magi2Error) -> None:
        """Whoever worked on the batch is gone without a word."""
        self._enter(lambda catalog: catalog.runs.end_running(batch_id, error))

    def on_set_aside(self, job: StageJob, clip_ids: Sequence[str], error: Magi2Error) -> None:
        """The stage does not start, now or later, with these clips: the batch is cancelled, stopped or has spent its
        budget.
        """
        state = ClipState.CANCELLED if isinstance(error, BatchCancelledError) else ClipState.SKIPPED
        # Those that failed are why a batch is stopped.
        keep = (ClipState.DONE, *((ClipState.FAILED,) if isinstance(error, StoppedError) else ()))
        self._enter(lambda catalog: catalog.clips.set_aside(job.batch_id, clip_ids, state, reason_of(error), keep=keep))

    def cost(self, batch_id: str, price: Price | None) -> BatchCost | None:
        """What a batch took so far, or None when the catalog does not say."""
        found: list[BatchCost] = []
        self._enter(
            lambda catalog: found.append(BatchCost.from_seconds(catalog.runs.accelerator_seconds(batch_id), price))
        )
        return found[0] if found else None

    def failure_limit(self, batch_id: str) -> int | None:
        """How many clips of a batch may fail by now, or None when the catalog does not say."""
        found: list[BatchRecord | None] = []
        self._enter(lambda catalog: found.append(catalog.batches.get(batch_id)))
        return found[0].failure_limit if found and found[0] else None

    def made(self, batch_id: str) -> frozenset[tuple[str, StageName]]:
        """Clip ids and stages that a batch made in any of its attempts, as far as the catalog says."""
        found: list[frozenset[tuple[str, StageName]]] = []
        self._enter(lambda catalog: found.append(catalog.runs.made(batch_id)))
        return found[0] if found else frozenset()

    def on_report(self, report: ReportDocument) -> None:
        """A batch has come to its end."""
        self._enter(lambda catalog: _enter_report(catalog, self._store, report))

    def _enter(self, work: Callable[[Catalog], None]) -> None:
        began = self._clock()
        if began < self._away_until:
            return
        try:
            self._catalog = self._catalog or self._open()
            work(self._catalog)
            if (seconds := self._clock() - began) > SLOW_S:
                self._rest(f"an entry took {seconds:.0f} s")
        except (InfrastructureError, ConfigError) as error:
            self._rest(str(error))
        except Magi2Error as error:
            logger.error("the catalog goes without an entry (magi2 catalog rebuild makes it good): %s", error)

    def _rest(self, reason: str) -> None:
        self._away_until = self._clock() + RETRY_S
        logger.warning("the catalog falls behind (magi2 catalog rebuild makes it good): %s", reason)


def _enter_plan(catalog: Catalog, store: ArtifactStore, plan: BatchPlan) -> None:
    batch = NewBatch(
        batch_id=plan.batch_id,
        name=plan.name,
        source=plan.source,
        clips_total=plan.clips,
        failure_limit=plan.options.failure_limit,
        on_bad_rows=plan.options.on_bad_rows,
        priority=plan.options.priority,
        budget=plan.options.budget,
        on_limit=plan.options.at_limit,
        failure_streak=plan.options.failure_streak,
        dag_id=plan.origin.get("dag_id"),
        run_id=plan.origin.get("run_id"),
        requested_by=plan.origin.get("requested_by"),
        parent_batch_id=plan.origin.get("parent_batch_id"),
    )
    profiles = {digest: profile.model_dump(mode="json") for digest, profile in plan.profiles.items()}
    catalog.batches.create(batch, profiles)
    catalog.batches.mark(plan.batch_id, BatchState.RUNNING)
    catalog.batches.refuse_rows(plan.batch_id, {row.number: row.reason for row in plan.refused})
    keys = plan.finished
    catalog.artifacts.index(m for key in keys.values() if (m := store.find(StageName.MUX, key)) is not None)
    catalog.clips.add(plan.batch_id, (PlannedClip(clip, artifact_key=keys[clip.clip_id]) for clip in plan.cached))
    for shard in plan.shards:
        planned = (PlannedClip(clip, shard.number, shard.finished.get(clip.clip_id)) for clip in shard.clips)
        catalog.clips.add(plan.batch_id, planned)
        if plan.by_hand:  # of an earlier call no failure counts
            catalog.clips.set_aside(plan.batch_id, [clip.clip_id for clip in shard.clips], ClipState.WAITING, None)


def _enter_refusal(catalog: Catalog, refused: RefusedBatch) -> None:
    batch = NewBatch(
        batch_id=refused.batch_id,
        name=refused.name,
        source=refused.source,
        clips_total=0,
        dag_id=refused.origin.get("dag_id"),
        run_id=refused.origin.get("run_id"),
        requested_by=refused.origin.get("requested_by"),
    )
    catalog.batches.create(batch, {})
    catalog.batches.mark(batch.batch_id, BatchState.RUNNING)
    catalog.batches.refuse_rows(batch.batch_id, refused.reasons)
    catalog.batches.mark(batch.batch_id, BatchState.FAILED)


def _enter_result(catalog: Catalog, store: ArtifactStore, job: StageJob, event: ClipFinished) -> None:
    if event.key:
        stage = StageName.MUX if job.stage is StageName.DELIVER else job.stage
        catalog.artifacts.index(_manifests(store, stage, event.key))
    finished = datetime.now(UTC)
    run = Run(
        clip_id=event.clip_id,
        stage=job.stage,
        state=RunState(event.state),
        attempt=job.attempt,
        shard=job.shard,
        host=socket.gethostname(),
        started_at=finished - timedelta(seconds=event.seconds),
        finished_at=finished,
        seconds=event.seconds,
        accelerator_seconds=event.accelerator_seconds,
        peak_memory_bytes=event.peak_memory_bytes or None,
        error_code=event.error_code,
        error=event.error,
        flags=event.flags,
        artifact_key=event.key,
    )
    tried_again = event.error_code is not None and job.is_tried_again(error_from_code(event.error_code, ""))
    catalog.runs.finish(job.batch_id, [run], tried_again=tried_again)
    if run.state is RunState.FAILED and not tried_again:
        _pause_at_streak(catalog, job)
    record = catalog.clips.get(job.batch_id, event.clip_id) if job.stage is StageName.DELIVER else None
    if record is not None:
        catalog.clips.place(job.batch_id, event.clip_id, final_places(store, job.batch_id, record.clip))


def _pause_at_streak(catalog: Catalog, job: StageJob) -> None:
    if streak := catalog.control.pause_at_streak(job.batch_id, job.stage):
        logger.warning("batch %s is paused: %s", job.batch_id, streak)


def _shard_position(job: StageJob, position: Position) -> ShardPosition:
    return ShardPosition(
        shard=job.shard,
        stage=job.stage,
        attempt=job.attempt,
        clip_id=position.clip_id,
        step=position.done,
        steps=position.total,
        steps_per_second=position.steps_per_second,
        at=datetime.now(UTC),
    )


def _manifests(store: ArtifactStore, stage: StageName, key: str) -> list[Manifest]:
    """What a clip's result brings: its artifact, and the negative prompt's if it is made from that, no clip's own."""
    manifest = store.find(stage, key)
    if manifest is None:
        return []
    negative = manifest.recipe.inputs.get(NEGATIVE)
    shared = store.find(NEGATIVE, negative) if negative else None
    return [manifest, shared] if shared else [manifest]


def _enter_report(catalog: Catalog, store: ArtifactStore, report: ReportDocument) -> None:
    catalog.batches.mark(report.batch_id, BatchState.RUNNING)  # a report made anew may change its verdict
    for clip in (*report.done, *report.flagged):
        last = StageName.DELIVER if clip.deliveries else StageName.MUX
        if clip.stages and last not in clip.stages:
            _enter_file(catalog, store, report.batch_id, clip)
    for clip in (clip for clip in report.failed if clip.clip_id):
        _enter_failure(catalog, report.batch_id, clip)
    skipped = *report.over_budget, *report.stopped
    for clips, state in ((skipped, ClipState.SKIPPED), (report.cancelled, ClipState.CANCELLED)):
        for clip in clips:
            catalog.clips.set_aside(report.batch_id, [clip.clip_id or ""], state, clip.reason or state)
    ended = BatchState.DONE if report.is_within_limit else BatchState.FAILED
    catalog.batches.mark(report.batch_id, BatchState.CANCELLED if report.cancelled else ended)


def _enter_file(catalog: Catalog, store: ArtifactStore, batch_id: str, clip: ReportedClip) -> None:
    """A clip is done although its worker, which was ended, told nothing of it."""
    record = catalog.clips.get(batch_id, clip.clip_id or "")
    manifest = store.find(StageName.MUX, clip.key) if clip.key else None
    if record is not None and manifest is not None and record.state is not ClipState.DONE:
        catalog.artifacts.index([manifest])
        catalog.clips.add(batch_id, [PlannedClip(record.clip, record.shard, manifest.key, is_delivered=True)])


def _enter_failure(catalog: Catalog, batch_id: str, clip: ReportedClip) -> None:
    record = catalog.clips.get(batch_id, clip.clip_id or "")
    if record is not None and record.state in (ClipState.WAITING, ClipState.RUNNING):
        stage = StageName(clip.stage) if clip.stage else None
        catalog.clips.mark(batch_id, [record.clip_id], ClipState.FAILED, failed_stage=stage, reason=clip.reason)
