"""Rendering a list of clips with a process group for each stage: what many ranks need, without Airflow."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from magi2.artifacts.store import ArtifactStore
from magi2.batches.plan import BatchOptions, BatchPlan, Shard, pack_shards, save_plan
from magi2.config.profile import Profile
from magi2.config.settings import Settings
from magi2.errors import error_from_code
from magi2.jobs.reuse import reuse_shard
from magi2.parallel.layout import ParallelLayout
from magi2.recipes.result import StageResult
from magi2.runtime.events import ClipFinished, Event, ModelsLoaded, Resumed, StageStarted, Step
from magi2.runtime.job import StageJob
from magi2.runtime.launcher import Launcher
from magi2.stages.progress import Progress
from magi2.types import Clip, StageName


def run_in_groups(
    clips: Sequence[Clip],
    profiles: Mapping[str, Profile],
    stages_of: Callable[[Profile], Sequence[StageName]],
    layout_of: Callable[[StageName], ParallelLayout],
    *,
    store: ArtifactStore,
    settings: Settings,
    progress: Progress,
) -> dict[str, list[StageResult]]:
    """Results of each clip by its id, one for each of its stages up to the first that failed.

    Meanwhile the clips are a batch of the store, so that the groups find them. A stage that is stored whole starts
    none. Raises: what `Launcher.run` does; the same call later goes on from what is there.
    """
    if not clips:
        return {}
    results: dict[str, list[StageResult]] = {clip.clip_id: [] for clip in clips}
    with _saved_plan(clips, profiles, store) as plan:
        for shard in plan.shards:
            for stage in stages_of(shard.profile):
                job = StageJob(plan.batch_id, shard.number, stage, settings.store, layout=layout_of(stage))
                for result in _run(job, shard, results, store, settings, progress):
                    results[result.clip.clip_id].append(result)
    return results


def _run(
    job: StageJob,
    shard: Shard,
    results: Mapping[str, Sequence[StageResult]],
    store: ArtifactStore,
    settings: Settings,
    progress: Progress,
) -> list[StageResult]:
    """The stage's results for the clips that have not failed before."""
    clips = {clip.clip_id: clip for clip in shard.clips if all(r.error is None for r in results[clip.clip_id])}
    if not clips:
        return []
    teller = _Teller(job.stage, clips, progress)
    reused = reuse_shard(job, store, settings, clips)
    if reused is None:
        return [teller.result(event) for event in Launcher().run(job, on_event=teller).clips]
    teller(StageStarted(job.stage.value, len(clips)))
    for event in reused:
        teller(event)
    return [teller.result(event) for event in reused]


class _Teller:
    """Tells a listener of this process what a group's events say."""

    def __init__(self, stage: StageName, clips: Mapping[str, Clip], progress: Progress) -> None:
        self._stage, self._clips, self._progress = stage, clips, progress

    def __call__(self, event: Event) -> None:
        if isinstance(event, StageStarted):
            self._progress.stage_started(self._stage, event.clips)
        elif isinstance(event, ModelsLoaded):
            self._progress.models_loaded(self._stage, event.seconds)
        elif isinstance(event, Step):
            self._progress.step(self._stage, self._clips[event.clip_id], event.done, event.total)
        elif isinstance(event, Resumed):
            self._progress.resumed(self._stage, self._clips[event.clip_id], event.done, event.total)
        elif isinstance(event, ClipFinished):
            self._progress.clip_finished(self.result(event))

    def result(self, event: ClipFinished) -> StageResult:
        """What became of a clip."""
        error = error_from_code(event.error_code, event.error or "") if event.error_code else None
        clip = self._clips[event.clip_id]
        return StageResult(self._stage, clip, event.state, event.seconds, event.key, event.flags, error)


@contextmanager
def _saved_plan(clips: Sequence[Clip], profiles: Mapping[str, Profile], store: ArtifactStore) -> Iterator[BatchPlan]:
    """A batch of all clips, whatever is stored: the groups see for themselves. Nobody looks for it afterwards."""
    plan = BatchPlan(
        batch_id=secrets.token_hex(8),  # its own, so that whoever renders the same clips meanwhile keeps theirs
        name="command line",
        source="command line",
        options=BatchOptions(),
        shards=pack_shards(clips, profiles),
        cached=(),
        refused=(),
        missing={},
        profiles=profiles,
    )
    try:
        save_plan(plan, store)
        yield plan
    finally:
        for name in list(store.list_documents(f"batches/{plan.batch_id}")):
            store.remove_document(name)
