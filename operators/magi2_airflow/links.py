"""Buttons on a task's page: to the clips it worked on, to what the store says of them, and to its log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from airflow.sdk import BaseOperatorLink

from magi2_airflow.mount import MOUNT

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator


class ClipsLink(BaseOperatorLink):
    """The clips of the task's batch."""

    name = "Clips"

    def get_link(self, operator: BaseOperator, *, ti_key: Any) -> str:
        batch_id = getattr(operator, "batch_id", None)
        return f"{MOUNT}/batches/{batch_id}" if batch_id else ""


class ManifestLink(BaseOperatorLink):
    """The document that lists what a stage made of a shard, with the key of every artifact's manifest."""

    name = "Manifest"

    def get_link(self, operator: BaseOperator, *, ti_key: Any) -> str:
        values = [getattr(operator, name, None) for name in ("batch_id", "shard", "stage")]
        if None in values:
            return ""
        return "{}/documents/batches/{}/results/{}.{}.json".format(MOUNT, *values)


class ReportLink(BaseOperatorLink):
    """The batch's report."""

    name = "Report"

    def get_link(self, operator: BaseOperator, *, ti_key: Any) -> str:
        batch_id = getattr(operator, "batch_id", None)
        return f"{MOUNT}/documents/batches/{batch_id}/report.md" if batch_id else ""


class LogLink(BaseOperatorLink):
    """The log of this attempt."""

    name = "Log"

    def get_link(self, operator: BaseOperator, *, ti_key: Any) -> str:
        run, task = quote(ti_key.run_id, safe=""), quote(ti_key.task_id, safe="")
        mapped = "" if ti_key.map_index in (None, -1) else f"/mapped/{ti_key.map_index}"
        return f"/dags/{ti_key.dag_id}/runs/{run}/tasks/{task}{mapped}?try_number={ti_key.try_number}"
