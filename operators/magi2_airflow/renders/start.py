"""Starting a batch from the page: rows that somebody pasted or uploaded, looked at first, then given to a run."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from airflow.api_fastapi.core_api.security import GetUserDep
from fastapi import APIRouter, HTTPException

from magi2.batches.dry_run import dry_run
from magi2.batches.inline_rows import InlineRows
from magi2.batches.input_roots import deployment_roots
from magi2.batches.intake import plan_location
from magi2.batches.plan import BatchOptions
from magi2.batches.rerun import DAG_ID
from magi2.batches.rows import Row
from magi2.batches.spread import Spread
from magi2.checkpoints.fit import usual_profile
from magi2.config.load import profile_names
from magi2.errors import InputError
from magi2_airflow.renders.actions import STARTS
from magi2_airflow.renders.airflow_api import AsCaller
from magi2_airflow.renders.contract import FirstRow, Looked, Planned, Refusal, Started, StartForm
from magi2_airflow.renders.deployment import PageDeployment, Site
from magi2_airflow.renders.links import run_path
from magi2_airflow.renders.requests import StartRequest

FIRST_ROWS = 5
BAD_ROWS = 20
MAX_TEXT = 200

router = APIRouter(prefix="/api/start")


@router.get("")
def form(site: Site) -> StartForm:
    """What a batch can be started with."""
    return StartForm(profiles=list(profile_names(site.settings.configs)), profile=usual_profile(site.settings))


@router.post("/look", dependencies=STARTS)
def look(site: Site, body: StartRequest) -> Looked:
    """What the rows would do; nothing is started. Where the weights are not, as on a server alone, how they read."""
    rows = _rows(site, body)
    if site.settings.ckpt_root is not None:
        return _planned(site, body, len(rows))
    bad = [Refusal(row=row.number, reason=row.problem) for row in rows if row.problem]
    first = [FirstRow(text=_text(row)) for row in rows if not row.problem][:FIRST_ROWS]
    return Looked(rows=len(rows), first=first, bad=bad[:BAD_ROWS], bad_rows=len(bad), plan=None)


@router.post("", dependencies=STARTS)
async def start(site: Site, user: GetUserDep, airflow: AsCaller, body: StartRequest) -> Started:
    """Start a run of our DAG with the rows."""
    _rows(site, body)
    conf = {"rows": body.rows, "profile": body.profile, "name": body.name or None, "matrix": body.matrix}
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


def _planned(site: PageDeployment, body: StartRequest, rows: int) -> Looked:
    """What a run with these rows would do. Raises HTTPException 400 where none could be planned."""
    with TemporaryDirectory(prefix="magi2-look-") as kept:
        try:
            plan = plan_location(
                InlineRows.of(body.rows),
                settings=site.settings,
                store=site.store,
                profile=body.profile,
                name=body.name or None,
                roots=deployment_roots(site.settings, kept=Path(kept), has_file=False),
                options=BatchOptions(on_bad_rows="skip"),
                spread=Spread(matrix=body.matrix),
            )
        except InputError as error:
            raise HTTPException(400, str(error)) from error
    told = dry_run(plan, site.store, price=site.price)
    bad = [Refusal(row=row.number, reason=row.reason) for row in plan.refused]
    return Looked(
        rows=rows,
        first=[FirstRow(text=f"{each.prompt[:MAX_TEXT]} ({each.profile}, seed {each.seed})") for each in told.first],
        bad=bad[:BAD_ROWS],
        bad_rows=len(bad),
        plan=Planned(
            clips=told.clips,
            finished=told.cached,
            equal=list(told.equal[:BAD_ROWS]),
            accelerator_seconds=told.accelerator_seconds,
            unmeasured_stages=list(told.unmeasured_stages),
            cost=told.cost,
            currency=told.currency,
        ),
    )


def _text(row: Row) -> str:
    """What a row renders, cut short."""
    return " ".join(str(row.values.get("prompt") or row.values.get("prompt_file") or "").split())[:MAX_TEXT]
