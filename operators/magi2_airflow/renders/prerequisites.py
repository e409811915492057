"""What Airflow lacks: told to pages in sentences, to tasks by name."""

from __future__ import annotations

from fastapi import APIRouter

from magi2_airflow.renders.airflow_check import missing_pools, queues_without_worker
from magi2_airflow.renders.contract import AirflowState, Ready
from magi2_airflow.renders.deployment import Site

router = APIRouter(prefix="/api")
open_router = APIRouter()


@router.get("/airflow")
def airflow_state(site: Site) -> AirflowState:
    """What runs would wait for in silence."""
    return AirflowState(problems=site.airflow_check.problems())


@open_router.get("/ready")
def ready() -> Ready:
    """Whether stages of a batch can run at all."""
    return Ready(missing_pools=missing_pools(), queues_without_worker=queues_without_worker())
