"""One stage of one shard, whoever asks for it: permission, what is stored, the rest, and what is written down."""

from __future__ import annotations

import errno
import json
from collections.abc import Sequence
from pathlib import Path
from threading import Event as Flag

import pytest

from magi2.artifacts.local import LocalStore
from magi2.batches.results import read_results
from magi2.catalog import Actor, ClipState, RunState
from magi2.checkpoints.layout import HOLLOW_NAME
from magi2.config.profile import Profile
from magi2.errors import AwayError, BatchCancelledError, CheckpointError, InfrastructureError, Magi2Error, PausedError
from magi2.jobs.recorder import CatalogRecorder
from magi2.jobs.run import OnEvent, StageWork, run_stage_job
from magi2.recipes.book import RecipeBook
from magi2.recipes.result import StageResult
from magi2.runtime.events import ClipFinished, Event
from magi2.runtime.job import StageJob
from magi2.types import StageName
from tests.jobs.job_samples import CLIPS, Computer, SampleDeployment, make, planned, work_of

ANN = Actor("1", "ann")


@pytest.fixture
def deployment(tmp_path: Path) -> SampleDeployment:
    return SampleDeployment(tmp_path)


@pytest.fixture
def store(deployment: SampleDeployment) -> LocalStore:
    assert isinstance(deployment.store, LocalStore)
    return deployment.store


def test_what_is_not_stored_is_computed_and_told_to_the_listener(
    deployment: SampleDeployment, store: LocalStore
) -> None:
    computer, heard = Computer(store, failing_seed=1), list[Event]()
    work = work_of(planned(store), store, StageName.ENHANCE)
    results = run_stage_job(work, deployment, computer, on_event=heard.append)
    assert computer.asked == [(StageName.ENHANCE, [0, 1, 2])]
    assert [result.state for result in results] == ["made", "failed", "made"]
    assert [event.state for event in heard if isinstance(event, ClipFinished)] == ["made", "failed", "made"]


def test_clip_that_failed_is_not_due_in_the_next_stage(deployment: SampleDeployment, store: LocalStore) -> None:
    plan, computer = planned(store), Computer(store, failing_seed=1)
    for stage in (StageName.ENHANCE, StageName.ENCODE):
        run_stage_job(work_of(plan, store, stage), deployment, computer)
    assert computer.asked == [(StageName.ENHANCE, [0, 1, 2]), (StageName.ENCODE, [0, 2])]


def test_stage_that_is_stored_whole_computes_nothing_and_leaves_its_results(
    deployment: SampleDeployment, store: LocalStore
) -> None:
    plan, computer, heard = planned(store), Computer(store), list[Event]()
    keys = [make(store, StageName.ENHANCE, clip) for clip in CLIPS]
    results = run_stage_job(work_of(plan, store, StageName.ENHANCE), deployment, computer, on_event=heard.append)
    assert computer.asked == []
    assert [(result.state, result.key) for result in results] == [("reused", key) for key in keys]
    assert [row.state for row in read_results(store, plan.batch_id, 0, StageName.ENHANCE)] == ["reused"] * 3
    assert [event.key for event in heard if isinstance(event, ClipFinished)] == keys


def test_a_single_clip_that_is_missing_or_a_force_sends_all_to_be_computed(
    deployment: SampleDeployment, store: LocalStore
) -> None:
    plan, computer = planned(store), Computer(store)
    for clip in CLIPS[:2]:
        make(store, StageName.ENHANCE, clip)
    run_stage_job(work_of(plan, store, StageName.ENHANCE), deployment, computer)
    run_stage_job(work_of(plan, store, StageName.ENHANCE, force=True), deployment, computer)
    assert computer.asked == [(StageName.ENHANCE, [0, 1, 2])] * 2


def test_hollow_weights_are_refused_by_name_before_anything_is_computed_and_what_is_stored_is_reused(
    deployment: SampleDeployment, store: LocalStore
) -> None:
    plan, computer = planned(store), Computer(store)
    (deployment.weights.root / HOLLOW_NAME).touch()
    with pytest.raises(CheckpointError, match="text_encoder is hollow"):
        run_stage_job(work_of(plan, store, StageName.ENHANCE), deployment, computer)
    for clip in CLIPS:
        make(store, StageName.ENHANCE, clip)
    results = run_stage_job(work_of(plan, store, StageName.ENHANCE), deployment, computer)
    assert [result.state for result in results] == ["reused"] * 3 and computer.asked == []


def test_stage_without_clips_asks_nobody(deployment: SampleDeployment, store: LocalStore) -> None:
    plan, computer = planned(store), Computer(store)
    assert run_stage_job(work_of(plan, store, StageName.REFINE), deployment, computer) == []
    assert computer.asked == []


