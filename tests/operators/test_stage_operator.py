"""A stage task around the real launcher; the worker is a stub without models."""

from __future__ import annotations

import os
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowRescheduleException, AirflowSkipException

from magi2.catalog import Actor, ClipState, Run, RunState
from magi2.errors import CancelledError, InfrastructureError, InputError
from magi2.runtime.job import StageJob
from magi2.runtime.launcher import JobResult, Launcher
from magi2.types import StageName
from magi2_airflow.plan import PlanOperator
from magi2_airflow.stages import PreviewOperator, RefineOperator
from tests.batch_counts import counts_of
from tests.operators.operator_helpers import Deployment, Task

pytestmark = pytest.mark.processes


class StubbedPreview(PreviewOperator):
    worker_module = "tests.operators.stub_operator_worker"


class UnstartableRefine(RefineOperator):
    worker_module = "no_such_module"


@pytest.fixture
def batch_id(deployment: Deployment) -> str:
    task = Task(task_id="plan")
    path = deployment.batch({"prompt": "a kite", "seed": 1}, {"prompt": "a boat", "seed": 2})
    PlanOperator(task_id="plan", batch=str(path), profile="tiny-preview").work(task.context())
    return str(task.xcom["batch_id"])


def preview(batch_id: str) -> PreviewOperator:
    return StubbedPreview(task_id="preview", batch_id=batch_id, shard=0)


