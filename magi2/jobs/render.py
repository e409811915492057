"""Rendering clips that a command asked for: every stage in this process, or in a process group when many ranks do it.

Meanwhile the clips are a batch of the store, so that groups find them; the catalog is not told of it.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial

from magi2.artifacts.store import ArtifactStore, Patience
from magi2.batches.documents import remove_batch
from magi2.batches.plan import BatchOptions, BatchPlan, pack_shards, save_plan
from magi2.batches.results import write_results
from magi2.config.profile import Profile
from magi2.deployment import Deployment
from magi2.jobs.launch import launch, stage_result
from magi2.jobs.run import Compute, OnEvent, StageWork, run_stage_job
from magi2.parallel.layout import ParallelLayout
from magi2.recipes.book import RecipeBook
from magi2.recipes.lookup import StoredClip
from magi2.recipes.result import StageResult
from magi2.runtime.events import ClipFinished, Event, ModelsLoaded, Resumed, StageStarted, Step, StoreAway, StoreBack
from magi2.runtime.job import StageJob
from magi2.runtime.lock import artifact_locks
from magi2.runtime.store_wait import StoreWait
from magi2.stages.context import StageContext
from magi2.stages.layouts import check_layout, stage_layout
from magi2.stages.prepare import prepare
from magi2.stages.progress import Progress
from magi2.stages.render import Outcome, run_stage
from magi2.types import Clip, StageName


class ClipRender:
    """Clips with their profiles by digest, and the layout that was asked for, if one was."""

    def __init__(
        self,
        clips: Sequence[Clip],
        profiles: Mapping[str, Profile],
        deployment: Deployment,
        *,
        layout: str | None = None,
        progress: Progress,
    ) -> None:
        groups = {digest: [clip for clip in clips if clip.profile_digest == digest] for digest in profiles}
        self._groups = [(profiles[digest], group) for digest, group in groups.items() if group]
        self._deployment = deployment
        self._layout = layout
        self._progress = progress
        self._patience = StoreWait(deployment, progress=progress)
        self._has_groups = False

    def render(self) -> Iterator[Outcome]:
        """Every stage of every clip, profile by profile; a clip that fails leaves and the others go on.

        Raises before anything starts: ConfigError for a layout that cannot be, IdentityError when the store is not the
        catalog's, what `prepare` does; later what `run_stage_job` does.
        """
        compute = self._compute(StageName)
        return (outcome for profile, clips in self._groups for outcome in self._render(profile, clips, compute))

    def run_stage(self, name: StageName) -> list[StageResult]:
        """One stage of every clip. Raises as `render` does."""
        compute = self._compute([name])
        return [result for group in self._groups for result in self._run(*group, [name], compute)]

    def _render(self, profile: Profile, clips: Sequence[Clip], compute: Compute) -> Iterable[Outcome]:
        """A clip whose file is stored needs no stage, whatever retention has taken of what led to it."""
        book = self._deployment.recipe_book(profile)
        outcomes = {clip.clip_id: Outcome(clip) for clip in clips}
        for outcome in outcomes.values():
            outcome.results += self._patience(partial(self._finished, book, outcome.clip))
        waiting = [outcome.clip for outcome in outcomes.values() if not outcome.results]
        for result in self._run(profile, waiting, profile.stages, compute):
            outcomes[result.clip.clip_id].results.append(result)
        return outcomes.values()

    def _finished(self, book: RecipeBook, clip: Clip) -> list[StageResult]:
        """The results of a clip whose file is stored; none for any other."""
        stored = StoredClip(self._deployment.store, book, clip)
        return stored.results() if stored.is_finished else []

    def _run(
        self, profile: Profile, clips: Sequence[Clip], stages: Sequence[StageName], compute: Compute
    ) -> list[StageResult]:
        """The stages' results, of each clip up to the first that failed."""
        if not clips:
            return []
        store, patience = self._deployment.store, self._patience
        results: list[StageResult] = []
        with _saved_batch(clips, profile, store, patience, with_images=self._has_groups) as batch:
            for stage in stages:
                address, identity = self._deployment.settings.store, self._deployment.store_identity
                job = StageJob(batch.batch_id, 0, stage, address, store_identity=identity)
                work = patience(partial(StageWork.planned, job, store))
                on_event = _Teller(stage, work.clips, self._progress)
                results += run_stage_job(work, self._deployment, compute, on_event=on_event, patience=patience)
        return results

    def _compute(self, stages: Iterable[StageName]) -> Compute:
        layouts = {stage: stage_layout(stage, self._layout, self._deployment.settings) for stage in stages}
        for profile, _ in self._groups:
            for layout in set(layouts.values()):
                check_layout(layout, profile)
        self._has_groups = any(layout.num_ranks > 1 for layout in layouts.values())
        if self._has_groups:
            self._patience(self._deployment.store_to_render)
            return _in_groups(layouts)
        return _in_this_process(self.contexts(), self._deployment.store, self._patience)

    def contexts(self) -> dict[str, StageContext]:
        """Surroundings for work in this process, by digest of a profile; the store is opened last of all.

        Raises: what `prepare` and `Deployment.store_to_render` do.
        """
        deployment, found = self._deployment, {}
        for profile, clips in self._groups:
            context = prepare(
                profile,
                deployment.settings,
                clips,
                progress=self._progress,
                store_opener=lambda: self._patience(deployment.store_to_render),
            )
            context.patience = self._patience
            if context.device.type == "cpu":
                context.artifact_lock = artifact_locks(deployment.settings.store, self._progress.waiting)
            found[profile.digest()] = context
        return found


