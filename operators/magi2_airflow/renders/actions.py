"""What people may do to a batch. Each is authorised by Airflow and written to the catalog with who and when."""

from __future__ import annotations

from collections import defaultdict

from airflow.api_fastapi.auth.managers.models.base_user import BaseUser
from airflow.api_fastapi.core_api.security import GetUserDep
from fastapi import APIRouter, Depends, HTTPException
from fastapi.concurrency import run_in_threadpool

from magi2.batches.rerun import DAG_ID, FAILED, check_first_stage, rerun_conf
from magi2.catalog.records import Action, Actor, BatchRecord, BatchState
from magi2.catalog.states import FINISHED_BATCH
from magi2.config.load import override_profile
from magi2.config.price import price_for_budget
from magi2.config.profile import Profile
from magi2.config.strict import validate
from magi2.errors import ConfigError, InputError
from magi2.jobs.delete import delete
from magi2.recipes.book import RecipeBook
from magi2.types import StageName
from magi2_airflow.renders.airflow_api import AsCaller
from magi2_airflow.renders.batches import one_batch
from magi2_airflow.renders.contract import Acted, Deleted
from magi2_airflow.renders.deployment import BatchId, PageDeployment, Site
from magi2_airflow.renders.guard import may_change, may_delete, may_start
from magi2_airflow.renders.links import run_path
from magi2_airflow.renders.requests import (
    BudgetRequest,
    CancelRequest,
    DeleteRequest,
    LimitRequest,
    PauseRequest,
    PriorityRequest,
    RerunRequest,
    ResumeRequest,
)
from magi2_airflow.renders.store import right_store

STARTS, CHANGES, DELETES = ([Depends(each), Depends(right_store)] for each in (may_start, may_change, may_delete))

router = APIRouter(prefix="/api/batches/{batch_id}")


@router.post("/pause", dependencies=CHANGES)
def pause(site: Site, user: GetUserDep, batch_id: BatchId, body: PauseRequest) -> Acted:
    """Let nothing of the batch begin."""
    site.batch(batch_id)
    site.catalog.control.pause(batch_id, by=_actor(user))
    return _acted(site, batch_id)


@router.post("/resume", dependencies=CHANGES)
async def resume(site: Site, user: GetUserDep, airflow: AsCaller, batch_id: BatchId, body: ResumeRequest) -> Acted:
    """Let a paused batch go on, or an ended one with the clips that it left out."""
    batch = await run_in_threadpool(site.batch, batch_id)
    actor = _actor(user)
    if not await run_in_threadpool(_left_out, site, batch):
        await run_in_threadpool(site.catalog.control.resume, batch_id, by=actor)
    elif batch.dag_id and batch.run_id:
        await airflow.go_on(batch.dag_id, batch.run_id)
        await run_in_threadpool(site.catalog.control.note, batch_id, Action.RESUME, {}, by=actor)
    return await run_in_threadpool(_acted, site, batch_id)


@router.post("/priority", dependencies=CHANGES)
def set_priority(site: Site, user: GetUserDep, batch_id: BatchId, body: PriorityRequest) -> Acted:
    """Let the batch go before or after others."""
    site.batch(batch_id)
    site.catalog.control.set_priority(batch_id, body.priority, by=_actor(user))
    return _acted(site, batch_id)


@router.post("/budget", dependencies=CHANGES)
def set_budget(site: Site, user: GetUserDep, batch_id: BatchId, body: BudgetRequest) -> Acted:
    """Let the batch cost so much, or what it will."""
    site.batch(batch_id)
    if body.budget is not None:
        try:
            price_for_budget(site.settings)
        except ConfigError as error:  # without one the batch's next shard would fail
            raise HTTPException(409, str(error)) from error
    site.catalog.control.set_budget(batch_id, body.budget, by=_actor(user))
    return _acted(site, batch_id)


@router.post("/limit", dependencies=CHANGES)
def set_limit(site: Site, user: GetUserDep, batch_id: BatchId, body: LimitRequest) -> Acted:
    """Let so many clips of the batch fail."""
    site.batch(batch_id)
    site.catalog.control.set_limit(batch_id, body.failure_limit, by=_actor(user))
    return _acted(site, batch_id)


@router.post("/delete", dependencies=DELETES)
def delete_batch(site: Site, batch_id: BatchId, body: DeleteRequest) -> Deleted:
    """Remove a batch that has ended with what no other needs, or say what would go."""
    site.batch(batch_id)
    deletion = delete(site, batch_id, dry_run=not body.confirm)
    site.counts.forget()
    return Deleted(batch_id=batch_id, **deletion.to_json())


