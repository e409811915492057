"""Clips that a command asked for: which groups are started for which clips, and what is told and returned."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest

from magi2.artifacts.local import LocalStore
from magi2.batches.plan import load_shard
from magi2.errors import ConfigError, InfrastructureError
from magi2.jobs import launch
from magi2.jobs.render import ClipRender
from magi2.recipes.result import StageResult
from magi2.runtime.events import ClipFinished, Event, StageStarted, Step
from magi2.runtime.job import StageJob
from magi2.runtime.launcher import JobResult
from magi2.stages.progress import Silent
from magi2.types import Clip, StageName
from tests.jobs.job_samples import CLIPS, PROFILE, SampleDeployment, make

Listener = Callable[[Event], None]
LAYOUT = "sp2.cfg1.ep1"


class Groups:
    """In place of the launcher: the second clip fails in preview."""

    def __init__(self) -> None:
        self.started: list[tuple[StageName, str, int]] = []
        self.lost_at: StageName | None = None

    def run(self, job: StageJob, *, on_event: Listener, should_stop: object) -> JobResult:
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
    monkeypatch.setattr(launch, "Launcher", lambda limits: groups)
    return groups


@pytest.fixture
def deployment(tmp_path: Path) -> SampleDeployment:
    return SampleDeployment(tmp_path)


def spread(deployment: SampleDeployment, heard: Heard, clips: list[Clip] = CLIPS, layout: str = LAYOUT) -> ClipRender:
    return ClipRender(clips, {PROFILE.digest(): PROFILE}, deployment, layout=layout, progress=heard)


def test_a_stage_of_many_ranks_is_run_in_a_group_and_told_of(groups: Groups, deployment: SampleDeployment) -> None:
    heard = Heard()
    results = spread(deployment, heard).run_stage(StageName.PREVIEW)
    assert groups.started == [(StageName.PREVIEW, LAYOUT, 3)]
    assert [result.state for result in results] == ["made", "failed", "made"]
    error = results[1].error
    assert error is not None and (error.code, str(error)) == ("out_of_memory", "too little")
    assert (heard.steps, heard.finished[1]) == (3, (StageName.PREVIEW, 1, "failed"))


def test_a_stage_that_is_stored_starts_no_group(groups: Groups, deployment: SampleDeployment) -> None:
    heard = Heard()
    for clip in CLIPS:
        for stage in (StageName.ENHANCE, StageName.PREVIEW):
            make(deployment.store, stage, clip)  # type: ignore[arg-type]
    results = spread(deployment, heard).run_stage(StageName.PREVIEW)
    assert [result.state for result in results] == ["reused"] * 3
    assert (groups.started, heard.finished) == ([], [(StageName.PREVIEW, seed, "reused") for seed in range(3)])


def test_clip_whose_file_is_stored_needs_no_stage(groups: Groups, deployment: SampleDeployment) -> None:
    for stage in (StageName.ENHANCE, StageName.MUX):
        make(deployment.store, stage, CLIPS[0])  # type: ignore[arg-type]
    (outcome,) = spread(deployment, Heard(), CLIPS[:1]).render()
    assert [(result.stage, result.state) for result in outcome.results] == [
        (StageName.ENHANCE, "reused"),
        (StageName.MUX, "reused"),
    ]
    assert groups.started == []


@pytest.mark.parametrize("lost_at", [None, StageName.PREVIEW])
def test_batch_of_the_clips_is_gone_when_they_are_through(
    groups: Groups, deployment: SampleDeployment, tmp_path: Path, lost_at: StageName | None
) -> None:
    groups.lost_at = lost_at
    with pytest.raises(InfrastructureError, match="rank 1") if lost_at else nullcontext():
        spread(deployment, Heard()).run_stage(StageName.PREVIEW)
    assert len(groups.started) == 1
    assert not list((tmp_path / "store" / "documents").glob("batches/*")), "not even an empty folder"


def test_layout_that_cannot_be_is_refused_before_anything_starts(groups: Groups, deployment: SampleDeployment) -> None:
    with pytest.raises(ConfigError, match="sp3"):
        spread(deployment, Heard(), layout="sp3.cfg1.ep1").render()
    assert groups.started == []


def test_nothing_to_render_leaves_nothing_behind(groups: Groups, deployment: SampleDeployment) -> None:
    assert list(spread(deployment, Heard(), clips=[]).render()) == []
    assert (groups.started, list(deployment.store.list_documents("batches"))) == ([], [])
