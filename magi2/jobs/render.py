"""Rendering clips that a command asked for: every stage in this process, or in a process group when many ranks do it.

The clips are a batch like any other, see `magi2.jobs.by_hand`. A single stage of them is none: its results are told,
the catalog lists its artifacts, and nothing else of it stays.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, partial
from itertools import chain
from pathlib import Path
from typing import Any

from magi2 import platform
from magi2.artifacts.store import Patience
from magi2.batches.documents import remove_batch
from magi2.batches.leases import LeaseKeeper, end_lease
from magi2.batches.plan import BatchOptions, BatchPlan, pack_shards, save_plan
from magi2.batches.receipts import load_receipts
from magi2.batches.results import write_results
from magi2.batches.schema import ByHand, Receipt
from magi2.catalog.gate import CancelCheck
from magi2.config.profile import Profile
from magi2.delivery.targets import Targets
from magi2.deployment import Deployment
from magi2.errors import PausedError
from magi2.jobs.by_hand import COMMAND_LINE, Asked, BatchByHand, batch_by_hand, batch_lock
from magi2.jobs.deliver import deliver_clips
from magi2.jobs.launch import launch
from magi2.jobs.recorder import CatalogRecorder
from magi2.jobs.run import Compute, OnEvent, StageWork, run_stage_job, stage_result
from magi2.parallel.layout import ParallelLayout
from magi2.recipes.book import RecipeBook
from magi2.recipes.lookup import StoredClip
from magi2.recipes.result import StageResult, without_manifests
from magi2.runtime.events import (
    ClipFinished,
    Event,
    Loading,
    ModelsLoaded,
    Resumed,
    StageStarted,
    Step,
    StoreAway,
    StoreBack,
    Waiting,
)
from magi2.runtime.job import StageJob
from magi2.runtime.lock import artifact_locks
from magi2.runtime.process import this_process
from magi2.runtime.progress import EventTeller
from magi2.runtime.store_wait import StoreWait
from magi2.stages.context import StageContext
from magi2.stages.layouts import check_layout, stage_layout
from magi2.stages.prepare import prepare
from magi2.stages.progress import Progress
from magi2.stages.render import Outcome, run_stage
from magi2.types import Clip, StageName, clip_stages

USUAL_OPTIONS = BatchOptions()
PAUSED_S = 5.0
"""Until a render that has to wait asks again."""


class ClipRender:
    """Clips with their profiles by digest, and the layout that was asked for, if one was.

    `name`, `source` and `options` are those of their batch, whose id is `batch_id`. `out` is the folder that is their
    target `magi2.delivery.names.OUT`.
    """

    def __init__(
        self,
        clips: Sequence[Clip],
        profiles: Mapping[str, Profile],
        deployment: Deployment,
        *,
        name: str = "prompt",
        source: str = COMMAND_LINE,
        layout: str | None = None,
        out: Path | None = None,
        options: BatchOptions = USUAL_OPTIONS,
        progress: Progress,
    ) -> None:
        self._asked = Asked(clips, profiles, name, source, options)
        groups = {digest: [clip for clip in clips if clip.profile_digest == digest] for digest in profiles}
        self._groups = [(profiles[digest], group) for digest, group in groups.items() if group]
        self._deployment = deployment
        self._layout = layout
        self.targets = Targets.of(deployment.settings, out=out)
        self._progress = progress
        self._check_of = cache(partial(CancelCheck, deployment.settings))
        self._patience = StoreWait(deployment, progress=progress)

    @property
    def batch_id(self) -> str:
        """The id of the batch that `render` renders."""
        return self._asked.batch_id

    def receipts(self, clip: Clip) -> tuple[Receipt, ...]:
        """Where a clip of the batch was brought, as far as it is known. Raises as `load_receipts` does."""
        return load_receipts(self._deployment.store, self.batch_id, clip.clip_id)

    def render(self) -> Generator[Outcome]:
        """Every stage of every clip, profile by profile; a clip that fails leaves and the others go on.

        The batch ends with the generator: whoever leaves it early closes it.
        Raises before anything starts: ConfigError for a layout that cannot be, IdentityError when the store is not the
        catalog's, what `prepare` does; later what `run_stage_job` does, but waits while the batch is paused.
        """
        return self._rendered(self._compute(StageName))

    def run_stage(self, name: StageName) -> list[StageResult]:
        """One stage of every clip. Raises as `render` does."""
        compute = self._compute([name])
        recorder = CatalogRecorder.of(self._deployment)
        results: list[StageResult] = []
        address = self._deployment.settings.store
        for profile, clips in self._groups:
            asked = Asked(clips, {profile.digest(): profile}, f"stage {name.value}")
            with _saved_batch(asked, self._deployment, self._progress.waiting, self._patience) as batch:
                job = StageJob(batch.batch_id, 0, name, address, store_identity=self._deployment.store_identity)
                made = self._run(job, compute, None)
            recorder.on_artifacts(name, [result.key for result in made if result.key])
            results += made
        return results

    def _rendered(self, compute: Compute) -> Generator[Outcome]:
        if not self._groups:
            return
        with batch_by_hand(
            self._asked, self._deployment, on_wait=self._progress.waiting, patience=self._patience
        ) as batch:
            check = self._check_of(batch.plan.batch_id).check  # which hears of a cancel from now on
            self._patience = StoreWait(self._deployment, progress=self._progress, check=check)
            shards = {shard.profile.digest(): shard for shard in batch.plan.shards}
            for profile, clips in self._groups:
                outcomes = {clip.clip_id: Outcome(clip) for clip in clips}
                book = self._deployment.recipe_book(profile)
                for clip in (clip for clip in clips if clip.clip_id in batch.plan.finished):
                    # A clip whose file is stored needs no stage, whatever retention has taken of what led to it.
                    outcomes[clip.clip_id].results += self._patience(partial(self._stored, book, clip))
                if shard := shards.get(profile.digest()):
                    is_delivered = any(clip.deliveries for clip in shard.clips)
                    stages = clip_stages(dict(profile), is_delivered=is_delivered)
                    for result in self._run_stages(batch, shard.number, stages, compute):
                        outcomes[result.clip.clip_id].results.append(result)
                yield from outcomes.values()

    def _stored(self, book: RecipeBook, clip: Clip) -> list[StageResult]:
        return StoredClip(self._deployment.store, book, clip).results()

    def _run_stages(
        self, batch: BatchByHand, shard: int, stages: Iterable[StageName], compute: Compute
    ) -> Iterator[StageResult]:
        """The stages' results, of each clip up to the first that failed."""
        return chain.from_iterable(self._run(batch.next_job(shard, stage), compute, batch.recorder) for stage in stages)

    def _run(self, job: StageJob, compute: Compute, recorder: CatalogRecorder | None) -> Sequence[StageResult]:
        while True:
            work = self._patience(partial(StageWork.planned, job, self._deployment.store))
            on_event = _Teller(job.stage, work.clips, self._progress)
            try:
                self._check_of(job.batch_id).check()
                return run_stage_job(
                    work, self._deployment, compute, recorder=recorder, on_event=on_event, patience=self._patience
                )
            except PausedError as error:
                self._progress.waiting(str(error))
                time.sleep(PAUSED_S)

    def _compute(self, stages: Iterable[StageName]) -> Compute:
        making = [stage for stage in stages if stage is not StageName.DELIVER]
        make = self._making(making) if making else self._deliver

        def compute(work: StageWork, on_event: OnEvent) -> Sequence[StageResult]:
            return (self._deliver if work.job.stage is StageName.DELIVER else make)(work, on_event)

        return compute

    def _making(self, stages: Iterable[StageName]) -> Compute:
        layouts = {stage: stage_layout(stage, self._layout, self._deployment.settings) for stage in stages}
        for profile, _ in self._groups:
            for layout in set(layouts.values()):
                check_layout(layout, profile)
        if any(layout.num_ranks > 1 for layout in layouts.values()):
            self._patience(self._deployment.store_to_render)
            return _in_groups(layouts)
        return self._in_this_process(self.contexts())

    def _deliver(self, work: StageWork, on_event: OnEvent) -> Sequence[StageResult]:
        check = self._check_of(work.job.batch_id).check
        given: dict[str, Any] = {"deployment": self._deployment, "targets": self.targets, "patience": self._patience}
        return deliver_clips(work, on_event, check=check, **given)

    def _in_this_process(self, contexts: Mapping[str, StageContext]) -> Compute:
        """What one rank does, without a process to start for each stage."""
        store, lease_days = self._deployment.store, self._deployment.settings.lease_days

        def compute(work: StageWork, on_event: OnEvent) -> Sequence[StageResult]:
            job = work.job
            context = contexts[work.shard.profile.digest()]
            lease = LeaseKeeper(store, job.batch_id, job.shard, lease_days)
            between_clips = lease.after(self._check_of(job.batch_id).check)
            teller = EventTeller(on_event, peak_memory=_peak_memory(context))
            forced = frozenset({job.stage}) if job.force else frozenset[StageName]()
            given: dict[str, Any] = {"progress": teller, "force": forced, "patience": self._patience}
            context = replace(context, before_clip=between_clips, **given)
            results = run_stage(context, job.stage, work.clips)
            place = job.batch_id, job.shard, job.stage, job.attempt
            self._patience(lambda: write_results(store, *place, results))
            return without_manifests(results)

        return compute

    def contexts(self) -> dict[str, StageContext]:
        """Surroundings for work in this process, by digest of a profile; the store is opened last of all.

        Raises: what `prepare` and `Deployment.store_to_render` do.
        """
        deployment, found = self._deployment, {}
        for profile, clips in self._groups:
            opener = partial(self._patience, deployment.store_to_render)
            context = prepare(profile, deployment.settings, clips, store_opener=opener)
            if context.device.type == "cpu":
                context.artifact_lock = artifact_locks(deployment.settings.store, self._progress.waiting)
            found[profile.digest()] = context
        return found


