"""The DAG of the product, whose tasks are tried again after a second instead of half a minute."""

from datetime import timedelta
from pathlib import Path
from runpy import run_path

from airflow.sdk import DAG

dag: DAG = run_path(str(Path(__file__).parents[3] / "dags" / "magi2_render_batch.py"))["dag"]
for task in dag.tasks:
    task.retry_delay = timedelta(seconds=1)
