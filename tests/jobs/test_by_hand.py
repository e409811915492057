"""Batches of the command line: what the catalog and the documents say of them, however their command ends."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from magi2.batches.documents import load_batch, load_report
from magi2.batches.plan import BatchOptions
from magi2.batches.results import write_results
from magi2.catalog import Actor, BatchState, ClipState, RunState
from magi2.catalog.verify import verify
from magi2.deployment import Deployment
from magi2.errors import BatchCancelledError, InfrastructureError, StoppedError
from magi2.jobs import by_hand, launch, render
from magi2.jobs.by_hand import Asked, batch_by_hand, settle_lost, user_name
from magi2.jobs.launch import stage_result
from magi2.jobs.render import ClipRender
from magi2.jobs.run import StageWork
from magi2.runtime.events import ClipFinished, Event, StageStarted
from magi2.runtime.job import StageJob
from magi2.runtime.launcher import JobResult
from magi2.stages.progress import Silent
from magi2.types import Clip, StageName
from tests.batch_counts import counts_of, state_of
from tests.jobs.job_samples import CLIPS, PROFILE, SampleDeployment, make

ASKED = Asked(CLIPS, {PROFILE.digest(): PROFILE}, "night", "night.jsonl")


class Groups:
    """In place of the launcher: makes every clip's artifact, and does what a test wants before a stage."""

    def __init__(self, deployment: Deployment) -> None:
        self.deployment = deployment
        self.before: dict[StageName, Callable[[], None]] = {}
        self.failing_seeds: set[int] = set()
        self.before_clip: Callable[[], None] = lambda: None
        self.started: list[tuple[StageName, int]] = []

    def run(self, job: StageJob, *, on_event: Callable[[Event], None], should_stop: object) -> JobResult:
        clips = StageWork.planned(job, self.deployment.store).clips
        self.started.append((job.stage, job.attempt))
        on_event(StageStarted(job.stage.value, len(clips)))
        self.before.get(job.stage, lambda: None)()
        events = []
        for clip in clips:
            self.before_clip()
            events.append(self._make(job.stage, clip))
            on_event(events[-1])
        results = [stage_result(job.stage, clip, event) for clip, event in zip(clips, events, strict=True)]
        write_results(self.deployment.store, job.batch_id, job.shard, job.stage, job.attempt, results)
        return JobResult(tuple(events), 1.0, 0.0, Path("log"))

    def _make(self, stage: StageName, clip: Clip) -> ClipFinished:
        if clip.seed in self.failing_seeds and stage is StageName.PREVIEW:
            return ClipFinished(clip.clip_id, "failed", None, 1.0, (), "out_of_memory", "too little")
        key = make(self.deployment.store, stage, clip)  # type: ignore[arg-type]
        return ClipFinished(clip.clip_id, "made", key, 1.0, accelerator_seconds=2.0)


@pytest.fixture
def deployment(tmp_path: Path) -> SampleDeployment:
    return SampleDeployment(tmp_path)


@pytest.fixture
def groups(deployment: SampleDeployment, monkeypatch: pytest.MonkeyPatch) -> Groups:
    groups = Groups(deployment)
    monkeypatch.setattr(launch, "Launcher", lambda limits: groups)
    monkeypatch.setattr(render, "PAUSED_S", 0)
    return groups


def rendered(
    deployment: Deployment, progress: Silent | None = None, options: BatchOptions = render.USUAL_OPTIONS
) -> list[str]:
    """The last state of each clip."""
    work = ClipRender(
        ASKED.clips,
        ASKED.profiles,
        deployment,
        name=ASKED.name,
        source=ASKED.source,
        options=options,
        layout="sp2.cfg1.ep1",
        progress=progress or Silent(),
    )
    return [outcome.results[-1].state for outcome in work.render()]


def clip_states(deployment: Deployment) -> set[ClipState]:
    records = [deployment.catalog.clips.get(ASKED.batch_id, clip.clip_id) for clip in CLIPS]
    return {record.state for record in records if record}


