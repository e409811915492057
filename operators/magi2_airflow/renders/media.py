"""Delivered files and reference images: only what the catalog names, from a local store here, from S3 by a link."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Annotated
from urllib.parse import unquote, urlsplit

from fastapi import APIRouter, HTTPException, Query, Request
from fastapi import Path as InPath
from fastapi.responses import FileResponse, RedirectResponse, Response

from magi2.errors import ContractError, CorruptedArtifactError
from magi2.types import CLIP, CONTACT_SHEET, POSTER, StageName
from magi2_airflow.renders.clips import find, require_clip
from magi2_airflow.renders.deployment import ArtifactKey, BatchId, ClipId, PageDeployment, Site

_TYPES = {CLIP: "video/mp4", POSTER: "image/jpeg", CONTACT_SHEET: "image/jpeg"}
LINK_LIFE = timedelta(minutes=15)
"""Long enough to look at a clip to its end and seek in it."""
CACHED = {"Cache-Control": "private, max-age=300"}
SIGNATURES = {
    b"\x89PNG\r\n\x1a\n": "image/png",
    b"\xff\xd8\xff": "image/jpeg",
    b"GIF8": "image/gif",
    b"BM": "image/bmp",
}

router = APIRouter()


@router.api_route("/media/{key}/{name}", methods=["GET", "HEAD"])
def media(
    request: Request, site: Site, key: ArtifactKey, name: str, download: Annotated[bool, Query()] = False
) -> Response:
    """A delivered clip or one of its pictures; ranges are answered, so that a player can seek."""
    artifact = site.catalog.artifacts.get(key) if name in _TYPES else None
    if artifact is None or artifact.stage != StageName.MUX:
        raise HTTPException(404, "the catalog knows of no such file")
    saved_as = f"{key[:12]}-{name}" if download else None
    address = _address(site, key, name, saved_as)
    if address.startswith("file:"):
        path = Path(unquote(urlsplit(address).path))
        return FileResponse(path, media_type=_TYPES[name], filename=saved_as, headers=CACHED)
    if request.method == "HEAD":  # a link is signed for one method
        return _head(site, key, name)
    return RedirectResponse(address, 307, headers=CACHED)


@router.api_route("/images/{batch_id}/{clip_id}/{number}", methods=["GET", "HEAD"])
def image(site: Site, batch_id: BatchId, clip_id: ClipId, number: Annotated[int, InPath(ge=0, le=1000)]) -> Response:
    """A reference image of a clip, if it is a picture that every browser shows and no page can be hidden in."""
    figures = require_clip(site, batch_id, clip_id).clip.figures
    digest = next((figure.sha256 for figure in figures if figure.number == number), None)
    content = site.store.get_document(f"images/{digest}") if digest else None
    kind = None if content is None else picture_type(content)
    if content is None or kind is None:
        raise HTTPException(404, f"there is no figure {number} to show")
    return Response(content, media_type=kind, headers=CACHED)


def picture_type(content: bytes) -> str | None:
    """The media type by the first bytes, None for anything but a picture of pixels."""
    if content[:4] == b"RIFF" and content[8:12] == b"WEBP":
        return "image/webp"
    return next((kind for signature, kind in SIGNATURES.items() if content.startswith(signature)), None)


def _address(site: PageDeployment, key: str, name: str, saved_as: str | None) -> str:
    try:
        return site.store.link(StageName.MUX, key, name, expires=LINK_LIFE, save_as=saved_as)
    except (CorruptedArtifactError, ContractError) as error:
        raise HTTPException(404, f"the store no longer has it whole: {error.code}") from error


def _head(site: PageDeployment, key: str, name: str) -> Response:
    manifest = find(site, StageName.MUX, key)
    payload = manifest.payloads.get(name) if manifest else None
    if payload is None:
        raise HTTPException(404, "the store no longer has it whole")
    headers = {"Content-Length": str(payload.size_bytes), "Accept-Ranges": "bytes", **CACHED}
    return Response(media_type=_TYPES[name], headers=headers)
