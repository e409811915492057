"""What Prometheus scrapes, as somebody who may read our runs."""

from __future__ import annotations

from datetime import UTC, datetime

from fastapi import APIRouter
from fastapi.responses import Response
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4

from magi2.report.metrics import exposition
from magi2_airflow.renders.deployment import Site

router = APIRouter()


@router.get("/metrics")
def metrics(site: Site) -> Response:
    """Counted in the catalog at this moment."""
    content = exposition(site.catalog, site.store, site.price, at=datetime.now(UTC), thresholds=site.thresholds)
    return Response(content, media_type=CONTENT_TYPE_PLAIN_0_0_4)