def running_runs(deployment: Deployment) -> list[Any]:
    runs = [run for clip in CLIPS for run in deployment.catalog.runs.of_clip(ASKED.batch_id, clip.clip_id)]
    return [run for run in runs if run.state is RunState.RUNNING]


def raise_(error: BaseException) -> None:
    raise error


def test_batch_of_a_command_is_in_the_catalog_and_reported_like_any_other(
    groups: Groups, deployment: SampleDeployment
) -> None:
    assert rendered(deployment) == ["made"] * 3
    batch = deployment.catalog.batches.get(ASKED.batch_id)
    assert batch is not None
    assert (batch.state, batch.name, batch.source, batch.requested_by, batch.run_id) == (
        BatchState.DONE,
        "night",
        "night.jsonl",
        user_name(),
        None,
    )
    counts = counts_of(deployment.catalog, ASKED.batch_id)
    assert (counts.clips.done, counts.accelerator_seconds) == (3, 2.0 * 3 * len(PROFILE.stages))
    report = load_report(deployment.store, ASKED.batch_id)
    assert report is not None and (len(report.done), report.accelerator_seconds) == (3, counts.accelerator_seconds)
    assert list(verify(deployment.store, deployment.catalog, digests=True)) == []


def test_same_command_is_the_same_batch_and_makes_nothing_again(groups: Groups, deployment: SampleDeployment) -> None:
    rendered(deployment)
    groups.started.clear()
    assert rendered(deployment) == ["reused"] * 3
    assert groups.started == []
    assert [batch.batch_id for batch in deployment.catalog.batches.search().rows] == [ASKED.batch_id]
    assert state_of(deployment.catalog, ASKED.batch_id) is BatchState.DONE
    report = load_report(deployment.store, ASKED.batch_id)
    assert report is not None and report.counts["clips_reused"] == 0  # this batch made them, in its first attempt


def test_clip_that_failed_is_counted_and_tried_by_the_next_call(groups: Groups, deployment: SampleDeployment) -> None:
    groups.failing_seeds = {1}
    assert rendered(deployment) == ["made", "failed", "made"]
    assert state_of(deployment.catalog, ASKED.batch_id) is BatchState.FAILED
    groups.failing_seeds.clear()
    assert rendered(deployment) == ["reused", "made", "reused"]
    assert state_of(deployment.catalog, ASKED.batch_id) is BatchState.DONE
    runs = deployment.catalog.runs.of_clip(ASKED.batch_id, CLIPS[1].clip_id)
    assert [(run.attempt, run.state) for run in runs if run.stage is StageName.PREVIEW] == [
        (1, RunState.FAILED),
        (2, RunState.MADE),
    ]


@pytest.mark.parametrize(
    ("error", "batch", "clip"),
    [
        (KeyboardInterrupt(), BatchState.CANCELLED, ClipState.CANCELLED),
        (InfrastructureError("disk full"), BatchState.FAILED, ClipState.FAILED),
        (ZeroDivisionError("a fault of ours"), BatchState.FAILED, ClipState.FAILED),
    ],
)
def test_command_that_ends_early_says_so_and_goes_on_when_called_again(
    groups: Groups, deployment: SampleDeployment, error: BaseException, batch: BatchState, clip: ClipState
) -> None:
    groups.before[StageName.PREVIEW] = lambda: raise_(error)
    with pytest.raises(type(error)):
        rendered(deployment)
    assert state_of(deployment.catalog, ASKED.batch_id) is batch
    assert (clip_states(deployment), running_runs(deployment)) == ({clip}, [])
    report = load_report(deployment.store, ASKED.batch_id)
    assert report is not None
    reasons = {(each.stage, each.reason) for each in (*report.failed, *report.cancelled)}
    (stage, reason), *others = reasons
    assert (stage, others) == ("preview", []) and (str(error) or "interrupted") in str(reason)
    groups.before.clear()
    groups.started.clear()
    assert rendered(deployment) == ["made"] * 3
    assert groups.started[0] == (StageName.PREVIEW, 2)
    assert (state_of(deployment.catalog, ASKED.batch_id), clip_states(deployment)) == (
        BatchState.DONE,
        {ClipState.DONE},
    )


