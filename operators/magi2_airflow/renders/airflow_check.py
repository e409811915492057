"""What this Airflow lacks of what our DAGs need, as its API server sees it: it has the database and the broker."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from airflow.configuration import conf
from airflow.models.dag import DagModel
from airflow.models.dagrun import DagRun
from airflow.models.pool import Pool
from airflow.utils.state import DagRunState, TaskInstanceState

from magi2.batches.rerun import DAG_ID
from magi2.catalog import Catalog
from magi2.catalog.overview import Overview
from magi2_airflow.places import PLACES
from magi2_airflow.renders.store_check import FRESH_S

logger = logging.getLogger(__name__)

T = TypeVar("T")

BROKER_S = 2.0
"""How long workers have to answer."""


class Recent(Generic[T]):
    """What `find` found: asked again at most once in `FRESH_S`, by one caller, for whom nobody waits but at first."""

    def __init__(self, find: Callable[[], T], clock: Callable[[], float] = time.monotonic) -> None:
        self._find = find
        self._clock = clock
        self._lock = threading.Lock()
        self._found: tuple[float, T] | None = None

    def __call__(self) -> T:
        found = self._found
        if (found is None or self._clock() - found[0] >= FRESH_S) and self._lock.acquire(blocking=found is None):
            try:
                if self._found is found:
                    self._found = self._clock(), self._find()
            finally:
                self._lock.release()
        assert self._found is not None, "whoever comes first waits"
        return self._found[1]


class AirflowCheck:
    """One sentence for each thing that is missing."""

    def __init__(self, catalog: Catalog) -> None:
        self._overview = Overview(catalog.database)
        self.problems = Recent(lambda: list(self._sentences()))

    def _sentences(self) -> Iterator[str]:
        if pools := missing_pools():
            yield f"Airflow has no pool {', '.join(pools)}: its tasks wait for ever (magi2 airflow setup creates them)"
        if queues := queues_without_worker():
            yield f"no worker serves the queue {', '.join(queues)}: tasks in it wait until one is started"
        if waiting := _waiting_runs():
            yield f"the DAG {DAG_ID} is paused: {waiting} of its runs wait until somebody switches it on"
        for run_id in _planned_runs():
            if self._overview.batch_of_run(DAG_ID, run_id) is None:
                yield (
                    f"run {run_id} was planned, and this page's catalog has no batch of it: its worker does not reach "
                    "this catalog, or uses another one (magi2 catalog rebuild enters what the store has)"
                )


def missing_pools() -> list[str]:
    """Pools of our stages that Airflow does not have."""
    return _missing_pools()


def queues_without_worker() -> list[str]:
    """Queues of ours that no Celery worker serves; none with executors that know no queues, or start workers."""
    return _idle_queues()


def _find_missing_pools() -> list[str]:
    known = {pool.pool for pool in Pool.get_pools()}
    return [pool for pool in PLACES if pool not in known]


def _find_idle_queues() -> list[str]:
    if "CeleryExecutor" not in conf.get("core", "executor"):
        return []
    from airflow.providers.celery.executors.celery_executor import app

    with app.connection_for_write() as connection:
        try:
            connection.ensure_connection(max_retries=1, timeout=BROKER_S, reraise_as_library_errors=False)
            answers = app.control.inspect(timeout=BROKER_S, connection=connection).active_queues() or {}
        except (*connection.recoverable_connection_errors, OSError) as error:
            logger.error("the broker does not say which queues are served: %s", error)
            return []
    served = {queue["name"] for queues in answers.values() for queue in queues}
    return [queue for queue in PLACES if queue not in served]


_missing_pools, _idle_queues = Recent(_find_missing_pools), Recent(_find_idle_queues)


def _waiting_runs() -> int:
    """Runs that wait until somebody switches their DAG on."""
    dag = DagModel.get_dagmodel(DAG_ID)
    return len(DagRun.find(dag_id=DAG_ID, state=DagRunState.QUEUED)) if dag is not None and dag.is_paused else 0


def _planned_runs() -> list[str]:
    """Ids of the runs that go on and whose batch was planned."""
    going_on = [run.run_id for run in DagRun.find(dag_id=DAG_ID, state=DagRunState.RUNNING)]
    plans = ((run_id, DagRun.fetch_task_instance(DAG_ID, run_id, "plan")) for run_id in going_on)
    return [run_id for run_id, plan in plans if plan is not None and plan.state == TaskInstanceState.SUCCESS]
