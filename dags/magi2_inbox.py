"""Start one run of `magi2_render_batch` for each new batch file in the folder MAGI2_INBOX.

A file is taken once it has not changed for ten seconds, with its options in `NAME.options.yaml` if that is there
(`profile`, `priority`, `budget`, `failure_limit`, `on_limit`, `failure_streak`, `on_bad_rows`). Taken files lie in
`claimed/`, unreadable ones in `rejected/` with the reason beside them; `not_taken/` says why other files stay where
they are.
"""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG, CronTriggerTimetable

from magi2_airflow.inbox import InboxOperator

with DAG(
    "magi2_inbox",
    dag_display_name="MAGI-2: inbox",
    description="MAGI-2 batch renderer: starts a run for each new batch file",
    doc_md=__doc__,
    schedule=CronTriggerTimetable("* * * * *", timezone="UTC"),
    catchup=False,
    max_active_runs=1,
    dagrun_timeout=timedelta(minutes=30),
    tags=["magi2", "video"],
) as dag:
    InboxOperator(
        task_id="start_runs",
        task_display_name="start a run for each new batch file",
        trigger_dag_id="magi2_render_batch",
        execution_timeout=timedelta(minutes=10),
        retries=1,
    )
