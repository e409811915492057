"""What there is to see of batches: lists, numbers, failures, actions, and the batch of a run."""

from __future__ import annotations

from itertools import islice
from typing import Annotated, get_args

from airflow.api_fastapi.core_api.security import GetUserDep
from fastapi import APIRouter, HTTPException, Query

from magi2.catalog import BatchState
from magi2_airflow.renders import answers
from magi2_airflow.renders.contract import (
    ActionRecord,
    Actions,
    Batch,
    BatchPage,
    Facet,
    Facets,
    FailureGroup,
    FailureGroups,
    Lookup,
    Refusal,
    StageText,
    Viewer,
)
from magi2_airflow.renders.deployment import BatchId, PageDeployment, Site
from magi2_airflow.renders.guard import is_allowed
from magi2_airflow.renders.links import Root

ACTIONS = 100
REFUSALS = 50
TASK_GROUP = "shard."

Name = Annotated[str, Query(max_length=250)]
Offset = Annotated[int, Query(ge=0, le=10_000_000)]

router = APIRouter(prefix="/api")


@router.get("/me")
def me(user: GetUserDep) -> Viewer:
    """Who asks, and whether pages should offer actions to them."""
    can_act = is_allowed(user, "POST") and is_allowed(user, "PUT")
    return Viewer(id=str(user.get_id()), name=user.get_name(), can_act=can_act)


@router.get("/batches")
def list_batches(
    site: Site,
    state: BatchState | None = None,
    text: Annotated[str | None, Query(max_length=1000)] = None,
    offset: Offset = 0,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
) -> BatchPage:
    """Batches, the newest first."""
    page = site.catalog.batches.search(state=state, text=text, offset=offset, limit=limit)
    return BatchPage(batches=answers.batches(site, page.rows), total=page.total, offset=offset)


@router.get("/batches/{batch_id}")
def get_batch(site: Site, batch_id: BatchId) -> Batch:
    """One batch."""
    return one_batch(site, batch_id)


@router.get("/batches/{batch_id}/facets")
def facets(site: Site, batch_id: BatchId) -> Facets:
    """What the clips can be filtered by."""
    site.batch(batch_id)
    site.quality.bring_up_to_date(batch_id)
    found = site.pages.facets(batch_id)
    lists = {
        name: [Facet(value=value, count=count) for value, count in getattr(found, name).items()]
        for name in ("states", "profiles", "tags", "flags")
    }
    return Facets(**lists)


@router.get("/batches/{batch_id}/failures")
def failures(site: Site, links: Root, batch_id: BatchId) -> FailureGroups:
    """Failed clips by stage and reason, and refused rows."""
    site.batch(batch_id)
    page = site.pages.failures(batch_id)
    groups = [
        FailureGroup(
            stage=group.stage,
            error_code=group.error_code,
            reason=group.reason,
            count=group.count,
            examples=[answers.card(clip, site.price, links) for clip in group.examples],
        )
        for group in page.rows
    ]
    refused = islice(site.catalog.batches.refused_rows(batch_id).items(), REFUSALS)
    refusals = [Refusal(row=number, reason=reason) for number, reason in refused]
    return FailureGroups(groups=groups, total=page.total, refused=refusals)


@router.get("/batches/{batch_id}/actions")
def actions(site: Site, batch_id: BatchId) -> Actions:
    """What people did to the batch."""
    site.batch(batch_id)
    page = site.catalog.control.actions(batch_id, limit=ACTIONS)
    records = [
        ActionRecord(
            at=each.at,
            user_id=each.by.user_id,
            user_name=each.by.name,
            action=each.action,
            arguments=dict(each.arguments),
        )
        for each in page.rows
    ]
    return Actions(actions=records)


@router.get("/lookup")
def lookup(
    site: Site,
    dag_id: Name,
    run_id: Name,
    task_id: Name = "",
    map_index: Annotated[str, Query(max_length=20)] = "",
) -> Lookup:
    """The batch of a run, and what a task does for it. Airflow's tabs leave `{MAP_INDEX}` as it is where none is."""
    batch = site.overview.batch_of_run(dag_id, run_id)
    if batch is None:
        raise HTTPException(404, "this run has no batch, or has not planned it yet")
    stage = _stage(task_id)
    shard = int(map_index) if stage and map_index.isascii() and map_index.isdigit() else None
    return Lookup(batch_id=batch[0], name=batch[1], shard=shard, stage=stage)


def one_batch(site: PageDeployment, batch_id: str) -> Batch:
    """The batch with its numbers. Raises HTTPException 404 when there is none."""
    (found,) = answers.batches(site, [site.batch(batch_id)])
    return found


def _stage(task_id: str) -> StageText | None:
    name = task_id.removeprefix(TASK_GROUP) if task_id.startswith(TASK_GROUP) else ""
    return next((stage for stage in get_args(StageText) if stage == name), None)
