"""What the buttons of our tasks lead to besides the clips: a batch's report and what a stage made of a shard."""

from __future__ import annotations

import re
from typing import Literal

from fastapi import APIRouter, HTTPException
from fastapi.responses import Response

from magi2.batches.documents import batch_folder, newest_attempts, results_name
from magi2.types import StageName
from magi2_airflow.renders.deployment import BatchId, PageDeployment, Site

REPORTS = {"report.md": "text/plain; charset=utf-8", "report.json": "application/json"}
RESULTS = re.compile(rf"([0-9]{{1,6}})\.({'|'.join(StageName)})\.json")

router = APIRouter(prefix="/documents/batches/{batch_id}")


@router.get("/{name}")
def report(site: Site, batch_id: BatchId, name: Literal["report.md", "report.json"]) -> Response:
    """The batch's report, as Markdown or JSON."""
    site.batch(batch_id)
    return Response(_content(site, f"{batch_folder(batch_id)}/{name}"), media_type=REPORTS[name])


@router.get("/results/{name}")
def results(site: Site, batch_id: BatchId, name: str) -> Response:
    """What the highest attempt at a stage made of a shard: each clip's state and the key of its manifest."""
    asked = RESULTS.fullmatch(name)
    if asked is None:
        raise HTTPException(404)
    site.batch(batch_id)
    found = newest_attempts(site.store, [results_name(batch_id, int(asked[1]), StageName(asked[2]))])
    return Response(_content(site, found[0] if found else None), media_type="application/json")


def _content(site: PageDeployment, name: str | None) -> bytes:
    content = None if name is None else site.store.get_document(name)
    if content is None:
        raise HTTPException(404, "not there, or not yet")
    return content