@router.post("/cancel", dependencies=CHANGES)
async def cancel(site: Site, user: GetUserDep, airflow: AsCaller, batch_id: BatchId, body: CancelRequest) -> Acted:
    """End the batch: first by the wish, which holds even if Airflow does not answer, then its run."""
    batch = await run_in_threadpool(site.batch, batch_id)
    actor = _actor(user)
    await run_in_threadpool(site.catalog.control.cancel, batch_id, by=actor)
    if batch.dag_id and batch.run_id:
        await airflow.end_run(batch.dag_id, batch.run_id, f"cancelled by {actor.name}")
    return await run_in_threadpool(_cancelled, site, batch_id)


@router.post("/rerun", dependencies=STARTS)
async def rerun(site: Site, user: GetUserDep, airflow: AsCaller, batch_id: BatchId, body: RerunRequest) -> Acted:
    """Start the batch again as a new run of our DAG."""
    batch = await run_in_threadpool(site.batch, batch_id)
    await run_in_threadpool(_check, site, batch, body)
    actor = _actor(user)
    conf = rerun_conf(
        batch_id,
        only=_only(body),
        overrides=body.overrides,
        from_stage=StageName(body.from_stage) if body.from_stage else None,
        failure_limit=batch.failure_limit if body.failure_limit is None else body.failure_limit,
        budget=batch.budget,
    )
    run_id = await airflow.trigger(DAG_ID, conf, f"rerun of batch {batch_id} by {actor.name}")
    arguments = {**body.model_dump(mode="json"), "run_id": run_id}
    await run_in_threadpool(site.catalog.control.note, batch_id, Action.RERUN, arguments, by=actor)
    acted = await run_in_threadpool(_acted, site, batch_id)
    return acted.model_copy(update={"run_id": run_id, "run_path": run_path(DAG_ID, run_id)})


def _actor(user: BaseUser) -> Actor:
    return Actor(str(user.get_id()), user.get_name())


def _acted(site: PageDeployment, batch_id: str) -> Acted:
    site.counts.forget()
    return Acted(batch=one_batch(site, batch_id))


def _cancelled(site: PageDeployment, batch_id: str) -> Acted:
    # Airflow runs none of our code when a run is set failed; the task that ran may have told the catalog already.
    if site.batch(batch_id).state not in FINISHED_BATCH:
        site.catalog.batches.mark(batch_id, BatchState.CANCELLED)
    return _acted(site, batch_id)


def _left_out(site: PageDeployment, batch: BatchRecord) -> bool:
    """Whether the batch has ended without clips that may be rendered now. Raises HTTPException when they may not."""
    if batch.state not in (BatchState.DONE, BatchState.FAILED):
        return False
    counts = site.overview.counts([batch.batch_id])[batch.batch_id]
    if not counts.clips.skipped:
        return False
    failures = batch.failures(counts.clips.failed + counts.refused_rows)
    if failures.is_stopped:
        raise HTTPException(409, f"{failures}: raise the limit first, or rerun the clips that failed")
    if not batch.run_id:
        raise HTTPException(409, "no run of Airflow renders this batch: call its command again, which goes on with it")
    return True


def _only(body: RerunRequest) -> list[str]:
    if isinstance(body.only, list):
        return body.only
    return [FAILED] if body.only == "failed" else []


def _check(site: PageDeployment, batch: BatchRecord, body: RerunRequest) -> None:
    """Refuse what the run would only find out when it is planned."""
    batch_id = batch.batch_id
    if body.only == "failed":
        _check_failed(site, batch)
    elif isinstance(body.only, list):
        unknown = site.overview.unknown_clips(batch_id, body.only)
        if unknown:
            raise HTTPException(400, f"batch {batch_id} has no clip {unknown[0][:12]}")
    if body.overrides:
        try:
            _check_overrides(site, batch_id, body)
        except InputError as error:
            raise HTTPException(400, str(error)) from error


def _check_failed(site: PageDeployment, batch: BatchRecord) -> None:
    if batch.state not in FINISHED_BATCH:
        raise HTTPException(409, "the batch goes on: which clips fail is known at its end")
    if not site.counts.of([batch])[batch.batch_id].clips.failed:
        raise HTTPException(409, "no clip of the batch failed")


def _check_overrides(site: PageDeployment, batch_id: str, body: RerunRequest) -> None:
    profiles = [validate(Profile, content, place=batch_id) for content in site.overview.profiles(batch_id)]
    for profile in profiles:
        override_profile(profile, body.overrides)
    if body.from_stage:
        check_first_stage(profiles, body.overrides, StageName(body.from_stage), _comparable)


def _comparable(profile: Profile) -> RecipeBook:
    """Recipes that differ where the profile's own do; neither weights nor any file are looked at."""
    weights: defaultdict[str, str] = defaultdict(lambda: "0" * 64)
    return RecipeBook(
        profile,
        fingerprints=weights,
        negative_prompt=profile.text.negative_prompt if profile.text.use_negative_prompt else None,
        enhancement_mode=profile.enhancement.mode,
        enhancement_model=None,
    )
