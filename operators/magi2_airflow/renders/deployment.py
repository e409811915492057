"""What the routes work with: the deployment's catalog, store and price, opened once per process."""

from __future__ import annotations

from functools import cache, cached_property
from typing import Annotated

from fastapi import Depends, HTTPException, Path

from magi2.catalog import BatchRecord
from magi2.catalog.overview import Overview
from magi2.catalog.pages import Pages
from magi2.catalog.quality import Quality
from magi2.deployment import Deployment
from magi2_airflow.renders.airflow_check import AirflowCheck
from magi2_airflow.renders.counts_cache import CountsCache
from magi2_airflow.renders.store_check import StoreCheck


class PageDeployment(Deployment):
    """The deployment, with what the pages ask of it again and again."""

    @cached_property
    def overview(self) -> Overview:
        """Batches in numbers."""
        return Overview(self.catalog.database)

    @cached_property
    def pages(self) -> Pages:
        """Clips in lists."""
        return Pages(self.catalog.database)

    @cached_property
    def quality(self) -> Quality:
        """The defects of clips, under the thresholds of this deployment."""
        return Quality(self.catalog.database, self.thresholds)

    @cached_property
    def counts(self) -> CountsCache:
        """Batches in numbers that are a moment old."""
        return CountsCache(self.overview)

    @cached_property
    def store_check(self) -> StoreCheck:
        """What is wrong with the store, as it was a moment ago."""
        return StoreCheck(self.store, self.catalog)

    @cached_property
    def airflow_check(self) -> AirflowCheck:
        """What Airflow lacked a moment ago of what our DAGs need."""
        return AirflowCheck(self.catalog)

    @property
    def links_media(self) -> bool:
        """Whether browsers get media from the store's public endpoint; else they come through this server."""
        return (self.store.link_origin or "").startswith("http")

    @property
    def media_origin(self) -> str:
        """Where media come from besides here, as a content security policy says it; empty when from nowhere."""
        origin = (self.store.link_origin or "") if self.links_media else ""
        return "https://*.amazonaws.com" if origin.endswith(".amazonaws.com") else origin

    def batch(self, batch_id: str) -> BatchRecord:
        """The batch. Raises HTTPException 404 when the catalog has none of this id."""
        record = self.catalog.batches.get(batch_id)
        if record is None:
            raise HTTPException(404, f"there is no batch {batch_id}")
        return record


@cache
def deployment() -> PageDeployment:
    """The deployment that `MAGI2_*` describe."""
    return PageDeployment.from_environment()


Site = Annotated[PageDeployment, Depends(deployment)]
BatchId = Annotated[str, Path(pattern="^[0-9a-f]{16}$")]
ClipId = Annotated[str, Path(pattern="^[0-9a-f]{64}$")]
ArtifactKey = Annotated[str, Path(pattern="^[0-9a-f]{64}$")]
