"""Keep the store small and the catalog true: expire intermediates, sweep leftovers, reconcile catalog and store.

Nothing that an undelivered clip needs is removed. The tasks go one after the other, and none waits for another to
succeed; the run fails when one of them does. Trigger it with "Dry run" to see what would go.
"""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG, CronTriggerTimetable, Param, task

from magi2_airflow.base import OWNER, RETRY_POLICY
from magi2_airflow.maintenance import expire_artifacts, reconcile_catalog, sweep_store
from magi2_airflow.places import CPU, EVERYWHERE

with DAG(
    "magi2_maintenance",
    dag_display_name="MAGI-2: maintenance of store and catalog",
    description="MAGI-2 batch renderer: retention of artifacts, leftovers, catalog check",
    doc_md=__doc__,
    schedule=CronTriggerTimetable("30 3 * * *", timezone="UTC"),
    catchup=False,
    max_active_runs=1,
    max_active_tasks=1,
    dagrun_timeout=timedelta(hours=12),
    default_args={
        "owner": OWNER,
        "pool": EVERYWHERE,
        "queue": CPU,
        "retries": 2,
        "retry_delay": timedelta(minutes=5),
        "retry_policy": RETRY_POLICY,
        "execution_timeout": timedelta(hours=4),
    },
    params={
        "dry_run": Param(False, type="boolean", title="Dry run", description="Only say what would happen"),
        "decode_days": Param(
            7, type="number", minimum=0, title="Intermediates", description="Days after delivery that they are kept"
        ),
        "sweep_hours": Param(48, type="number", minimum=1, title="Leftovers", description="Hours until they are swept"),
    },
    tags=["magi2", "video"],
) as dag:
    dry_run = dag.param("dry_run")
    task(task_id="expire", task_display_name="expire old artifacts", priority_weight=3)(expire_artifacts)(
        dag.param("decode_days"), dry_run=dry_run
    )
    task(task_id="sweep", task_display_name="sweep leftovers", priority_weight=2)(sweep_store)(
        dag.param("sweep_hours"), dry_run=dry_run
    )
    task(task_id="reconcile", task_display_name="reconcile catalog and store", priority_weight=1)(reconcile_catalog)(
        dry_run=dry_run
    )