def _in_groups(layouts: Mapping[StageName, ParallelLayout]) -> Compute:
    return lambda work, on_event: launch(work, on_event, layout=layouts[work.job.stage])


def _peak_memory(context: StageContext) -> Callable[[], int]:
    return lambda: platform.memory_stats(accelerator=context.accelerator).peak


class _Teller:
    """Tells a listener of this process what events say."""

    def __init__(self, stage: StageName, clips: Sequence[Clip], progress: Progress) -> None:
        self._stage = stage
        self._clips = {clip.clip_id: clip for clip in clips}
        self._progress = progress

    def __call__(self, event: Event) -> None:
        match event:
            case StageStarted():
                self._progress.stage_started(self._stage, event.clips)
            case Loading():
                self._progress.loading(self._stage)
            case ModelsLoaded():
                self._progress.models_loaded(self._stage, event.seconds)
            case Step():
                self._progress.step(self._stage, self._clips[event.clip_id], event.done, event.total)
            case Resumed():
                self._progress.resumed(self._stage, self._clips[event.clip_id], event.done, event.total)
            case Waiting():
                self._progress.waiting()
            case StoreAway():
                self._progress.store_away(event.seconds, event.reason)
            case StoreBack():
                self._progress.store_back(event.seconds)
            case ClipFinished():
                self._progress.clip_finished(stage_result(self._stage, self._clips[event.clip_id], event))


@contextmanager
def _saved_batch(
    asked: Asked, deployment: Deployment, on_wait: Callable[[], None], patience: Patience
) -> Iterator[BatchPlan]:
    """A batch of clips of one profile in one shard, so that each model is loaded once. Nobody looks for it afterwards.

    Where its process is killed its documents stay until the same stage of the same clips is asked for again.
    """
    store, batch_id = deployment.store, asked.batch_id
    plan = BatchPlan(
        batch_id=batch_id,
        name=asked.name,
        source=asked.source,
        options=BatchOptions(),
        shards=pack_shards(asked.clips, asked.profiles, clips_per_shard=len(asked.clips)),
        cached=(),
        refused=(),
        missing={},
        profiles=asked.profiles,
        by_hand=ByHand(process=this_process(), attempt=1),
    )
    with batch_lock(deployment, batch_id, on_wait):
        try:
            patience(lambda: save_plan(plan, store))
            yield plan
        finally:
            remove_batch(store, batch_id)
            end_lease(store, batch_id, 0)
