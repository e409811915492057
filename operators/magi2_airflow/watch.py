"""Looking after running batches: functions for thin tasks, with all imports inside.

What there is to tell people is returned, for `magi2_airflow.notifiers.Findings`.
"""

from __future__ import annotations

import logging
import shutil
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from magi2.artifacts.store import ArtifactStore
    from magi2.catalog import BatchRecord, Catalog

logger = logging.getLogger(__name__)

LIVE = ("queued", "running")
"""States of a run whose batch may still go on."""


def end_cancelled_batches() -> list[str]:
    """Settle batches whose run ended without a word, as one does that is cancelled in Airflow; the ids of those.

    A batch whose report is later than anything else known of it takes that as its end; all others are cancelled, so
    also those of commands whose process on this host is gone. One whose documents cannot be read is named in the log
    and stays as it is.
    """
    from magi2.deployment import Deployment
    from magi2.errors import CorruptedArtifactError, InputError
    from magi2.jobs.by_hand import settle_lost

    deployment = Deployment.from_environment()
    deployment.require_match()
    settled = settle_lost(deployment)
    for batch in deployment.catalog.batches.unfinished():
        state = run_state(batch.dag_id, batch.run_id) if batch.dag_id and batch.run_id else "running"
        if state in LIVE:
            continue
        try:
            _settle(deployment.store, deployment.catalog, batch, state)
            settled.append(batch.batch_id)
        except (CorruptedArtifactError, InputError) as error:
            logger.error("batch %s is not settled: %s", batch.batch_id, error)
    return settled


def find_stalled(minutes: float) -> list[dict[str, Any]]:
    """Notices on running batches in which no clip has begun or finished a stage for so long."""
    from magi2.deployment import Deployment

    catalog = Deployment.from_environment().catalog
    oldest = datetime.now(UTC) - timedelta(minutes=minutes)
    found = []
    for batch_id, moment in catalog.batches.last_activity().items():
        if moment >= oldest:
            catalog.notices.forget("stalled", batch_id)
            continue
        text = f"batch {batch_id}: no progress since {moment:%Y-%m-%d %H:%M} UTC"
        found.append({"kind": "stalled", "subject": batch_id, "text": text, "details": {"since": moment.isoformat()}})
    return found


def find_low_disk(min_free_percent: float) -> list[dict[str, Any]]:
    """A notice if the disk of the store's folder has less free than that; none for a store elsewhere."""
    from magi2.artifacts.local import LocalStore
    from magi2.deployment import Deployment

    deployment = Deployment.from_environment()
    store = deployment.store
    if not isinstance(store, LocalStore):
        logger.info("the store is no folder of this host")
        return []
    disk = shutil.disk_usage(next(folder for folder in (store.root, *store.root.parents) if folder.exists()))
    percent = 100 * disk.free / disk.total
    logger.info("%s: %.1f %% of the disk are free", store.root, percent)
    if percent >= min_free_percent:
        deployment.catalog.notices.forget("disk_low", str(store.root))
        return []
    text = f"{store.root}: {disk.free / 2**30:.1f} GiB free, {percent:.1f} % of the disk"
    details = {"free_bytes": disk.free, "total_bytes": disk.total}
    return [{"kind": "disk_low", "subject": str(store.root), "text": text, "details": details}]


def run_state(dag_id: str, run_id: str) -> str | None:
    """The state of a run in Airflow, or None when it was deleted."""
    from airflow.sdk.api.client import ServerResponseError
    from airflow.sdk.exceptions import AirflowRuntimeError
    from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

    try:
        return RuntimeTaskInstance.get_dagrun_state(dag_id, run_id)
    except AirflowRuntimeError as error:
        if (error.error.detail or {}).get("status_code") != HTTPStatus.NOT_FOUND:
            raise
    except ServerResponseError as error:  # where there is no supervisor in between: `dag.test`
        if error.response.status_code != HTTPStatus.NOT_FOUND:
            raise
    return None


def _settle(store: ArtifactStore, catalog: Catalog, batch: BatchRecord, state: str | None) -> None:
    from magi2.batches.documents import fault_of, load_report
    from magi2.catalog import Action, Actor, BatchState
    from magi2.catalog.documents import read_batch
    from magi2.catalog.merge import merge_batch
    from magi2.errors import CorruptedArtifactError, InfrastructureError

    batch_id = batch.batch_id
    try:
        report = load_report(store, batch_id)
    except InfrastructureError as error:
        raise CorruptedArtifactError(fault_of(store, error)) from error
    if report is not None and report.finished_at >= catalog.batches.last_activity([batch_id])[batch_id]:
        merge_batch(catalog.database, read_batch(store, batch_id))
        logger.info("batch %s: its end is taken from its report", batch_id)
        return
    catalog.batches.mark(batch_id, BatchState.CANCELLED)
    arguments = {"run_id": batch.run_id, "run_state": state or "deleted"}
    catalog.control.note(batch_id, Action.CANCEL, arguments, by=Actor("airflow", "Airflow"))
    logger.info("batch %s is cancelled: its run is %s", batch_id, state or "deleted")
