"""Rendering in groups: which are started for which clips, and what is told and returned."""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import nullcontext
from pathlib import Path

import pytest

from magi2.artifacts.local import LocalStore
from magi2.batches.plan import load_shard
from magi2.config.settings import Settings
from magi2.errors import InfrastructureError
from magi2.jobs import groups as group_render
from magi2.parallel.layout import ParallelLayout
from magi2.recipes.result import StageResult
from magi2.runtime.events import ClipFinished, Event, StageStarted, Step
from magi2.runtime.job import StageJob
from magi2.runtime.launcher import JobResult
from magi2.stages.progress import Silent
from magi2.types import Clip, StageName
from tests.render_helpers import make_clip, small_profile

STAGES = (StageName.ENCODE, StageName.PREVIEW, StageName.DECODE)
PROFILE = small_profile()
CLIPS = [make_clip(PROFILE, seed=number) for number in range(3)]
Listener = Callable[[Event], None]


class Groups:
    """In place of launcher and store: the second clip fails in preview, decode is stored."""

    def __init__(self) -> None:
        self.started: list[tuple[StageName, str, int]] = []
        self.lost_at: StageName | None = None

    def run(self, job: StageJob, *, on_event: Listener) -> JobResult:
        shard = load_shard(LocalStore(Path(job.store)), job.batch_id, job.shard, None)
        self.started.append((job.stage, str(job.layout), len(shard.clips)))
        if job.stage is self.lost_at:
            raise InfrastructureError("rank 1 died")
        on_event(StageStarted(job.stage.value, len(shard.clips)))
        events = []
        for clip in shard.clips:
            on_event(Step(clip.clip_id, 1, 1))
            fails = job.stage is StageName.PREVIEW and clip.seed == 1
            failure = ("failed", None, 1.0, (), "out_of_memory", "too little")
            events.append(ClipFinished(clip.clip_id, *(failure if fails else ("made", "k", 1.0))))
            on_event(events[-1])
        return JobResult(tuple(events), 1.0, 0.0, Path("log"))

    def reuse(
        self, job: StageJob, store: object, settings: object, clip_ids: Collection[str]
    ) -> tuple[ClipFinished, ...] | None:
        if job.stage is not StageName.DECODE:
            return None
        return tuple(ClipFinished(clip_id, "reused", "k", 0.0) for clip_id in clip_ids)


class Heard(Silent):
    def __init__(self) -> None:
        self.finished: list[tuple[StageName, int, str]] = []
        self.steps = 0

    def step(self, stage: StageName, clip: Clip, done: int, total: int) -> None:
        self.steps += 1

    def clip_finished(self, result: StageResult) -> None:
        self.finished.append((result.stage, result.clip.seed, result.state))


@pytest.fixture
def groups(monkeypatch: pytest.MonkeyPatch) -> Groups:
    groups = Groups()
    monkeypatch.setattr(group_render, "Launcher", lambda: groups)
    monkeypatch.setattr(group_render, "reuse_shard", groups.reuse)
    return groups


def run(store: LocalStore, clips: list[Clip], heard: Heard) -> dict[str, list[StageResult]]:
    return group_render.run_in_groups(
        clips,
        {PROFILE.digest(): PROFILE},
        lambda profile: STAGES,
        lambda stage: ParallelLayout(2 if stage is StageName.PREVIEW else 1),
        store=store,
        settings=Settings(store=str(store.root)),
        progress=heard,
    )


def test_clip_that_failed_leaves_and_a_stage_that_is_stored_starts_no_group(groups: Groups, tmp_path: Path) -> None:
    heard = Heard()
    results = run(LocalStore(tmp_path / "store"), CLIPS, heard)
    assert groups.started == [(StageName.ENCODE, "sp1.cfg1.ep1", 3), (StageName.PREVIEW, "sp2.cfg1.ep1", 3)]
    states = [[(result.stage, result.state) for result in results[clip.clip_id]] for clip in CLIPS]
    made = [(StageName.ENCODE, "made"), (StageName.PREVIEW, "made"), (StageName.DECODE, "reused")]
    assert states == [made, [(StageName.ENCODE, "made"), (StageName.PREVIEW, "failed")], made]
    error = results[CLIPS[1].clip_id][-1].error
    assert error is not None and (error.code, str(error)) == ("out_of_memory", "too little")
    assert heard.steps == 6
    assert heard.finished[-2:] == [(StageName.DECODE, 0, "reused"), (StageName.DECODE, 2, "reused")]


@pytest.mark.parametrize("lost_at", [None, StageName.PREVIEW])
def test_batch_of_the_groups_is_gone_when_they_are(groups: Groups, tmp_path: Path, lost_at: StageName | None) -> None:
    store = LocalStore(tmp_path / "store")
    groups.lost_at = lost_at
    with pytest.raises(InfrastructureError, match="rank 1") if lost_at else nullcontext():
        run(store, CLIPS, Heard())
    assert (len(groups.started), list(store.list_documents("batches"))) == (2, [])


def test_nothing_to_render_leaves_nothing_behind(groups: Groups, tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "store")
    assert run(store, [], Heard()) == {}
    assert (groups.started, list(store.list_documents("batches"))) == ([], [])
