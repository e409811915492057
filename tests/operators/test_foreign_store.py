"""No task writes to a store that is not the catalog's, and each says so in an error that is not tried again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from airflow.sdk import RetryAction

from magi2.catalog import Action, Actor, BatchState
from magi2.catalog.identity import last_refusal
from magi2.errors import IdentityError
from magi2_airflow.base import RETRY_POLICY
from magi2_airflow.inbox import InboxOperator
from magi2_airflow.maintenance import expire_artifacts, reconcile_catalog, sweep_store
from magi2_airflow.plan import PlanOperator
from magi2_airflow.report import ReportOperator
from magi2_airflow.stages import PreviewOperator
from magi2_airflow.watch import end_cancelled_batches
from tests.operators.operator_helpers import Deployment, Task


@pytest.fixture
def batch_id(deployment: Deployment, monkeypatch: pytest.MonkeyPatch) -> str:
    """A delivered batch whose catalog lies elsewhere, and whose store is then not mounted."""
    monkeypatch.setenv("MAGI2_STORE_WAIT_S", "0")
    monkeypatch.setenv("MAGI2_CATALOG", f"sqlite:///{deployment.folder}/elsewhere/catalog.sqlite")
    task = Task(task_id="plan")
    path = deployment.batch({"prompt": "a kite", "seed": 1}, {"prompt": "a boat", "seed": 2})
    PlanOperator(task_id="plan", batch=str(path), profile="tiny", priority=3, budget=None).work(task.context())
    batch_id = str(task.xcom["batch_id"])
    deployment.deliver(batch_id)
    reconcile_catalog(dry_run=False)
    deployment.catalog().control.set_priority(batch_id, 9, by=Actor("1", "ann"))
    deployment.store.root.rename(deployment.folder / "unmounted")
    return batch_id


def plan(deployment: Deployment, batch_id: str) -> object:
    path = deployment.batch({"prompt": "a fox", "seed": 3}, name="next.jsonl")
    return PlanOperator(task_id="plan", batch=str(path), profile="tiny").work(Task().context())


def stage(deployment: Deployment, batch_id: str) -> object:
    return PreviewOperator(task_id="preview", batch_id=batch_id, shard=0).work(Task().context())


def report(deployment: Deployment, batch_id: str) -> object:
    return ReportOperator(task_id="report", batch_id=batch_id).work(Task().context())


def inbox(deployment: Deployment, batch_id: str) -> object:
    (deployment.inbox / "more.jsonl").write_text('{"prompt": "a fox"}')
    operator = InboxOperator(task_id="start_runs", trigger_dag_id="magi2_render_batch", settle_s=0)
    return operator.work(Task().context())


TASKS: dict[str, Callable[[Deployment, str], object]] = {
    "plan": plan,
    "stage": stage,
    "report": report,
    "inbox": inbox,
    "expire": lambda deployment, batch_id: expire_artifacts(0, dry_run=False),
    "expire, dry": lambda deployment, batch_id: expire_artifacts(0, dry_run=True),
    "sweep": lambda deployment, batch_id: sweep_store(1, dry_run=False),
    "reconcile": lambda deployment, batch_id: reconcile_catalog(dry_run=False),
    "watch": lambda deployment, batch_id: end_cancelled_batches(),
}


@pytest.mark.parametrize("name", TASKS)
def test_task_refuses_a_store_that_is_not_mounted(deployment: Deployment, batch_id: str, name: str) -> None:
    with pytest.raises(IdentityError, match="the store misses 2 of the 2 delivered clips") as refused:
        TASKS[name](deployment, batch_id)
    assert RETRY_POLICY.evaluate(refused.value, 1, 4, None).action is RetryAction.FAIL
    assert not deployment.store.root.exists()
    batch = deployment.catalog().batches.get(batch_id)
    assert batch is not None
    assert (batch.priority, batch.state) == (9, BatchState.DONE)
    assert [each.action for each in deployment.catalog().control.actions(batch_id).rows] == [Action.SET_PRIORITY]
    assert sorted(path.name for path in deployment.inbox.iterdir()) in ([], ["more.jsonl"])


def test_night_without_the_store_costs_nothing_once_it_is_back(deployment: Deployment, batch_id: str) -> None:
    with pytest.raises(IdentityError):
        reconcile_catalog(dry_run=False)
    assert last_refusal(deployment.catalog()) is not None
    assert reconcile_catalog(dry_run=True)["rebuilt"] is False
    (deployment.folder / "unmounted").rename(deployment.store.root)
    assert reconcile_catalog(dry_run=False) == {"problems": 0, "rebuilt": False}
    assert last_refusal(deployment.catalog()) is None
    assert deployment.catalog().clips.search().rows[0].state == "done"


def test_catalog_that_is_away_keeps_nobody_from_rendering(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("MAGI2_CATALOG", f"sqlite:///{tmp_path}/file/catalog.sqlite")
    assert plan(deployment, "") == [0]
    assert "without asking whether it is the catalog's" in caplog.text
