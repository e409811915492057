"""What the buttons of our tasks lead to besides the clips: a batch's report and what a stage made of a shard."""

from __future__ import annotations

import re
from typing import Literal

from fastapi import APIRouter, HTTPException
from fastapi.responses import Response

from magi2.batches.documents import batch_folder
from magi2.types import StageName
from magi2_airflow.renders.deployment import BatchId, PageDeployment, Site

REPORTS = {"report.md": "text/plain; charset=utf-8", "report.json": "application/json"}
RESULTS = re.compile(rf"[0-9]{{1,6}}\.({'|'.join(StageName)})\.json")

router = APIRouter(prefix="/documents/batches/{batch_id}")


@router.get("/{name}")
def report(site: Site, batch_id: BatchId, name: Literal["report.md", "report.json"]) -> Response:
    """The batch's report, as Markdown or JSON."""
    return Response(_document(site, batch_id, name), media_type=REPORTS[name])


@router.get("/results/{name}")
def results(site: Site, batch_id: BatchId, name: str) -> Response:
    """What a stage made of a shard: each clip's state and the key of its manifest."""
    if RESULTS.fullmatch(name) is None:
        raise HTTPException(404)
    return Response(_document(site, batch_id, f"results/{name}"), media_type="application/json")


def _document(site: PageDeployment, batch_id: str, name: str) -> bytes:
    site.batch(batch_id)
    content = site.store.get_document(f"{batch_folder(batch_id)}/{name}")
    if content is None:
        raise HTTPException(404, "not there, or not yet")
    return content