def test_whoever_leaves_early_ends_the_batch(groups: Groups, deployment: SampleDeployment) -> None:
    work = ClipRender(CLIPS, ASKED.profiles, deployment, layout="sp2.cfg1.ep1", progress=Silent())
    outcomes = work.render()
    next(outcomes)
    outcomes.close()
    assert state_of(deployment.catalog, work.batch_id) is BatchState.DONE  # every clip was delivered


def test_batch_waits_while_it_is_paused_and_says_so(groups: Groups, deployment: SampleDeployment) -> None:
    control, ann, waits = deployment.catalog.control, Actor("1", "ann"), list[str | None]()

    class Waiter(Silent):
        def waiting(self, reason: str | None = None) -> None:
            waits.append(reason)
            control.resume(ASKED.batch_id, by=ann)

    groups.before[StageName.ENCODE] = lambda: control.pause(ASKED.batch_id, by=ann)
    assert rendered(deployment, Waiter()) == ["made"] * 3
    assert waits == [f"batch {ASKED.batch_id} is paused"]


@pytest.mark.parametrize("is_marked", [False, True])
def test_batch_ends_when_somebody_cancels_it(groups: Groups, deployment: SampleDeployment, *, is_marked: bool) -> None:
    def cancel() -> None:
        deployment.catalog.control.cancel(ASKED.batch_id, by=Actor("1", "ann"))
        if is_marked:  # as the page does at once, who knows of no run that would have to end
            deployment.catalog.batches.mark(ASKED.batch_id, BatchState.CANCELLED)

    groups.before[StageName.ENCODE] = cancel
    with pytest.raises(BatchCancelledError):
        rendered(deployment)
    assert [stage for stage, _ in groups.started] == [StageName.ENHANCE, StageName.ENCODE]
    assert state_of(deployment.catalog, ASKED.batch_id) is BatchState.CANCELLED


def begin_and_die(folder: Path) -> None:
    with batch_by_hand(ASKED, SampleDeployment(folder), on_wait=lambda: None) as batch:
        job = batch.next_job(0, StageName.ENHANCE)
        batch.recorder.on_stage_start(job, [clip.clip_id for clip in ASKED.clips])
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.slow
def test_batch_of_a_killed_command_is_settled_by_whoever_looks_next(
    groups: Groups, deployment: SampleDeployment, tmp_path: Path
) -> None:
    killed = multiprocessing.get_context("fork").Process(target=begin_and_die, args=(tmp_path,))
    killed.start()
    killed.join()
    assert killed.exitcode == -signal.SIGKILL
    assert state_of(deployment.catalog, ASKED.batch_id) is BatchState.RUNNING
    assert settle_lost(deployment) == [ASKED.batch_id]
    assert state_of(deployment.catalog, ASKED.batch_id) is BatchState.CANCELLED
    assert (clip_states(deployment), running_runs(deployment)) == ({ClipState.CANCELLED}, [])
    record = deployment.catalog.clips.get(ASKED.batch_id, CLIPS[0].clip_id)
    assert record is not None and "ended without a word" in str(record.reason)
    assert settle_lost(deployment) == []
    assert rendered(deployment) == ["made"] * 3


