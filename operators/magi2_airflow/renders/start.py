"""Starting a batch from the page: rows that somebody pasted or uploaded, looked at first, then given to a run."""

from __future__ import annotations

from airflow.api_fastapi.core_api.security import GetUserDep
from fastapi import APIRouter, HTTPException

from magi2.batches.inline_rows import InlineRows
from magi2.batches.rerun import DAG_ID
from magi2.batches.rows import Row
from magi2.checkpoints.fit import usual_profile
from magi2.config.load import profile_names
from magi2.errors import InputError
from magi2_airflow.renders.actions import STARTS
from magi2_airflow.renders.airflow_api import AsCaller
from magi2_airflow.renders.contract import FirstRow, Looked, Refusal, Started, StartForm
from magi2_airflow.renders.deployment import PageDeployment, Site
from magi2_airflow.renders.links import run_path
from magi2_airflow.renders.requests import StartRequest

FIRST_ROWS = 5
BAD_ROWS = 20

router = APIRouter(prefix="/api/start")


@router.get("")
def form(site: Site) -> StartForm:
    """What a batch can be started with."""
    return StartForm(profiles=list(profile_names(site.settings.configs)), profile=usual_profile(site.settings))


@router.post("/look", dependencies=STARTS)
def look(site: Site, body: StartRequest) -> Looked:
    """How the rows read; nothing is started, and no file that they name is opened."""
    rows = _rows(site, body)
    bad = [Refusal(row=row.number, reason=row.problem) for row in rows if row.problem]
    first = [FirstRow(row=row.number, text=_text(row)) for row in rows if not row.problem][:FIRST_ROWS]
    return Looked(rows=len(rows), first=first, bad=bad[:BAD_ROWS], bad_rows=len(bad))


@router.post("", dependencies=STARTS)
async def start(site: Site, user: GetUserDep, airflow: AsCaller, body: StartRequest) -> Started:
    """Start a run of our DAG with the rows."""
    _rows(site, body)
    conf = {"rows": body.rows, "profile": body.profile, "name": body.name or None}
    run_id = await airflow.trigger(DAG_ID, conf, f"started on the page by {user.get_name()}")
    return Started(run_id=run_id, run_path=run_path(DAG_ID, run_id))


def _rows(site: PageDeployment, body: StartRequest) -> list[Row]:
    """The rows. Raises HTTPException 400 for what no run could be planned from."""
    if body.profile not in profile_names(site.settings.configs):
        raise HTTPException(400, f"there is no profile {body.profile}")
    try:
        return InlineRows.of(body.rows).read()
    except InputError as error:
        raise HTTPException(400, str(error)) from error


def _text(row: Row) -> str:
    """What a row renders, cut short."""
    return " ".join(str(row.values.get("prompt") or row.values.get("prompt_file") or "").split())[:200]
