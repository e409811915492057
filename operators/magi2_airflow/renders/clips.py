"""What there is to see of clips: pages of a batch's grid, one clip with all about it, its manifests."""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

from fastapi import APIRouter, HTTPException, Query
from fastapi.responses import Response

from magi2.artifacts.manifest import Manifest
from magi2.catalog import ClipQuery, ClipRecord, ClipState
from magi2.catalog.pages import PageSort
from magi2.config.profile import tier_text
from magi2.errors import CorruptedArtifactError, Magi2Error
from magi2.prompts.caption import Caption
from magi2.recipes.captions import CAPTION
from magi2.types import StageName, clip_stages
from magi2_airflow.renders import answers
from magi2_airflow.renders.contract import Clip, ClipPage, Delivery, Figure, Neighbours, StageText
from magi2_airflow.renders.deployment import BatchId, ClipId, PageDeployment, Site
from magi2_airflow.renders.links import Links, Root, run_path
from magi2_airflow.renders.requests import ClipsWanted

router = APIRouter(prefix="/api/batches/{batch_id}/clips")


@router.get("")
def list_clips(site: Site, links: Root, batch_id: BatchId, wanted: Annotated[ClipsWanted, Query()]) -> ClipPage:
    """A page of the batch's clips, from the catalog alone."""
    site.batch(batch_id)
    query = _query(batch_id, wanted)
    site.quality.bring_up_to_date(batch_id)
    order = PageSort(wanted.sort)
    page = site.pages.clips(query, sort=order, descending=wanted.descending, offset=wanted.offset, limit=wanted.limit)
    cards = [answers.card(each, site.price, links) for each in page.rows]
    return ClipPage(clips=cards, total=page.total, offset=wanted.offset)


@router.get("/{clip_id}")
def get_clip(site: Site, links: Root, batch_id: BatchId, clip_id: ClipId) -> Clip:
    """All about one clip."""
    return one_clip(site, links, batch_id, clip_id)


@router.get("/{clip_id}/others")
def others(site: Site, links: Root, batch_id: BatchId, clip_id: ClipId) -> ClipPage:
    """What the clip can be compared with."""
    require_clip(site, batch_id, clip_id)
    found = site.pages.others(batch_id, clip_id)
    return ClipPage(clips=[answers.card(each, site.price, links) for each in found], total=len(found), offset=0)


@router.get("/{clip_id}/neighbours")
def neighbours(site: Site, batch_id: BatchId, clip_id: ClipId, wanted: Annotated[ClipsWanted, Query()]) -> Neighbours:
    """Which clips come before and after this one where `list_clips` lists it."""
    require_clip(site, batch_id, clip_id)
    query, order = _query(batch_id, wanted), PageSort(wanted.sort)
    found = site.pages.neighbours(query, clip_id, sort=order, descending=wanted.descending)
    return Neighbours(previous=found.previous, next=found.next, place=found.place, total=found.total)


@router.get("/{clip_id}/manifests/{stage}")
def manifest(site: Site, batch_id: BatchId, clip_id: ClipId, stage: StageText) -> Response:
    """The manifest of what a stage made of the clip."""
    record = require_clip(site, batch_id, clip_id)
    key = artifact_keys(site, record).get(StageName(stage))
    found = find(site, StageName(stage), key) if key else None
    if found is None:
        raise HTTPException(404, f"the store has nothing that {stage} made of this clip")
    return Response(found.to_bytes(), media_type="application/json")


def require_clip(site: PageDeployment, batch_id: str, clip_id: str) -> ClipRecord:
    """The clip as the catalog has it. Raises HTTPException 404 when the batch has none of this id."""
    record = site.catalog.clips.get(batch_id, clip_id)
    if record is None:
        raise HTTPException(404, f"batch {batch_id} has no clip {clip_id[:12]}")
    return record


def artifact_keys(site: PageDeployment, record: ClipRecord) -> dict[StageName, str]:
    """The keys of what the stages made of a clip."""
    keys = site.overview.artifact_keys(record.batch_id, record.clip_id)
    return keys | ({StageName.MUX: record.artifact_key} if record.artifact_key else {})


def find(site: PageDeployment, stage: StageName, key: str) -> Manifest | None:
    """The manifest of an artifact that the catalog names, None when it is gone or damaged."""
    try:
        return site.store.find(stage, key)
    except CorruptedArtifactError:
        return None


def one_clip(site: PageDeployment, links: Links, batch_id: str, clip_id: str) -> Clip:
    """All about one clip. Raises HTTPException 404 when there is none."""
    batch, record = site.batch(batch_id), require_clip(site, batch_id, clip_id)
    site.quality.bring_up_to_date(batch_id)
    (listed,) = site.pages.these([(batch_id, clip_id)])
    card = answers.card(listed, site.price, links)
    runs = site.catalog.runs.of_clip(batch_id, clip_id)
    settings = site.overview.profile(record.clip.profile_digest)
    stages = clip_stages(settings, is_delivered=bool(record.clip.deliveries))
    steps = answers.timeline(batch, listed, runs, stages, site.price, links)
    latest = max((step for step in steps if step.started_at), key=lambda step: str(step.started_at), default=None)
    stored = _stored(site, record)
    return Clip(
        **{**dict(card), "prompt": record.clip.prompt},
        error_code=next((step.error_code for step in steps if step.is_last and step.error_code), None),
        caption=stored.caption,
        figures=[
            Figure(number=figure.number, image=links.image(batch_id, clip_id, figure.number))
            for figure in record.clip.figures
        ],
        deliveries=[Delivery(target=each.target, name=each.name) for each in record.clip.deliveries],
        profile_digest=record.clip.profile_digest,
        tier=tier_text(settings),
        is_experimental=settings.get("experimental") is True,
        settings=dict(settings),
        recipe=stored.recipe,
        timeline=steps,
        quality=answers.quality(site.quality.of(batch_id, clip_id)),
        manifest=links.manifest(batch_id, clip_id, StageName.MUX) if record.artifact_key else None,
        run_path=run_path(batch.dag_id, batch.run_id),
        task_path=latest.task_path if latest else None,
        log_path=latest.log_path if latest else None,
        store_problem=stored.problem,
    )


def _query(batch_id: str, wanted: ClipsWanted) -> ClipQuery:
    return ClipQuery(
        batch_id=batch_id,
        state=ClipState(wanted.state) if wanted.state else None,
        profile=wanted.profile,
        tag=wanted.tag,
        text=wanted.text,
        shard=wanted.shard,
        failed_stage=wanted.stage,
        reason=wanted.reason,
        error_code=wanted.error_code,
        flag=wanted.flag,
    )


class _Stored(NamedTuple):
    """What only the store knows of a clip, and what it did not give."""

    caption: str | None
    recipe: dict[str, Any] | None
    problem: str | None


def _stored(site: PageDeployment, record: ClipRecord) -> _Stored:
    keys = artifact_keys(site, record)
    caption, recipe, problems = None, None, []
    try:
        if key := keys.get(StageName.ENHANCE):
            caption = Caption.from_json(site.store.fetch(StageName.ENHANCE, key, CAPTION).read_bytes()).text
    except Magi2Error as error:
        problems.append(f"no caption: {error.code}")
    try:
        if record.artifact_key and (delivered := site.store.find(StageName.MUX, record.artifact_key)):
            recipe = delivered.recipe.to_dict()
    except Magi2Error as error:
        problems.append(f"no recipe: {error.code}")
    return _Stored(caption, recipe, "; ".join(problems) or None)
