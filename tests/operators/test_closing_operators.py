"""The report decides over the run; the inbox asks for runs; housekeeping tells what it did."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import Asset
from airflow.sdk.exceptions import AirflowFailException, ErrorType
from airflow.sdk.execution_time import task_runner
from airflow.sdk.execution_time.comms import ErrorResponse, OKResponse, TriggerDagRun
from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

from magi2.batches.failures import save_failure
from magi2.catalog import BatchState, Run, RunState
from magi2.errors import BatchCancelledError, BudgetSpentError, IdentityError
from magi2.runtime.log_file import log_folder
from magi2.runtime.run_folder import run_folder
from magi2.types import StageName
from magi2_airflow.inbox import InboxOperator
from magi2_airflow.maintenance import expire_artifacts, reconcile_catalog, sweep_store
from magi2_airflow.plan import PlanOperator
from magi2_airflow.report import ReportOperator
from magi2_airflow.watch import end_cancelled_batches
from tests.batch_counts import counts_of, state_of
from tests.operators.operator_helpers import Deployment, Task

BATCHES = Asset(name="magi2_batches", uri="magi2://batches")


@pytest.fixture
def batch_id(deployment: Deployment) -> str:
    task = Task(task_id="plan")
    path = deployment.batch({"prompt": "a kite", "seed": 1}, {"prompt": "a boat", "seed": 2})
    PlanOperator(task_id="plan", batch=str(path), profile="tiny", failure_limit=1).work(task.context())
    return str(task.xcom["batch_id"])


def report(batch_id: str) -> ReportOperator:
    return ReportOperator(task_id="report", batch_id=batch_id, outlets=[BATCHES])


def test_more_failures_than_allowed_fail_the_run_for_good_but_the_report_is_there(
    deployment: Deployment, batch_id: str, task: Task
) -> None:
    context = task.context()
    with pytest.raises(AirflowFailException, match=r"2 clips failed, the batch allows 1: batches/.*/report\.json"):
        report(batch_id).work(context)
    assert deployment.document(f"batches/{batch_id}/report.json")["clips_failed"] == 2
    assert not context["outlet_events"]


def test_finished_batch_tells_its_counts_to_whoever_waits_for_the_asset(
    deployment: Deployment, batch_id: str, task: Task
) -> None:
    deployment.deliver(batch_id)
    context = task.context()
    summary = report(batch_id).work(context)
    assert (summary["clips_done"], summary["clips_failed"]) == (2, 0)
    assert context["outlet_events"][BATCHES].extra == summary
    assert summary["report"] == f"batches/{batch_id}/report.json"


def test_clips_over_budget_fail_no_run_and_are_told_apart(deployment: Deployment, batch_id: str, task: Task) -> None:
    save_failure(
        deployment.store, batch_id, 0, StageName.ENHANCE, BudgetSpentError("budget: 5.00 USD of 5.00 USD spent")
    )
    summary = report(batch_id).work(task.context())
    assert (summary["clips_over_budget"], summary["clips_failed"]) == (2, 0)
    assert state_of(deployment.catalog(), batch_id) is BatchState.DONE
    assert counts_of(deployment.catalog(), batch_id).clips.skipped == 2


def test_report_of_a_cancelled_batch_ends_its_run_and_the_batch(
    deployment: Deployment, batch_id: str, task: Task
) -> None:
    save_failure(deployment.store, batch_id, 0, StageName.ENHANCE, BatchCancelledError("batch night was cancelled"))
    with pytest.raises(AirflowFailException, match="cancelled before 2 clips were rendered"):
        report(batch_id).work(task.context())
    assert state_of(deployment.catalog(), batch_id) is BatchState.CANCELLED
    assert counts_of(deployment.catalog(), batch_id).clips.cancelled == 2


def test_report_tells_what_the_batch_cost(
    deployment: Deployment, batch_id: str, task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MAGI2_PRICE_PER_ACCELERATOR_HOUR", "1800")
    deployment.deliver(batch_id)
    catalog = deployment.catalog()
    (one, two) = (clip.clip_id for clip in catalog.clips.search().rows)
    for clip_id, stage, seconds in ((one, StageName.ENCODE, 2.0), (one, StageName.PREVIEW, 16.0), (two, "refine", 2.0)):
        run = Run(clip_id=clip_id, stage=StageName(stage), state=RunState.MADE, accelerator_seconds=seconds)
        catalog.runs.finish(batch_id, [run])
    report(batch_id).work(task.context())
    document = deployment.document(f"batches/{batch_id}/report.json")
    assert (document["accelerator_seconds"], document["cost"], document["currency"]) == (20.0, 10.0, "USD")
    assert {clip["clip_id"]: clip["cost"] for clip in document["done"]} == {one: 9.0, two: 1.0}
    costs = {stage: count["cost"] for stage, count in document["stages"].items()}
    assert (costs["encode"], costs["preview"], costs["refine"], costs["mux"]) == (1.0, 8.0, 1.0, 0.0)
    text = (deployment.store.get_document(f"batches/{batch_id}/report.md") or b"").decode()
    assert "20.0 accelerator-seconds, 10.00 USD" in text
    assert "9.00 USD" in text


@pytest.mark.parametrize("batch_id", [None, ""])
def test_run_whose_plan_failed_fails_without_a_report(batch_id: str | None, task: Task) -> None:
    operator = ReportOperator(task_id="report", batch_id=batch_id)  # type: ignore[arg-type]
    assert operator.trigger_rule == "all_done"
    with pytest.raises(AirflowFailException, match="see the plan task"):
        operator.work(task.context())


class Supervisor:
    """Airflow's end of the task's line: run ids are unique, and it may die when asked."""

    def __init__(self) -> None:
        self.runs: dict[str, dict[str, Any]] = {}
        self.dies = False

    def send(self, request: TriggerDagRun) -> OKResponse | ErrorResponse:
        if request.run_id in self.runs:
            return ErrorResponse(error=ErrorType.DAGRUN_ALREADY_EXISTS)
        self.runs[request.run_id] = {"dag_id": request.dag_id, **(request.conf or {})}
        if self.dies:
            raise ConnectionError("the API server went away before it answered")
        return OKResponse(ok=True)


@pytest.fixture
def supervisor(monkeypatch: pytest.MonkeyPatch) -> Supervisor:
    supervisor = Supervisor()
    monkeypatch.setattr(task_runner, "SUPERVISOR_COMMS", supervisor, raising=False)
    return supervisor


def start_runs(task: Task) -> dict[str, int]:
    operator = InboxOperator(task_id="start_runs", trigger_dag_id="magi2_render_batch", settle_s=0)
    return operator.work(task.context())


def test_inbox_starts_a_run_with_the_claimed_file(deployment: Deployment, task: Task, supervisor: Supervisor) -> None:
    (deployment.inbox / "night.jsonl").write_text('{"prompt": "a kite"}')
    assert start_runs(task) == {"started": 1}
    assert start_runs(task) == {"started": 0}
    ((run_id, run),) = supervisor.runs.items()
    assert run["dag_id"] == "magi2_render_batch"
    assert Path(run["batch"]).stem == run_id
    assert run["images"] == str(deployment.inbox)


def test_inbox_hands_on_the_options_of_a_file(deployment: Deployment, task: Task, supervisor: Supervisor) -> None:
    (deployment.inbox / "night.options.yaml").write_text("priority: 7\nprofile: tiny\non_bad_rows: skip\n")
    (deployment.inbox / "night.jsonl").write_text('{"prompt": "a kite"}')
    assert start_runs(task) == {"started": 1}
    (run,) = supervisor.runs.values()
    assert (run["priority"], run["profile"], run["on_bad_rows"]) == (7, "tiny", "skip")


def test_file_that_the_inbox_rejects_is_in_the_catalog(
    deployment: Deployment, task: Task, supervisor: Supervisor
) -> None:
    (deployment.inbox / "night.json").write_text("[{")
    assert start_runs(task) == {"started": 0}
    (batch,) = deployment.catalog().batches.search().rows
    assert batch.name.startswith("night-") and batch.state == "failed"
    assert "unreadable" in deployment.catalog().batches.refused_rows(batch.batch_id)[0]


def test_inbox_asks_again_when_the_answer_was_lost(deployment: Deployment, task: Task, supervisor: Supervisor) -> None:
    (deployment.inbox / "night.jsonl").write_text('{"prompt": "a kite"}')
    supervisor.dies = True
    with pytest.raises(ConnectionError):
        start_runs(task)
    supervisor.dies = False
    assert start_runs(task) == {"started": 0}
    assert start_runs(task) == {"started": 0}
    assert len(supervisor.runs) == 1


def test_no_inbox_is_nothing_to_do(task: Task, deployment: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MAGI2_INBOX")
    assert start_runs(task) == {"started": 0}


def test_housekeeping_removes_nothing_in_a_dry_run(deployment: Deployment, batch_id: str) -> None:
    deployment.deliver(batch_id)
    decoded = list(deployment.store.keys("decode"))
    assert expire_artifacts(0, dry_run=True)["removed"] == len(decoded) == 2
    assert sweep_store(1, dry_run=True) == {"swept": 0}
    assert list(deployment.store.keys("decode")) == decoded
    assert expire_artifacts(0, dry_run=False)["removed"] == 2
    assert not list(deployment.store.keys("decode"))


def test_batch_whose_report_cannot_be_read_keeps_no_other_from_its_end(
    deployment: Deployment, batch_id: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    plan = Task(task_id="plan", run_id="manual__2")
    PlanOperator(task_id="plan", batch=str(deployment.batch({"prompt": "a cow"})), profile="tiny").work(plan.context())
    other = str(plan.xcom["batch_id"])
    monkeypatch.setattr(RuntimeTaskInstance, "get_dagrun_state", lambda dag_id, run_id: "failed")
    for damaged in (b'{"version": 99}', b"{", b"\xff"):
        deployment.store.put_document(f"batches/{batch_id}/report.json", damaged)
        end_cancelled_batches()
        assert f"batch {batch_id} is not settled" in caplog.text
        assert state_of(deployment.catalog(), batch_id) is BatchState.RUNNING
    assert state_of(deployment.catalog(), other) is BatchState.CANCELLED


def test_logs_of_the_host_are_swept_though_the_store_is_foreign(
    deployment: Deployment, batch_id: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    old = log_folder(run_folder()) / "old.log"
    old.touch()
    os.utime(old, (0, 0))
    deployment.store.put_document("identity.json", json.dumps({"identity": "0" * 32}).encode())
    with pytest.raises(IdentityError):
        sweep_store(1, dry_run=False)
    assert not old.exists()


def test_housekeeping_heals_a_catalog_that_is_behind(deployment: Deployment, batch_id: str) -> None:
    deployment.deliver(batch_id)
    found = reconcile_catalog(dry_run=True)
    assert (found["problems"], found["rebuilt"]) == (2 * 6, False)  # two clips, six stages
    assert reconcile_catalog(dry_run=False)["rebuilt"] is True
    assert reconcile_catalog(dry_run=False) == {"problems": 0, "rebuilt": False}
