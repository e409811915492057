"""Render a batch file to clips: plan, then per shard enhance, encode, preview, refine, decode, mux and deliver, then a
report.

Form-triggered, by the API, or by `magi2_inbox`.
"""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG, Asset, XComArg, chain, task_group

from magi2_airflow.form import RENDER_PARAMS
from magi2_airflow.notifiers import BatchFinished, FailureLimitPassed
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

STAGES = (
    EnhanceOperator,
    EncodeOperator,
    PreviewOperator,
    RefineOperator,
    DecodeOperator,
    MuxOperator,
    DeliverOperator,
)
BATCHES = Asset(name="magi2_batches", uri="magi2://batches")

with DAG(
    "magi2_render_batch",
    dag_display_name="MAGI-2: render a batch of clips",
    description="MAGI-2 batch renderer: turns a file of prompts into ten-second clips with sound",
    doc_md=__doc__,
    schedule=None,
    catchup=False,
    max_active_runs=4,
    dagrun_timeout=timedelta(days=7),
    params=RENDER_PARAMS,
    tags=["magi2", "video"],
) as dag:
    plan = PlanOperator(task_id="plan", **{name: dag.param(name) for name in RENDER_PARAMS})
    batch_id = XComArg(plan, key="batch_id")

    @task_group(group_id="shard")
    def render_shard(number: int) -> None:
        """One shard through all stages."""
        told = {"on_success_callback": [FailureLimitPassed()], "on_failure_callback": [FailureLimitPassed()]}
        chain(*(stage(task_id=stage.stage.value, batch_id=batch_id, shard=number, **told) for stage in STAGES))

    # Unlike an XComArg, this is empty and no error when the plan has failed.
    planned = "{{ ti.xcom_pull(task_ids='plan', key='batch_id') or '' }}"
    report = ReportOperator(
        task_id="report",
        batch_id=planned,
        outlets=[BATCHES],
        on_success_callback=[BatchFinished()],
        on_failure_callback=[BatchFinished()],
    )
    render_shard.expand(number=plan.output) >> report
