"""Telling people, each thing once: to the log, and to a webhook if the deployment names one.

The webhook is an Airflow connection, named by MAGI2_NOTIFY_CONN_ID: `host` is the whole https:// address and
`password`, if there is one, its bearer token. It gets a POST with `{"kind", "subject", "text", "details"}`. Neither the
address nor the token is ever logged.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass, field
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit, urlunsplit

from airflow.sdk import BaseHook, BaseNotifier, Context

from magi2.errors import Magi2Error

if TYPE_CHECKING:
    from magi2.batches.schema import ReportDocument
    from magi2.catalog import Catalog
    from magi2.deployment import Deployment

logger = logging.getLogger(__name__)

TIMEOUT_S = 10.0


@dataclass(frozen=True)
class Notice:
    """Something to tell of a `subject`, a batch's id or another name. It is told once, unless it ended in between."""

    kind: str
    subject: str
    text: str
    details: Mapping[str, Any] = field(default_factory=dict)


class Magi2Notifier(BaseNotifier):
    """Base of all notifiers here: tells those notices that people have not been told of."""

    def notices(self, context: Context) -> Iterable[Notice]:
        """What there is to tell. May raise a Magi2Error, which is logged."""
        raise NotImplementedError

    def notify(self, context: Context) -> None:
        """Called by Airflow; see `notices`."""
        from magi2.deployment import Deployment

        deployment = Deployment.from_environment()
        for notice in self.notices(context):
            tell(notice, deployment)


class BatchFinished(Magi2Notifier):
    """For the report's task: how a batch ended, and that too many of its clips failed if nobody was told before."""

    def notices(self, context: Context) -> Iterable[Notice]:
        ti, run = context["ti"], context["dag_run"]
        task: Any = ti.task
        if not task.batch_id:
            text = f"run {run.run_id} ended before its batch was planned"
            return [Notice("batch_finished", f"{run.dag_id}/{run.run_id}", text)]
        report = _report(task.batch_id)
        subject = f"{task.batch_id}/{ti.try_number}"  # one that is run again ends again
        if report is None:
            return [Notice("batch_finished", subject, f"batch {task.batch_id} ended without a report")]
        found = [Notice("batch_finished", subject, _summary(report), _figures(report))]
        if not report.is_within_limit:
            found.append(_too_many(task.batch_id, len(report.failed), report.failure_limit))
        return found


class FailureLimitPassed(Magi2Notifier):
    """For a stage's task: more clips failed for good than the batch allows, or equal failures in a row paused it."""

    def notices(self, context: Context) -> Iterable[Notice]:
        from magi2.deployment import Deployment

        task: Any = context["ti"].task
        deployment = Deployment.from_environment()
        catalog = deployment.catalog
        batch = catalog.batches.get(task.batch_id)
        if batch is None:
            return []
        # A shard whose task has ended without results is lost; those of other tasks may be tried again.
        lost = int(task.shard) if context.get("exception") is not None else None
        failed = catalog.batches.lost_clips(task.batch_id, lost_shard=lost)
        found = streak_notices(task.batch_id, deployment)
        return [
            *found,
            *([_too_many(batch.batch_id, failed, batch.failure_limit)] if failed > batch.failure_limit else []),
        ]


class Findings(Magi2Notifier):
    """For a task that looks after the deployment: tells what it found, which it returned as a list of notices."""

    def notices(self, context: Context) -> Iterable[Notice]:
        ti = context["ti"]
        return [Notice(**found) for found in ti.xcom_pull(task_ids=ti.task_id) or ()]


def streak_notices(batch_id: str, deployment: Deployment) -> list[Notice]:
    """That a batch is paused because of equal failures, if it is; each pause is told. Raises as `Control` does."""
    from magi2.catalog.streak import Streak

    catalog = deployment.catalog
    batch, pause = catalog.batches.get(batch_id), catalog.control.last_pause(batch_id)
    streak = Streak.of(pause.arguments) if pause else None
    if batch is None or not batch.is_paused or pause is None or streak is None:
        return []
    text = f"batch {batch.name} ({batch_id}) is paused: {streak}; look at it and resume it"
    return [Notice("failure_streak", f"{batch_id}/{pause.at.isoformat()}", text, streak.to_json())]


def tell(notice: Notice, deployment: Deployment) -> None:
    """Tell a notice unless that was done before. One that the webhook did not take is told again when next found."""
    catalog, settings = _catalog(deployment), deployment.settings
    if catalog is not None and not catalog.notices.is_first(notice.kind, notice.subject):
        return
    logger.warning("notice %s: %s", notice.kind, notice.text)
    if settings.notify_conn_id and not _post(notice, settings.notify_conn_id) and catalog is not None:
        catalog.notices.forget(notice.kind, notice.subject)


def _catalog(deployment: Deployment) -> Catalog | None:
    try:
        return deployment.catalog
    except Magi2Error as error:
        logger.warning("cannot know what people were told of: %s", error)
        return None


def _post(notice: Notice, conn_id: str) -> bool:
    """Whether the webhook took the notice."""
    from airflow.sdk.exceptions import AirflowException

    try:
        connection = BaseHook.get_connection(conn_id)
        status = _send(connection.host or "", connection.password, json.dumps(asdict(notice)).encode())
    except (AirflowException, OSError, HTTPException, ValueError) as error:
        logger.warning("connection %s did not take notice %s: %s", conn_id, notice.kind, type(error).__name__)
        return False
    if not 200 <= status < 300:
        logger.warning("connection %s did not take notice %s: status %d", conn_id, notice.kind, status)
    return 200 <= status < 300


def _send(address: str, token: str | None, body: bytes) -> int:
    """The status of a POST. By the standard library, since others log addresses, follow redirects, or both."""
    parts = urlsplit(address)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("not an http address")
    kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
    headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {token}"} if token else {})}
    with closing(kind(parts.netloc, timeout=TIMEOUT_S)) as connection:
        connection.request("POST", urlunsplit(("", "", parts.path or "/", parts.query, "")), body, headers)
        return connection.getresponse().status


def _report(batch_id: str) -> ReportDocument | None:
    from magi2.batches.documents import load_report
    from magi2.deployment import Deployment

    return load_report(Deployment.from_environment().store, batch_id)


def _summary(report: ReportDocument) -> str:
    from magi2.config.price import amount_text

    words = {
        "clips_done": "done",
        "clips_flagged": "flagged",
        "clips_failed": "failed",
        "clips_over_budget": "skipped for lack of budget",
        "clips_cancelled": "cancelled",
        "clips_stopped": "left out when it stopped",
    }
    counts = ", ".join(f"{report.counts[name]} {word}" for name, word in words.items() if report.counts.get(name))
    reused = f"; {report.counts['clips_reused']} made before this batch" if report.counts["clips_reused"] else ""
    cost = "" if report.cost is None else f"; {amount_text(report.cost, report.currency or '')}"
    return f"batch {report.name} ({report.batch_id}) has ended: {counts or 'no clips'}{reused}{cost}"


def _figures(report: ReportDocument) -> dict[str, Any]:
    names = ("run_id", "failure_limit", "accelerator_seconds", "cost", "budget", "currency")
    counts = {name: value for name, value in report.counts.items() if not name.startswith("stages_")}
    return {name: getattr(report, name) for name in names} | counts


def _too_many(batch_id: str, failed: float, limit: int) -> Notice:
    text = f"batch {batch_id}: {failed} failed of at most {limit}"
    return Notice("failure_limit", batch_id, text, {"clips_failed": failed, "failure_limit": limit})