def _in_groups(layouts: Mapping[StageName, ParallelLayout]) -> Compute:
    return lambda work, on_event: launch(work, on_event, layout=layouts[work.job.stage])


def _in_this_process(contexts: Mapping[str, StageContext], store: ArtifactStore, patience: Patience) -> Compute:
    """What one rank does, without a process to start for each stage; the contexts' progress listens by itself."""

    def compute(work: StageWork, on_event: OnEvent) -> Sequence[StageResult]:
        results = run_stage(contexts[work.shard.profile.digest()], work.job.stage, work.clips)
        job = work.job
        patience(lambda: write_results(store, job.batch_id, job.shard, job.stage, job.attempt, results))
        return results

    return compute


class _Teller:
    """Tells a listener of this process what events say."""

    def __init__(self, stage: StageName, clips: Sequence[Clip], progress: Progress) -> None:
        self._stage = stage
        self._clips = {clip.clip_id: clip for clip in clips}
        self._progress = progress

    def __call__(self, event: Event) -> None:
        if isinstance(event, StageStarted):
            self._progress.stage_started(self._stage, event.clips)
        elif isinstance(event, ModelsLoaded):
            self._progress.models_loaded(self._stage, event.seconds)
        elif isinstance(event, Step):
            self._progress.step(self._stage, self._clips[event.clip_id], event.done, event.total)
        elif isinstance(event, Resumed):
            self._progress.resumed(self._stage, self._clips[event.clip_id], event.done, event.total)
        elif isinstance(event, StoreAway):
            self._progress.store_away(event.seconds, event.reason)
        elif isinstance(event, StoreBack):
            self._progress.store_back(event.seconds)
        elif isinstance(event, ClipFinished):
            self._progress.clip_finished(stage_result(self._stage, self._clips[event.clip_id], event))


@contextmanager
def _saved_batch(
    clips: Sequence[Clip], profile: Profile, store: ArtifactStore, patience: Patience, *, with_images: bool
) -> Iterator[BatchPlan]:
    """A batch of all clips in one shard, so that each model is loaded once. Nobody looks for it afterwards."""
    profiles = {profile.digest(): profile}
    plan = BatchPlan(
        batch_id=secrets.token_hex(8),  # its own, so that whoever renders the same clips meanwhile keeps theirs
        name="command line",
        source="command line",
        options=BatchOptions(),
        shards=pack_shards(clips, profiles, clips_per_shard=len(clips)),
        cached=(),
        refused=(),
        missing={},
        profiles=profiles,
    )
    try:
        patience(lambda: save_plan(plan, store, with_images=with_images))
        yield plan
    finally:
        remove_batch(store, plan.batch_id)
