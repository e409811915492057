"""Every five minutes: settle batches whose run was cancelled, tell of batches that stand still and of a full disk.

Notices go to the log and, if MAGI2_NOTIFY_CONN_ID names an Airflow connection, to its webhook; each is told once.
"""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG, CronTriggerTimetable, Param, task

from magi2_airflow.base import OWNER, RETRY_POLICY
from magi2_airflow.notifiers import Findings
from magi2_airflow.places import CPU, EVERYWHERE
from magi2_airflow.watch import end_cancelled_batches, find_low_disk, find_stalled

with DAG(
    "magi2_watch",
    dag_display_name="MAGI-2: watch over batches and disk",
    description="MAGI-2 batch renderer: cancelled runs, batches that stand still, disk space",
    doc_md=__doc__,
    schedule=CronTriggerTimetable("*/5 * * * *", timezone="UTC"),
    catchup=False,
    max_active_runs=1,
    dagrun_timeout=timedelta(minutes=30),
    default_args={
        "owner": OWNER,
        "pool": EVERYWHERE,
        "queue": CPU,
        "retries": 1,
        "retry_delay": timedelta(minutes=1),
        "retry_policy": RETRY_POLICY,
        "execution_timeout": timedelta(minutes=10),
    },
    params={
        "stall_minutes": Param(
            60, type="number", minimum=1, title="Standstill", description="Minutes without progress until it is told"
        ),
        "min_free_percent": Param(
            10, type="number", minimum=0, maximum=100, title="Free disk", description="Percent below which it is told"
        ),
    },
    tags=["magi2", "video"],
) as dag:
    task(task_id="cancelled", task_display_name="settle cancelled batches")(end_cancelled_batches)()
    task(task_id="stalled", task_display_name="tell of standstill", on_success_callback=[Findings()])(find_stalled)(
        dag.param("stall_minutes")
    )
    task(task_id="disk", task_display_name="tell of a full disk", on_success_callback=[Findings()])(find_low_disk)(
        dag.param("min_free_percent")
    )