def test_batch_whose_process_may_live_is_left_alone(
    deployment: SampleDeployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    with batch_by_hand(ASKED, deployment, on_wait=lambda: None):
        assert settle_lost(deployment) == []
        assert state_of(deployment.catalog, ASKED.batch_id) is BatchState.RUNNING
    elsewhere = load_batch(deployment.store, ASKED.batch_id).by_hand
    assert elsewhere is not None
    monkeypatch.setattr(by_hand, "this_process", lambda: f"elsewhere {elsewhere.process.partition(' ')[2]}")
    monkeypatch.setattr(by_hand.BatchByHand, "report", lambda self: None)
    with batch_by_hand(ASKED, deployment, on_wait=lambda: None):
        pass
    assert (settle_lost(deployment), state_of(deployment.catalog, ASKED.batch_id)) == ([], BatchState.RUNNING)


def test_catalog_that_is_away_stops_no_render(groups: Groups, deployment: SampleDeployment, tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "catalog.sqlite").mkdir()
    assert rendered(deployment) == ["made"] * 3
    document = json.loads(deployment.store.get_document(f"batches/{ASKED.batch_id}/report.json") or b"{}")
    assert (document["clips_done"], document["accelerator_seconds"]) == (3, None)


def test_passed_limit_stops_the_command_and_a_higher_one_goes_on(groups: Groups, deployment: SampleDeployment) -> None:
    groups.failing_seeds = {0, 1}
    with pytest.raises(StoppedError, match="2 failed of at most 1: stopped"):
        rendered(deployment, options=BatchOptions(failure_limit=1))
    assert groups.started[-1] == (StageName.PREVIEW, 1)
    report = load_report(deployment.store, ASKED.batch_id)
    assert report is not None
    assert (len(report.failed), len(report.stopped), str(report.failure_count)) == (
        2,
        1,
        "2 failed of at most 1: stopped",
    )
    assert [(group.stage, group.code, group.count) for group in report.failure_groups] == [
        ("preview", "out_of_memory", 2)
    ]
    assert state_of(deployment.catalog, ASKED.batch_id) is BatchState.FAILED
    assert clip_states(deployment) == {ClipState.FAILED, ClipState.SKIPPED}
    deployment.catalog.control.set_limit(ASKED.batch_id, 2, by=Actor("1", "ann"))
    states = rendered(deployment, options=BatchOptions(failure_limit=1))
    assert sorted(states) == ["failed", "failed", "made"]
    assert state_of(deployment.catalog, ASKED.batch_id) is BatchState.DONE, "two may fail by now"


def test_limit_that_continues_renders_the_others(groups: Groups, deployment: SampleDeployment) -> None:
    groups.failing_seeds = {0, 1}
    states = rendered(deployment, options=BatchOptions(failure_limit=1, on_limit="continue"))
    assert sorted(states) == ["failed", "failed", "made"]
    assert state_of(deployment.catalog, ASKED.batch_id) is BatchState.FAILED


def test_equal_failures_pause_the_command_until_it_is_resumed(groups: Groups, deployment: SampleDeployment) -> None:
    waits = list[str | None]()

    class Waiter(Silent):
        def waiting(self, reason: str | None = None) -> None:
            waits.append(reason)
            deployment.catalog.control.resume(ASKED.batch_id, by=Actor("1", "ann"))

    groups.failing_seeds = {CLIPS[0].seed, CLIPS[1].seed}
    states = rendered(deployment, Waiter(), BatchOptions(failure_streak=2))
    assert sorted(states) == ["failed", "failed", "made"]
    why = "2 clips in a row failed in preview, out_of_memory: too little"
    assert waits == [f"batch {ASKED.batch_id} is paused: {why}"]


def test_stage_that_is_stopped_between_two_clips_keeps_what_it_told(
    groups: Groups, deployment: SampleDeployment
) -> None:
    def stop_after_two() -> None:
        failed = [stage for stage, _ in groups.started if stage is StageName.PREVIEW]
        if failed and next(told) == 2:
            raise StoppedError("2 failed of at most 1: stopped")

    told = iter(range(3))
    groups.failing_seeds, groups.before_clip = {CLIPS[0].seed, CLIPS[1].seed}, stop_after_two
    with pytest.raises(StoppedError):
        rendered(deployment, options=BatchOptions(failure_limit=1))
    report = load_report(deployment.store, ASKED.batch_id)
    assert report is not None
    assert ([clip.clip_id for clip in report.failed], [clip.clip_id for clip in report.stopped]) == (
        [CLIPS[0].clip_id, CLIPS[1].clip_id],
        [CLIPS[2].clip_id],
    )
    assert clip_states(deployment) == {ClipState.FAILED, ClipState.SKIPPED}
    counts = counts_of(deployment.catalog, ASKED.batch_id).clips
    assert (counts.failed, counts.skipped) == (2, 1)
