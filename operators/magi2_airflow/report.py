"""The last task of a batch's run: what became of every clip, and whether that is good enough."""

from __future__ import annotations

import logging
from typing import Any

from airflow.sdk import Context
from airflow.sdk.exceptions import AirflowFailException

from magi2_airflow.base import Magi2Operator
from magi2_airflow.links import ClipsLink, ReportLink

logger = logging.getLogger(__name__)


class ReportOperator(Magi2Operator):
    """Write the batch's report; fails when more clips failed than the batch allows, or somebody cancelled it.

    Returns where the report is and its counts, which also go with the event of each of its assets.
    """

    template_fields = ("batch_id",)
    operator_extra_links = (ReportLink(), ClipsLink())

    def __init__(self, *, batch_id: str, **kwargs: Any) -> None:
        super().__init__(**{"trigger_rule": "all_done", **kwargs})
        self.batch_id = batch_id

    def work(self, context: Context) -> dict[str, Any]:
        from magi2.deployment import Deployment
        from magi2.jobs.recorder import CatalogRecorder
        from magi2.report.build import build_report, save_report

        if not self.batch_id:
            raise AirflowFailException("there is nothing to report: the batch was not planned, see the plan task")
        deployment = Deployment.from_environment()
        patience = self.store_wait(deployment)
        store, recorder = patience.store_of(self.batch_id), CatalogRecorder.of(deployment)
        cost, made = recorder.cost(self.batch_id, deployment.price), recorder.made(self.batch_id)
        begun = context["dag_run"].start_date
        known: dict[str, Any] = {"started_at": begun, "cost": cost, "made": made, "thresholds": deployment.thresholds}
        known["failure_limit"] = recorder.failure_limit(self.batch_id)
        report = patience(lambda: build_report(store, self.batch_id, **known))
        address = patience(lambda: save_report(report, store))
        summary: dict[str, Any] = {"batch_id": self.batch_id, "report": address, **report.counts}
        recorder.on_report(report)
        for clip in report.failed:
            logger.error("%s failed in %s: %s", clip.clip_id or clip.names[0], clip.stage, clip.reason)
        for group in report.failure_groups:
            logger.error("failures: %s", group)
        logger.info("%s", ", ".join(f"{name}={value}" for name, value in summary.items()))
        if report.cancelled:
            raise AirflowFailException(f"the batch was cancelled before {len(report.cancelled)} clips were rendered")
        if not report.is_within_limit:
            told = f"{len(report.failed)} clips failed, the batch allows {report.failure_limit}: {summary['report']}"
            raise AirflowFailException(told + (" (it was stopped)" if report.failure_count.is_stopped else ""))
        for asset in self.outlets:
            context["outlet_events"][asset].extra = summary
        return summary
