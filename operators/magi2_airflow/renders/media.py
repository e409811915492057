"""Delivered files and reference images: only what the catalog names, read here or, by a link, at a public endpoint."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from hashlib import sha256
from typing import Annotated

from fastapi import APIRouter, Depends, HTTPException, Query, Request
from fastapi import Path as InPath
from fastapi.responses import RedirectResponse, Response

from magi2.artifacts.manifest import Payload
from magi2.errors import ContractError, CorruptedArtifactError
from magi2.stages.snapshots import picture_name
from magi2.types import CLIP, CONTACT_SHEET, POSTER, THUMBNAIL, StageName
from magi2_airflow.renders.clips import require_clip
from magi2_airflow.renders.deployment import ArtifactKey, BatchId, ClipId, PageDeployment, Site
from magi2_airflow.renders.ranges import is_known
from magi2_airflow.renders.streaming import FOR_EVER, LANE, answer

MEDIA_TYPES = {CLIP: "video/mp4", POSTER: "image/jpeg", THUMBNAIL: "image/webp", CONTACT_SHEET: "image/jpeg"}
LINK_LIFE = timedelta(minutes=15)
"""Long enough to look at a clip to its end and seek in it."""
PICTURE_TYPE = "image/webp"
FOR_A_WHILE = {"Cache-Control": "private, max-age=300"}
SIGNATURES = {
    b"\x89PNG\r\n\x1a\n": "image/png",
    b"\xff\xd8\xff": "image/jpeg",
    b"GIF8": "image/gif",
    b"BM": "image/bmp",
}


async def place() -> AsyncIterator[None]:
    """A place among those who look at media, until all is sent."""
    async with LANE.place():
        yield


PATHS = ("/media/", "/images/", "/pictures/")
"""Of these routes, which the page's turnstile lets pass: they have threads and places of their own."""

router = APIRouter(dependencies=[Depends(place)])


@router.api_route("/media/{key}/{name}", methods=["GET", "HEAD"])
async def media(
    request: Request, site: Site, key: ArtifactKey, name: str, download: Annotated[bool, Query()] = False
) -> Response:
    """A delivered clip or one of its pictures; a poster in place of a thumbnail that was never made."""
    if name not in MEDIA_TYPES:
        raise HTTPException(404, "the catalog knows of no such file")
    payload = await LANE.run(_payload, site, key, name)
    if payload is None and name == THUMBNAIL:
        return RedirectResponse(POSTER, 307, headers=FOR_A_WHILE)
    if payload is None:
        raise HTTPException(404, "the clip has no such file")
    saved_as = f"{key[:12]}-{name}" if download else None
    if site.links_media and request.method == "GET":  # a link is signed for one method
        address = await LANE.run(site.store.link, StageName.MUX, key, name, expires=LINK_LIFE, save_as=saved_as)
        return RedirectResponse(address, 307, headers=FOR_A_WHILE)
    headers = {"Content-Type": MEDIA_TYPES[name]}
    if saved_as:
        headers["Content-Disposition"] = f'attachment; filename="{saved_as}"'
    try:
        return await answer(request, site.store, StageName.MUX, key, payload, headers)
    except CorruptedArtifactError as error:
        raise _not_whole(error) from error


@router.api_route("/images/{batch_id}/{clip_id}/{number}", methods=["GET", "HEAD"])
async def image(
    request: Request, site: Site, batch_id: BatchId, clip_id: ClipId, number: Annotated[int, InPath(ge=0, le=1000)]
) -> Response:
    """A reference image of a clip, if it is a picture that every browser shows and no page can be hidden in."""
    content = await LANE.run(_image, site, batch_id, clip_id, number)
    kind = None if content is None else picture_type(content)
    if content is None or kind is None:
        raise HTTPException(404, f"there is no figure {number} to show")
    headers = {"ETag": f'"{sha256(content).hexdigest()}"', **FOR_EVER}
    if is_known(request.headers, headers["ETag"]):
        return Response(status_code=304, headers=headers)
    return Response(content, media_type=kind, headers=headers)


@router.api_route("/pictures/{batch_id}/{clip_id}", methods=["GET", "HEAD"])
async def picture(site: Site, batch_id: BatchId, clip_id: ClipId) -> Response:
    """What a clip at work looked like at its last snapshot; nothing where none was made, or it is gone."""
    content = await LANE.run(_picture, site, batch_id, clip_id)
    if content is None or picture_type(content) != PICTURE_TYPE:
        return Response(status_code=204)
    return Response(content, media_type=PICTURE_TYPE)


def picture_type(content: bytes) -> str | None:
    """The media type by the first bytes, None for anything but a picture of pixels."""
    if content[:4] == b"RIFF" and content[8:12] == b"WEBP":
        return "image/webp"
    return next((kind for signature, kind in SIGNATURES.items() if content.startswith(signature)), None)


def _payload(site: PageDeployment, key: str, name: str) -> Payload | None:
    """What there is to send, None when the clip has no file of this name."""
    artifact = site.catalog.artifacts.get(key)
    if artifact is None or artifact.stage != StageName.MUX:
        raise HTTPException(404, "the catalog knows of no such file")
    try:
        return site.store.payload(StageName.MUX, key, name)
    except ContractError:
        return None
    except CorruptedArtifactError as error:
        raise _not_whole(error) from error


def _image(site: PageDeployment, batch_id: str, clip_id: str, number: int) -> bytes | None:
    figures = require_clip(site, batch_id, clip_id).clip.figures
    digest = next((figure.sha256 for figure in figures if figure.number == number), None)
    return site.store.get_document(f"images/{digest}") if digest else None


def _picture(site: PageDeployment, batch_id: str, clip_id: str) -> bytes | None:
    require_clip(site, batch_id, clip_id)
    return site.store.get_document(picture_name(clip_id))


def _not_whole(error: CorruptedArtifactError) -> HTTPException:
    return HTTPException(404, f"the store no longer has it whole: {error.code}")
