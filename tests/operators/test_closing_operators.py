"""The report decides over the run; the inbox asks for runs; housekeeping tells what it did."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import Asset
from airflow.sdk.exceptions import AirflowFailException, ErrorType
from airflow.sdk.execution_time import task_runner
from airflow.sdk.execution_time.comms import ErrorResponse, OKResponse, TriggerDagRun
from operator_helpers import Deployment, Task

from operators.inbox import InboxOperator
from operators.maintenance import expire_artifacts, reconcile_catalog, sweep_store
from operators.plan import PlanOperator
from operators.report import ReportOperator

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


def test_housekeeping_heals_a_catalog_that_is_behind(deployment: Deployment, batch_id: str) -> None:
    deployment.deliver(batch_id)
    found = reconcile_catalog(dry_run=True)
    assert (found["problems"], found["rebuilt"]) == (2 * 6, False)  # two clips, six stages
    assert reconcile_catalog(dry_run=False)["rebuilt"] is True
    assert reconcile_catalog(dry_run=False) == {"problems": 0, "rebuilt": False}
