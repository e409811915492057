"""Whether a batch's work may go on: asked before a stage of a shard, and between two clips.

A catalog that cannot be reached never stops a render, but where money is at stake: a batch with a budget waits for it.
"""

from __future__ import annotations

import logging

from magi2.artifacts.store import ArtifactStore
from magi2.catalog import Catalog, Request, catalog_url, open_catalog
from magi2.config.settings import Settings
from magi2.cost import price_for_budget
from magi2.errors import BatchCancelledError, BudgetSpentError, Magi2Error, PausedError
from magi2.plan import load_batch
from magi2.runtime.job import StageJob
from magi2.types import StageName

logger = logging.getLogger(__name__)

EARLY_STAGES = (StageName.ENHANCE, StageName.ENCODE, StageName.PREVIEW)
"""Up to here a shard has cost little; once its denoising has begun it is finished."""


def require_permission(settings: Settings, store: ArtifactStore, job: StageJob) -> None:
    """Return if the stage of the shard may start now.

    Raises: BatchCancelledError when the batch is to end, PausedError when the shard has to wait, BudgetSpentError when
    it may not begin any more; InfrastructureError or ConfigError when that cannot be known of a batch with a budget.
    """
    try:
        catalog = open_catalog(catalog_url(settings))
        _check_request(job.batch_id, catalog.control.requested(job.batch_id))
        if job.stage in EARLY_STAGES and not catalog.control.has_reached(job.batch_id, job.shard, StageName.PREVIEW):
            _check_turn(catalog, settings, job)
    except (BatchCancelledError, PausedError, BudgetSpentError):
        raise
    except Magi2Error as error:
        if load_batch(store, job.batch_id)["options"].get("budget") is not None:
            raise
        logger.warning("goes on without knowing what is asked of batch %s: %s", job.batch_id, error)


class BetweenClips:
    """Asked by a worker before each clip; a catalog that is away is told of once and asks for nothing."""

    def __init__(self, settings: Settings, batch_id: str) -> None:
        self._settings = settings
        self._batch_id = batch_id
        self._catalog: Catalog | None = None
        self._is_away = False

    def requested(self) -> Request | None:
        """What is asked of the batch now. Ranks that work together ask one of them, so that all hear the same."""
        if self._is_away:
            return None
        try:
            self._catalog = self._catalog or open_catalog(catalog_url(self._settings))
            return self._catalog.control.requested(self._batch_id)
        except Magi2Error as error:
            self._is_away = True
            logger.warning("cannot hear what is asked of batch %s: %s", self._batch_id, error)
            return None

    def check(self) -> None:
        """Return if the next clip may begin. Raises: BatchCancelledError or PausedError."""
        _check_request(self._batch_id, self.requested())


def _check_request(batch_id: str, request: Request | None) -> None:
    if request is Request.CANCEL:
        raise BatchCancelledError(f"batch {batch_id} was cancelled")
    if request is Request.PAUSE:
        raise PausedError(f"batch {batch_id} is paused")


def _check_turn(catalog: Catalog, settings: Settings, job: StageJob) -> None:
    """Whether a shard that has not begun may begin."""
    standing = catalog.control.standing(job.batch_id, job.stage)
    if standing is None:
        return
    if standing.budget is not None:
        price = price_for_budget(settings)
        cost = price.cost(standing.accelerator_seconds)
        if cost >= standing.budget:
            raise BudgetSpentError(f"budget: {price.text(cost)} of {price.text(standing.budget)} spent")
    if standing.ahead is not None:
        raise PausedError(f"batch {standing.ahead} of higher priority goes first")
