"""Whether a batch's work may go on: asked before a stage of a shard, and between two clips.

A catalog that cannot be reached never stops a render, but where money is at stake: a batch with a budget waits for it.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import TypeVar

from sqlalchemy import ColumnElement, Connection, and_, exists, or_, select

from magi2.artifacts.store import ArtifactStore
from magi2.batches.documents import load_batch
from magi2.batches.failure_limit import FailureCount
from magi2.catalog.batches import accelerator_seconds, count_failures, get_batch
from magi2.catalog.engine import RETRY_S, catalog_url
from magi2.catalog.records import BatchRecord, BatchState, Request, RunState, now
from magi2.catalog.repository import Catalog, open_catalog
from magi2.catalog.states import FINISHED_BATCH, UNFINISHED_CLIP
from magi2.catalog.streak import Streak
from magi2.catalog.tables import BatchClipRow, BatchRow, StageRunRow
from magi2.config.price import price_for_budget
from magi2.config.settings import Settings
from magi2.errors import BatchCancelledError, BudgetSpentError, Magi2Error, PausedError, StoppedError
from magi2.types import StageName

logger = logging.getLogger(__name__)

T = TypeVar("T")

EARLY_STAGES = (StageName.ENHANCE, StageName.ENCODE, StageName.PREVIEW)
"""Up to here a shard has cost little; once its denoising has begun it is finished."""


@dataclass(frozen=True, kw_only=True)
class AdmissionState:
    """What decides whether a stage of one of a batch's shards may start.

    `requested`: pause or cancel, as asked by a user; None for a finished batch, also while it is run again. `ahead`: a
    running batch of higher priority with clips that wait for the stage or an earlier one, and are not at work.
    `has_begun`: a clip of the shard has come to the preview stage.
    """

    requested: Request | None
    failures: FailureCount
    budget: float | None
    accelerator_seconds: float
    ahead: str | None
    has_begun: bool


def check_may_start(settings: Settings, store: ArtifactStore, batch_id: str, shard: int, stage: StageName) -> None:
    """Return if the stage of the shard may start now.

    Raises: BatchCancelledError when the batch is to end, PausedError when the shard has to wait, BudgetSpentError when
    it may not begin any more, StoppedError when too many clips failed; InfrastructureError or ConfigError when that
    cannot be known of a batch with a budget.
    """
    try:
        catalog = open_catalog(catalog_url(settings))
        state = admission_state(catalog, batch_id, shard, stage)
        if state is not None:
            why = catalog.control.last_streak(batch_id) if state.requested else None
            _check_request(batch_id, state.requested, why)
            _check_limit(batch_id, state.failures)
            if stage in EARLY_STAGES and not state.has_begun:
                _check_turn(state, settings)
    except (BatchCancelledError, PausedError, BudgetSpentError, StoppedError):
        raise
    except Magi2Error as error:
        if load_batch(store, batch_id).options.budget is not None:
            raise
        logger.warning("goes on without knowing what is asked of batch %s: %s", batch_id, error)


class CancelCheck:
    """Asked by a worker before each clip; a catalog that is away asks for nothing, for `RETRY_S` seconds of `clock`.

    A batch of the command line that was cancelled since the check was made is asked to end: it has no run to be ended.
    """

    def __init__(self, settings: Settings, batch_id: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._settings = settings
        self._batch_id = batch_id
        self._clock = clock
        self._since = now()
        self._catalog: Catalog | None = None
        self._away_until = -math.inf

    def requested(self) -> Request | None:
        """What is asked of the batch now. Ranks that work together ask one of them, so that all hear the same."""
        return self._hear(lambda catalog: requested(catalog, self._batch_id, since=self._since))

    def check(self) -> None:
        """Return if the next clip may begin. Raises: BatchCancelledError, PausedError or StoppedError."""
        heard = self._hear(lambda catalog: catalog.database.read(_request_and_failures, self._batch_id, self._since))
        request, failures = heard or (None, None)
        why = self._hear(lambda catalog: catalog.control.last_streak(self._batch_id)) if request else None
        _check_request(self._batch_id, request, why)
        if failures:
            _check_limit(self._batch_id, failures)

    def _hear(self, ask: Callable[[Catalog], T | None]) -> T | None:
        if self._clock() < self._away_until:
            return None
        try:
            self._catalog = self._catalog or open_catalog(catalog_url(self._settings))
            return ask(self._catalog)
        except Magi2Error as error:
            self._away_until = self._clock() + RETRY_S
            logger.warning("cannot hear what is asked of batch %s: %s", self._batch_id, error)
            return None


def requested(catalog: Catalog, batch_id: str, *, since: datetime | None = None) -> Request | None:
    """What is asked of a batch; nothing of one that is absent or finished, but see `CancelCheck`."""
    return _requested(catalog.database.read(get_batch, batch_id), since)


def admission_state(catalog: Catalog, batch_id: str, shard: int, stage: StageName) -> AdmissionState | None:
    """What decides whether the stage of a shard may start now; None for a batch that is not in the catalog."""
    return catalog.database.read(_admission_state, batch_id, shard, stage)


def _check_request(batch_id: str, request: Request | None, why: Streak | None) -> None:
    if request is Request.CANCEL:
        raise BatchCancelledError(f"batch {batch_id} was cancelled")
    if request is Request.PAUSE:
        raise PausedError(f"batch {batch_id} is paused" + (f": {why}" if why else ""))


def _check_limit(batch_id: str, failures: FailureCount) -> None:
    if failures.is_stopped:
        raise StoppedError(f"batch {batch_id}: {failures}")


def _check_turn(state: AdmissionState, settings: Settings) -> None:
    """Whether a shard that has not begun may begin."""
    if state.budget is not None:
        price = price_for_budget(settings)
        cost = price.cost(state.accelerator_seconds)
        if cost >= state.budget:
            raise BudgetSpentError(f"budget: {price.text(cost)} of {price.text(state.budget)} spent")
    if state.ahead is not None:
        raise PausedError(f"batch {state.ahead} of higher priority goes first")


def _admission_state(connection: Connection, batch_id: str, shard: int, stage: StageName) -> AdmissionState | None:
    batch = get_batch(connection, batch_id)
    if batch is None:
        return None
    return AdmissionState(
        requested=_requested(batch),
        failures=batch.failures(count_failures(connection, batch_id)),
        budget=batch.budget,
        accelerator_seconds=accelerator_seconds(connection, [batch_id])[batch_id],
        ahead=_ahead(connection, batch, stage),
        has_begun=_has_reached(connection, batch_id, shard, StageName.PREVIEW),
    )


def _request_and_failures(
    connection: Connection, batch_id: str, since: datetime | None
) -> tuple[Request | None, FailureCount | None]:
    batch = get_batch(connection, batch_id)
    failures = None if batch is None else batch.failures(count_failures(connection, batch_id))
    return _requested(batch, since), failures


def _requested(batch: BatchRecord | None, since: datetime | None = None) -> Request | None:
    if since and batch and batch.run_id is None and batch.state is BatchState.CANCELLED:
        return Request.CANCEL if batch.finished_at and batch.finished_at > since else None
    return None if batch is None or batch.state in FINISHED_BATCH else batch.requested


def _has_reached(connection: Connection, batch_id: str, shard: int, stage: StageName) -> bool:
    query = select(StageRunRow.clip_id).join(BatchClipRow, _same_clip())
    these = StageRunRow.batch_id == batch_id, BatchClipRow.shard == shard, StageRunRow.stage == stage
    return connection.scalar(query.where(*these).limit(1)) is not None


def _ahead(connection: Connection, batch: BatchRecord, stage: StageName) -> str | None:
    reached = StageRunRow.stage.in_(stage.onward)
    begun = exists().where(_same_clip(), or_(reached, StageRunRow.state == RunState.RUNNING))
    waits = exists().where(
        BatchClipRow.batch_id == BatchRow.batch_id,
        BatchClipRow.state.in_(UNFINISHED_CLIP),
        BatchClipRow.shard.is_not(None),
        ~begun,
    )
    going_on = BatchRow.state == BatchState.RUNNING, BatchRow.requested.is_(None)
    query = select(BatchRow.batch_id).where(*going_on, BatchRow.priority > batch.priority, waits)
    found: str | None = connection.scalar(query.order_by(BatchRow.priority.desc(), BatchRow.created_at).limit(1))
    return found


def _same_clip() -> ColumnElement[bool]:
    return and_(StageRunRow.batch_id == BatchClipRow.batch_id, StageRunRow.clip_id == BatchClipRow.clip_id)
