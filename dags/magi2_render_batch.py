"""Render a batch file to clips: plan, then per shard enhance, encode, preview, refine, decode and mux, then a report.

Form-triggered, by the API, or by `magi2_inbox`.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from airflow.sdk import DAG, Asset, Param, XComArg, chain, task_group

from operators.plan import PlanOperator
from operators.report import ReportOperator
from operators.stages import (
    DecodeOperator,
    EncodeOperator,
    EnhanceOperator,
    MuxOperator,
    PreviewOperator,
    RefineOperator,
)

STAGES = (EnhanceOperator, EncodeOperator, PreviewOperator, RefineOperator, DecodeOperator, MuxOperator)
PROFILES = sorted(path.stem for path in Path(__file__).parents[1].glob("configs/profiles/[!_]*.yaml"))
BATCHES = Asset(name="magi2_batches", uri="magi2://batches")

PARAMS = {
    "batch": Param(
        None,
        type=["string", "null"],
        title="Batch file",
        description_md="Path or `file://` address of a `.jsonl`, `.csv` or `.json` file of prompts",
    ),
    "profile": Param("1080p", type="string", title="Profile", examples=PROFILES, description="For rows that name none"),
    "failure_limit": Param(
        0, type="integer", minimum=0, title="Failure limit", description="Clips that may fail before the run does"
    ),
    "on_bad_rows": Param(
        "refuse",
        type="string",
        enum=["refuse", "skip"],
        title="Bad rows",
        values_display={"refuse": "Refuse the whole file", "skip": "Skip them and count them as failed"},
    ),
    "overrides": Param(
        [],
        type=["array", "null"],
        items={"type": "string"},
        title="Overrides",
        description_md="Changes to every profile, one a line, such as `refiner.steps=8`",
        section="More",
    ),
    "force": Param(
        [],
        type=["array", "null"],
        examples=[stage.stage.value for stage in STAGES],
        title="Force",
        description="Stages to compute again and compare with what is stored",
        section="More",
    ),
    "images": Param(
        None,
        type=["string", "null"],
        title="Image folder",
        description="Where relative paths in the file start; empty: at the file's own folder",
        section="More",
    ),
    "rerun_of": Param(
        None,
        type=["string", "null"],
        title="Batch id",
        description="An earlier batch to run again instead of a file",
        section="Run again",
    ),
    "only": Param(
        [],
        type=["array", "null"],
        items={"type": "string"},
        title="Clips",
        description_md="Ids of its clips, one a line, or `failed`; empty: all",
        section="Run again",
    ),
}

with DAG(
    "magi2_render_batch",
    dag_display_name="Render a batch",
    description="Turns a file of prompts into ten-second clips with sound",
    doc_md=__doc__,
    schedule=None,
    catchup=False,
    max_active_runs=4,
    dagrun_timeout=timedelta(days=7),
    params=PARAMS,
    tags=["magi2"],
) as dag:
    plan = PlanOperator(task_id="plan", **{name: dag.param(name) for name in PARAMS})
    batch_id = XComArg(plan, key="batch_id")

    @task_group(group_id="shard")
    def render_shard(number: int) -> None:
        """One shard through all stages."""
        chain(*(stage(task_id=stage.stage.value, batch_id=batch_id, shard=number) for stage in STAGES))

    # Unlike an XComArg, this is empty and no error when the plan has failed.
    planned = "{{ ti.xcom_pull(task_ids='plan', key='batch_id') or '' }}"
    report = ReportOperator(task_id="report", batch_id=planned, outlets=[BATCHES])
    render_shard.expand(number=plan.output) >> report
