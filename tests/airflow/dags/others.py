"""The other DAGs of the product, as they are."""

from pathlib import Path
from runpy import run_path

from airflow.sdk import DAG

PRODUCT = Path(__file__).parents[3] / "dags"
inbox: DAG = run_path(str(PRODUCT / "magi2_inbox.py"))["dag"]
maintenance: DAG = run_path(str(PRODUCT / "magi2_maintenance.py"))["dag"]
