"""Where the buttons of our tasks lead: a batch's clips, its report and its manifests, served by Airflow's API server.

Only what the store's batch documents name is served, to people who may read our DAG; nothing of a request becomes a
path before it has matched a pattern of ids.
"""

from __future__ import annotations

import html
import json
import re
from functools import cache
from typing import Annotated, Any

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.core_api.security import GetUserDep, auth_manager_from_app, get_user
from fastapi import Depends, FastAPI, HTTPException, Path, Request
from fastapi.responses import FileResponse, HTMLResponse, Response

from magi2.artifacts.address import open_store
from magi2.artifacts.store import ArtifactStore
from magi2.config.settings import Settings
from magi2.errors import Magi2Error
from magi2.types import StageName

DAG_ID = "magi2_render_batch"
CONTENT_POLICY = "default-src 'none'; img-src 'self'; media-src 'self'; style-src 'unsafe-inline'"
REPORTS = {"report.md": "text/plain; charset=utf-8", "report.json": "application/json"}
MEDIA = {"clip.mp4": "video/mp4", "poster.jpg": "image/jpeg", "contact_sheet.jpg": "image/jpeg"}
STYLE = "body{font:15px system-ui;margin:2em}td,th{padding:.4em .8em;text-align:left}img{height:72px}"

BatchId = Annotated[str, Path(pattern="^[0-9a-f]{16}$")]
Key = Annotated[str, Path(pattern="^[0-9a-f]{64}$")]


def may_read(user: GetUserDep) -> None:
    """Refuse people who may not read our DAG."""
    if DAG_ID not in get_auth_manager().get_authorized_dag_ids(user=user, method="GET"):
        raise HTTPException(403, f"you may not read {DAG_ID}")


app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None, dependencies=[Depends(get_user), Depends(may_read)])
app.dependency_overrides[auth_manager_from_app] = get_auth_manager


@cache
def store() -> ArtifactStore:
    """The deployment's store, opened once per process."""
    return open_store(Settings.from_environment().store)


@app.exception_handler(Magi2Error)
def as_unavailable(request: Request, error: Magi2Error) -> Response:
    """A store that fails is no fault of the page."""
    return Response(f"{error.code}: the store cannot answer now", 503)


@app.get("/documents/batches/{batch_id}/{name}")
def report(batch_id: BatchId, name: str) -> Response:
    """The batch's report, as Markdown or JSON."""
    if name not in REPORTS:
        raise HTTPException(404)
    return Response(_document(f"batches/{batch_id}/{name}"), media_type=REPORTS[name])


@app.get("/documents/batches/{batch_id}/results/{name}")
def results(batch_id: BatchId, name: str) -> Response:
    """What a stage made of a shard: each clip's state and the key of its manifest."""
    stages = "|".join(stage.value for stage in StageName)
    if not re.fullmatch(rf"[0-9]{{1,6}}\.({stages})\.json", name):
        raise HTTPException(404)
    return Response(_document(f"batches/{batch_id}/results/{name}"), media_type="application/json")


@app.get("/batches/{batch_id}")
def clips(batch_id: BatchId) -> HTMLResponse:
    """The batch's clips: poster, names, seed, state and reason, with a link to play each finished one."""
    content = json.loads(_document(f"batches/{batch_id}/report.json"))
    states = (("failed", "failed"), ("flagged", "flagged"), ("done", "done"), ("skipped", "finished before"))
    rows = "".join(_row(clip, label) for name, label in states for clip in content[name])
    title = html.escape(f"{content['name']} ({batch_id})")
    page = (
        f"<!doctype html><title>{title}</title><style>{STYLE}</style><h1>{title}</h1>"
        f"<table><tr><th><th>clip<th>name<th>profile<th>seed<th>state<th>prompt</tr>{rows}</table>"
    )
    return HTMLResponse(page, headers={"Content-Security-Policy": CONTENT_POLICY})


@app.api_route("/clips/{key}/{name}", methods=["GET", "HEAD"])
def media(key: Key, name: str) -> FileResponse:
    """A delivered file or one of its pictures; ranges are answered, so that a player can seek."""
    if name not in MEDIA or store().find(StageName.MUX, key) is None:
        raise HTTPException(404)
    return FileResponse(store().fetch(StageName.MUX, key, name), media_type=MEDIA[name])


def _document(name: str) -> bytes:
    content = store().get_document(name)
    if content is None:
        raise HTTPException(404, "not there, or not yet")
    return content


def _row(clip: dict[str, Any], label: str) -> str:
    reason = f"{label} in {clip['stage']}: {clip['reason']}" if clip["reason"] else label
    state = " ".join([reason, *clip["flags"]])
    texts = [", ".join(clip["names"]), clip["profile"], str(clip["seed"] or ""), state, clip["prompt"]]
    key, short_id = clip["key"], (clip["clip_id"] or "")[:12]
    poster = f'<img src="../clips/{key}/poster.jpg" alt="" loading="lazy">' if key else ""
    name = f'<a href="../clips/{key}/clip.mp4">{short_id}</a>' if key else short_id
    cells = "".join(f"<td>{html.escape(text)}" for text in texts)
    return f"<tr><td>{poster}<td>{name}{cells}</tr>"