def test_course_is_entered_in_the_catalog(deployment: SampleDeployment, store: LocalStore) -> None:
    plan, recorder = planned(store), CatalogRecorder.of(deployment)
    recorder.on_plan(plan)
    work = work_of(plan, store, StageName.ENHANCE)
    run_stage_job(work, deployment, Computer(store, failing_seed=1), recorder=recorder)
    states = {clip.seed: deployment.catalog.runs.of_clip(plan.batch_id, clip.clip_id)[0].state for clip in CLIPS}
    assert states == {0: RunState.MADE, 1: RunState.FAILED, 2: RunState.MADE}


def test_catalog_that_says_nothing_holds_up_no_listener(deployment: SampleDeployment, store: LocalStore) -> None:
    plan, is_over, waits = planned(store), Flag(), list[bool]()
    CatalogRecorder.of(deployment).on_plan(plan)

    class SilentRecorder(CatalogRecorder):
        def on_event(self, job: StageJob, event: Event) -> None:
            waits.append(is_over.wait(10))
            super().on_event(job, event)

    def compute(work: StageWork, on_event: OnEvent) -> Sequence[StageResult]:
        results = Computer(store)(work, on_event)
        is_over.set()
        return results

    work = work_of(plan, store, StageName.ENHANCE)
    run_stage_job(work, deployment, compute, recorder=SilentRecorder.of(deployment))
    assert waits == [True] * 3
    states = {deployment.catalog.runs.of_clip(plan.batch_id, clip.clip_id)[0].state for clip in CLIPS}
    assert states == {RunState.MADE}  # all is entered when the stage has ended


def test_fault_of_the_recorder_is_not_swallowed(deployment: SampleDeployment, store: LocalStore) -> None:
    class FaultyRecorder(CatalogRecorder):
        def on_event(self, job: StageJob, event: Event) -> None:
            raise KeyError("a fault of ours")

    work = work_of(planned(store), store, StageName.ENHANCE)
    with pytest.raises(KeyError, match="a fault of ours"):
        run_stage_job(work, deployment, Computer(store), recorder=FaultyRecorder.of(deployment))


def test_error_of_the_stage_goes_on_and_is_named_in_catalog_and_report(
    deployment: SampleDeployment, store: LocalStore
) -> None:
    plan, recorder = planned(store), CatalogRecorder.of(deployment)
    recorder.on_plan(plan)
    work = work_of(plan, store, StageName.ENCODE)
    with pytest.raises(InfrastructureError, match="disk"):
        error = InfrastructureError("disk full")
        run_stage_job(work, deployment, Computer(store, error=error), recorder=recorder)
    (run,) = deployment.catalog.runs.of_clip(plan.batch_id, CLIPS[0].clip_id)
    assert (run.state, run.error) == (RunState.FAILED, "disk full")
    failure = json.loads(store.get_document(f"batches/{plan.batch_id}/failures/0.encode.json") or b"{}")
    assert failure["error"] == "disk full"


@pytest.mark.parametrize("wrapped", [True, False])
def test_weights_on_a_stale_mount_are_no_fault_of_the_weights(tmp_path: Path, wrapped: bool) -> None:
    class Stale(SampleDeployment):
        def recipe_book(self, profile: Profile) -> RecipeBook:
            stale = OSError(errno.ESTALE, "Stale file handle", "/weights/vae")
            if wrapped:
                raise CheckpointError("/weights/vae: unreadable") from stale
            raise stale

    deployment = Stale(tmp_path)
    assert isinstance(deployment.store, LocalStore)
    plan = planned(deployment.store)
    with pytest.raises(AwayError, match="/weights/vae"):
        run_stage_job(work_of(plan, deployment.store, StageName.ENCODE), deployment, Computer(deployment.store))
    assert deployment.store.get_document(f"batches/{plan.batch_id}/failures/0.encode.json")


@pytest.mark.parametrize(
    ("ask", "error", "state"),
    [("pause", PausedError, ClipState.WAITING), ("cancel", BatchCancelledError, ClipState.CANCELLED)],
)
def test_what_may_not_start_computes_nothing(
    deployment: SampleDeployment, store: LocalStore, ask: str, error: type[Magi2Error], state: ClipState
) -> None:
    plan, recorder, computer = planned(store), CatalogRecorder.of(deployment), Computer(store)
    recorder.on_plan(plan)
    getattr(deployment.catalog.control, ask)(plan.batch_id, by=ANN)
    with pytest.raises(error):
        run_stage_job(work_of(plan, store, StageName.ENHANCE), deployment, computer, recorder=recorder)
    clip = deployment.catalog.clips.get(plan.batch_id, CLIPS[0].clip_id)
    assert clip is not None
    assert (computer.asked, clip.state) == ([], state)