def test_failed_clip_is_counted_and_does_not_fail_the_task(
    deployment: Deployment, batch_id: str, task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STUB_ACTION", "work")
    operator = preview(batch_id)
    result = operator.work(task.context())
    counts = {"made": 1, "reused": 0, "failed": 1}
    assert result == {"batch_id": batch_id, "shard": 0, "stage": "preview", **counts}
    assert operator.label == ", tiny-preview, 2 clips"
    clips = counts_of(deployment.catalog(), batch_id).clips
    assert (clips.failed, clips.running) == (1, 1)
    assert set(task.xcom) == {"_link_ClipsLink", "_link_ManifestLink", "_link_LogLink"}


@pytest.mark.parametrize("kind", [InfrastructureError, InputError])
def test_error_of_the_worker_reaches_airflow_the_report_and_the_catalog(
    deployment: Deployment, batch_id: str, task: Task, monkeypatch: pytest.MonkeyPatch, kind: type[Exception]
) -> None:
    monkeypatch.setenv("STUB_ACTION", kind.__name__)
    with pytest.raises(kind, match="the reason"):
        preview(batch_id).work(task.context())
    failure = deployment.document(f"batches/{batch_id}/failures/0.preview.json")
    assert failure["error_code"] == kind.code  # type: ignore[attr-defined]
    assert "the reason" in failure["error"]
    assert counts_of(deployment.catalog(), batch_id).clips.failed == 2


def test_clips_of_a_task_that_is_tried_again_wait_and_are_not_charged(
    deployment: Deployment, batch_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STUB_ACTION", "InfrastructureError")
    catalog = deployment.catalog()
    for attempt, (waiting, failed) in {3: (2, 0), 4: (0, 2)}.items():
        with pytest.raises(InfrastructureError, match="the reason"):
            preview(batch_id).work(Task(try_number=attempt, max_tries=3).context())
        clips = counts_of(catalog, batch_id).clips
        assert (clips.waiting, clips.failed) == (waiting, failed)


def test_stage_that_the_profile_lacks_starts_no_process(deployment: Deployment, batch_id: str, task: Task) -> None:
    operator = UnstartableRefine(task_id="refine", batch_id=batch_id, shard=0)
    result = operator.work(task.context())
    assert (result["made"], result["reused"], result["failed"]) == (0, 0, 0)


def test_kill_ends_the_group_within_airflow_s_patience(
    deployment: Deployment, batch_id: str, task: Task, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    mark = tmp_path / "worker"
    monkeypatch.setenv("STUB_ACTION", "wait")
    monkeypatch.setenv("STUB_MARK", str(mark))
    operator, killed_at = preview(batch_id), []

    def kill_when_running() -> None:
        while not mark.exists() or not mark.read_text():
            time.sleep(0.05)
        killed_at.append(time.monotonic())
        operator.on_kill()

    threading.Thread(target=kill_when_running, daemon=True).start()
    with pytest.raises(CancelledError):
        operator.work(task.context())
    assert time.monotonic() - killed_at[0] < 5
    with pytest.raises(ProcessLookupError):
        os.kill(int(mark.read_text()), 0)
    assert counts_of(deployment.catalog(), batch_id).clips.cancelled == 2


def test_unknown_batch_or_shard_is_refused(deployment: Deployment, batch_id: str, task: Task) -> None:
    for arguments in ({"batch_id": "unknown", "shard": 0}, {"batch_id": batch_id, "shard": 7}):
        values: dict[str, Any] = arguments
        with pytest.raises(InputError, match="is not in the store"):
            StubbedPreview(task_id="preview", **values).work(task.context())


ANN = Actor("1", "ann")


class Unstartable(PreviewOperator):
    worker_module = "no_such_module"


def test_task_of_a_paused_batch_frees_its_slot_and_asks_again_soon(
    deployment: Deployment, batch_id: str, task: Task
) -> None:
    deployment.catalog().control.pause(batch_id, by=ANN)
    before = datetime.now(UTC)
    with pytest.raises(AirflowRescheduleException) as raised:
        Unstartable(task_id="preview", batch_id=batch_id, shard=0).work(task.context())
    assert before + timedelta(seconds=30) <= raised.value.reschedule_date <= datetime.now(UTC) + timedelta(seconds=30)
    assert counts_of(deployment.catalog(), batch_id).clips.waiting == 2


def test_clips_not_begun_when_a_batch_is_paused_wait_for_the_next_time(
    deployment: Deployment, batch_id: str, task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STUB_ACTION", "PausedError")
    with pytest.raises(AirflowRescheduleException):
        preview(batch_id).work(task.context())
    assert counts_of(deployment.catalog(), batch_id).clips.waiting == 2
    assert deployment.document(f"batches/{batch_id}/failures/0.preview.json") is None
    monkeypatch.setenv("STUB_ACTION", "work")
    assert preview(batch_id).work(task.context())["made"] == 1


@pytest.mark.parametrize("is_begun", [False, True])
def test_task_of_a_cancelled_batch_is_skipped_and_its_clips_are_cancelled(
    deployment: Deployment, batch_id: str, task: Task, monkeypatch: pytest.MonkeyPatch, is_begun: bool
) -> None:
    if is_begun:
        monkeypatch.setenv("STUB_ACTION", "BatchCancelledError")
    else:
        deployment.catalog().control.cancel(batch_id, by=ANN)
    operator = StubbedPreview if is_begun else Unstartable
    with pytest.raises(AirflowSkipException):
        operator(task_id="preview", batch_id=batch_id, shard=0).work(task.context())
    assert counts_of(deployment.catalog(), batch_id).clips.cancelled == 2
    assert deployment.document(f"batches/{batch_id}/failures/0.preview.json")["error_code"] == "batch_cancelled"


def test_shard_that_begins_after_the_budget_is_spent_is_skipped(
    deployment: Deployment, batch_id: str, task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MAGI2_PRICE_PER_ACCELERATOR_HOUR", "3600")
    catalog = deployment.catalog()
    catalog.control.set_budget(batch_id, 5.0, by=ANN)
    (clip_id, *_) = (clip.clip_id for clip in catalog.clips.search().rows)
    run = Run(clip_id=clip_id, stage=StageName.ENCODE, state=RunState.MADE, accelerator_seconds=5.0)
    catalog.runs.finish(batch_id, [run])
    with pytest.raises(AirflowSkipException, match=r"budget: 5\.00 USD of 5\.00 USD spent"):
        Unstartable(task_id="preview", batch_id=batch_id, shard=0).work(task.context())
    skipped = catalog.clips.search().rows
    assert {(clip.state, clip.reason) for clip in skipped} == {
        (ClipState.SKIPPED, "budget: 5.00 USD of 5.00 USD spent")
    }


@pytest.mark.parametrize(("try_number", "max_tries", "expected"), [(1, 0, True), (3, 3, False), (4, 3, True)])
def test_group_knows_whether_airflow_will_try_again(
    batch_id: str, monkeypatch: pytest.MonkeyPatch, try_number: int, max_tries: int, expected: bool
) -> None:
    started: list[bool] = []

    def run(self: Launcher, job: StageJob, **rest: object) -> JobResult:
        started.append(job.is_last_try)
        return JobResult((), 0.0, 0.0, Path("log"))

    monkeypatch.setattr(Launcher, "run", run)
    preview(batch_id).work(Task(try_number=try_number, max_tries=max_tries).context())
    assert started == [expected]


@pytest.mark.parametrize(
    ("layout", "setting", "expected"),
    [("sp4.cfg2.ep4", "sp2", "sp4.cfg2.ep4"), (None, "sp2", "sp2.cfg1.ep2"), (None, "", "sp1.cfg1.ep1")],
)
def test_layout_reaches_the_group(
    batch_id: str,
    task: Task,
    monkeypatch: pytest.MonkeyPatch,
    layout: str | None,
    setting: str,
    expected: str,
) -> None:
    monkeypatch.setenv("MAGI2_LAYOUT", setting)
    monkeypatch.setenv("MAGI2_DEVICE", "cpu")
    started: list[str] = []

    def run(self: Launcher, job: StageJob, **rest: object) -> JobResult:
        started.append(str(job.layout))
        return JobResult((), 0.0, 0.0, Path("log"))

    monkeypatch.setattr(Launcher, "run", run)
    PreviewOperator(task_id="preview", batch_id=batch_id, shard=0, layout=layout).work(task.context())
    assert started == [expected]
