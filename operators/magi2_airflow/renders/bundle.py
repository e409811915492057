"""The page's own files: script modules, style sheets, icons. They show nobody's data, so a login is enough."""

from __future__ import annotations

from hashlib import sha256

from fastapi import APIRouter, HTTPException, Request
from fastapi.responses import Response

from magi2_airflow.mount import STATIC

TYPES = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml", ".png": "image/png"}

router = APIRouter()


@router.api_route("/static/{name}", methods=["GET", "HEAD"])
def static_file(request: Request, name: str) -> Response:
    """A file of the bundle. Browsers ask each time whether it changed, since modules name each other without hashes."""
    path = next((each for each in STATIC.iterdir() if each.name == name and each.suffix in TYPES), None)
    if path is None:
        raise HTTPException(404, "there is no such file")
    content = path.read_bytes()
    headers = {"ETag": f'"{sha256(content).hexdigest()[:32]}"', "Cache-Control": "private, no-cache"}
    if request.headers.get("if-none-match") == headers["ETag"]:
        return Response(status_code=304, headers=headers)
    return Response(content, media_type=TYPES[path.suffix], headers=headers)
