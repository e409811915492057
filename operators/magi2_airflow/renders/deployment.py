"""What the routes work with: the deployment's catalog, store and price, opened once per process."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property
from typing import Annotated
from urllib.parse import parse_qsl, urlsplit

from fastapi import Depends, HTTPException, Path

from magi2.artifacts.address import open_store
from magi2.artifacts.store import ArtifactStore
from magi2.catalog import BatchRecord, Catalog, catalog_url, open_catalog
from magi2.catalog.overview import Overview
from magi2.catalog.pages import Pages
from magi2.config.price import Price
from magi2.config.settings import Settings
from magi2_airflow.renders.counts_cache import CountsCache
from magi2_airflow.renders.store_check import StoreCheck


@dataclass(frozen=True)
class Deployment:
    """Catalog, store and price of this machine's settings."""

    settings: Settings
    catalog: Catalog
    store: ArtifactStore

    @cached_property
    def overview(self) -> Overview:
        """Batches in numbers."""
        return Overview(self.catalog.database)

    @cached_property
    def pages(self) -> Pages:
        """Clips in lists."""
        return Pages(self.catalog.database)

    @cached_property
    def counts(self) -> CountsCache:
        """Batches in numbers that are a moment old."""
        return CountsCache(self.overview)

    @cached_property
    def store_check(self) -> StoreCheck:
        """What is wrong with the store, as it was a moment ago."""
        return StoreCheck(self.store, self.catalog)

    @property
    def price(self) -> Price | None:
        """What an accelerator-hour costs, if that is known."""
        return Price.of(self.settings)

    @property
    def media_origin(self) -> str:
        """Where links to media lead, as a content security policy says it; empty when they lead here."""
        endpoint = dict(parse_qsl(urlsplit(self.store.url).query)).get("endpoint", "")
        return "https://*.amazonaws.com" if endpoint.endswith(".amazonaws.com") else endpoint

    def batch(self, batch_id: str) -> BatchRecord:
        """The batch. Raises HTTPException 404 when the catalog has none of this id."""
        record = self.catalog.batches.get(batch_id)
        if record is None:
            raise HTTPException(404, f"there is no batch {batch_id}")
        return record


@cache
def deployment() -> Deployment:
    """The deployment that `MAGI2_*` describe."""
    settings = Settings.from_environment()
    return Deployment(settings, open_catalog(catalog_url(settings)), open_store(settings.store))


Site = Annotated[Deployment, Depends(deployment)]
BatchId = Annotated[str, Path(pattern="^[0-9a-f]{16}$")]
ClipId = Annotated[str, Path(pattern="^[0-9a-f]{64}$")]
ArtifactKey = Annotated[str, Path(pattern="^[0-9a-f]{64}$")]
