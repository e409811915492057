"""A stage task around the real launcher; the worker is a stub without models."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from operator_helpers import Deployment, Task

from magi2.catalog import ClipState
from magi2.errors import CancelledError, InfrastructureError, InputError
from operators.plan import PlanOperator
from operators.stages import PreviewOperator, RefineOperator


class StubbedPreview(PreviewOperator):
    worker_module = "stub_operator_worker"


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
    states = deployment.catalog().batches.progress(batch_id).clips
    assert (states[ClipState.FAILED], states[ClipState.RUNNING]) == (1, 1)
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
    assert deployment.catalog().batches.progress(batch_id).clips[ClipState.FAILED] == 2


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
    assert deployment.catalog().batches.progress(batch_id).clips[ClipState.CANCELLED] == 2


def test_unknown_batch_or_shard_is_refused(deployment: Deployment, batch_id: str, task: Task) -> None:
    for arguments in ({"batch_id": "unknown", "shard": 0}, {"batch_id": batch_id, "shard": 7}):
        values: dict[str, Any] = arguments
        with pytest.raises(InputError, match="is not in the store"):
            StubbedPreview(task_id="preview", **values).work(task.context())
