"""What all operators promise: places, retries, links, keyword-only arguments, and how they are announced."""

from __future__ import annotations

import importlib
import subprocess
import sys
from datetime import timedelta
from importlib.metadata import entry_points
from types import SimpleNamespace

import pytest
from airflow.sdk import RetryAction

from magi2 import errors
from magi2.types import StageName
from magi2_airflow.base import RETRY_POLICY, StageOperator
from magi2_airflow.links import ClipsLink, LogLink, ManifestLink, ReportLink
from magi2_airflow.plan import PlanOperator
from magi2_airflow.report import ReportOperator
from magi2_airflow.stages import (
    DecodeOperator,
    DeliverOperator,
    EncodeOperator,
    EnhanceOperator,
    MuxOperator,
    PreviewOperator,
    RefineOperator,
)

PLACES = {
    EnhanceOperator: "magi2_cpu",
    EncodeOperator: "magi2_gpu1",
    PreviewOperator: "magi2_gpu8",
    RefineOperator: "magi2_gpu8",
    DecodeOperator: "magi2_gpu1",
    MuxOperator: "magi2_cpu",
    DeliverOperator: "magi2_cpu",
}


def test_there_is_one_operator_for_each_stage_that_runs_by_itself() -> None:
    assert [operator.stage for operator in PLACES] == list(StageName)


@pytest.mark.parametrize(("kind", "place"), PLACES.items())
def test_stage_runs_in_its_pool_and_queue_with_retries_and_a_limit(kind: type[StageOperator], place: str) -> None:
    operator = kind(task_id="it", batch_id="b", shard=0)
    assert (operator.pool, operator.queue) == (place, place)
    assert operator.retries == 3
    assert operator.retry_policy is RETRY_POLICY
    assert operator.retry_exponential_backoff > 1
    assert operator.retry_delay < operator.max_retry_delay
    assert timedelta(hours=1) < operator.execution_timeout <= timedelta(days=1)
    assert operator.template_fields == ("batch_id", "shard", "layout")
    assert [link.name for link in operator.operator_extra_links] == ["Clips", "Manifest", "Log"]


def test_any_default_can_be_overridden() -> None:
    operator = PreviewOperator(task_id="it", batch_id="b", shard=0, pool="other", queue="far", retries=0)
    assert (operator.pool, operator.queue, operator.retries) == ("other", "far", 0)


@pytest.mark.parametrize("kind", [*PLACES, PlanOperator, ReportOperator])
def test_arguments_are_keyword_only(kind: type[StageOperator]) -> None:
    with pytest.raises(Exception, match="keyword"):
        kind("task_id", "b", 0)  # type: ignore[call-arg,misc]


@pytest.mark.parametrize(
    ("error", "action"),
    [
        (errors.InputError("x"), RetryAction.FAIL),
        (errors.ConfigError("x"), RetryAction.FAIL),
        (errors.PromptTooLongError("x"), RetryAction.FAIL),
        (errors.CheckpointError("x"), RetryAction.FAIL),
        (errors.OutOfMemoryError("x"), RetryAction.FAIL),
        (errors.Magi2Error("x"), RetryAction.FAIL),
        (errors.InfrastructureError("x"), RetryAction.RETRY),
        (errors.CorruptedArtifactError("x"), RetryAction.RETRY),
        (errors.CancelledError("x"), RetryAction.RETRY),
        (KeyError("x"), RetryAction.DEFAULT),
    ],
)
def test_class_of_the_error_decides_over_a_retry(error: Exception, action: RetryAction) -> None:
    assert RETRY_POLICY.evaluate(error, try_number=1, max_tries=3).action is action


def test_every_retryable_class_is_retried_and_no_other() -> None:
    def classes(root: type[errors.Magi2Error]) -> list[type[errors.Magi2Error]]:
        return [root, *(each for kind in root.__subclasses__() for each in classes(kind))]

    for kind in classes(errors.Magi2Error):
        if kind.__module__ == errors.__name__ and not issubclass(kind, errors.CancelledError):
            decision = RETRY_POLICY.evaluate(kind("x"), try_number=1, max_tries=3)
            assert (decision.action is RetryAction.RETRY) is kind.retryable, kind


def test_links_lead_to_the_shard_the_document_and_this_attempt() -> None:
    operator = PreviewOperator(task_id="preview", batch_id="b1", shard=3)
    key = SimpleNamespace(dag_id="d", run_id="manual__1+00:00", task_id="shard.preview", map_index=3, try_number=2)
    assert ClipsLink().get_link(operator, ti_key=key) == "/renders/batches/b1"
    assert ManifestLink().get_link(operator, ti_key=key).endswith("/batches/b1/results/3.preview.json")
    log = LogLink().get_link(operator, ti_key=key)
    assert log == "/dags/d/runs/manual__1%2B00%3A00/tasks/shard.preview/mapped/3?try_number=2"


@pytest.mark.parametrize("index", [None, -1])
def test_log_link_of_an_unmapped_task_has_no_index(index: int | None) -> None:
    key = SimpleNamespace(dag_id="d", run_id="r", task_id="report", map_index=index, try_number=1)
    assert (
        LogLink().get_link(ReportOperator(task_id="report", batch_id="b"), ti_key=key).endswith("/report?try_number=1")
    )


def test_links_without_a_batch_are_hidden() -> None:
    plan = PlanOperator(task_id="plan", batch="x.jsonl")
    assert ClipsLink().get_link(plan, ti_key=None) == ""
    assert ReportLink().get_link(ReportOperator(task_id="r", batch_id=""), ti_key=None) == ""


def test_provider_is_announced_with_links_that_can_be_imported() -> None:
    (found,) = [
        entry for entry in entry_points(group="apache_airflow_provider") if entry.module.startswith("magi2_airflow")
    ]
    info = found.load()()
    assert info["package-name"] == "magi2"
    for path in info["extra-links"]:
        module, _, name = path.rpartition(".")
        assert hasattr(importlib.import_module(module), name)
    used = {
        type(link).__name__ for kind in (*PLACES, PlanOperator, ReportOperator) for link in kind.operator_extra_links
    }
    assert used == {path.rpartition(".")[2] for path in info["extra-links"]}


def test_operators_import_without_torch() -> None:
    modules = ["base", "links", "stages", "plan", "report", "inbox", "maintenance", "provider_info"]
    code = f"import sys, {', '.join(f'magi2_airflow.{name}' for name in modules)}; "
    code += "assert not {'torch', 'triton', 'transformers'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
