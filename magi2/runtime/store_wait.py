"""Waiting for a store that is away, in the one place where stages are run: a try is spent only when it stays away."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TypeVar

from magi2.artifacts.store import ArtifactStore
from magi2.catalog.engine import catalog_url, is_made
from magi2.deployment import Deployment
from magi2.errors import (
    AwayError,
    CancelledError,
    GroupLostError,
    IdentityError,
    InfrastructureError,
    Magi2Error,
    error_text,
)
from magi2.files import machine_error
from magi2.stages.progress import Progress, Silent

logger = logging.getLogger(__name__)

T = TypeVar("T")

PAUSE_S, LONGEST_PAUSE_S = 1.0, 30.0
"""Until a store that is away is asked again; longer when it gives way again and again."""
TELL_S = 60.0


class StoreWait:
    """A `Patience` with a deployment's store, of MAGI2_STORE_WAIT_S seconds for each outage.

    An outage is told to the log and to `progress` when it begins, once a minute, and when it ends. `check` is called
    between two looks; what it raises ends the wait. `waits_for_mount`: a store that is empty, though the catalog knows
    of another one, is taken for a folder that is yet to be mounted; without it such a store is refused at once.
    """

    def __init__(
        self,
        deployment: Deployment,
        *,
        progress: Progress | None = None,
        check: Callable[[], None] = lambda: None,
        waits_for_mount: bool = False,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._deployment = deployment
        self._limit = deployment.settings.store_wait_s
        self._progress = progress or Silent()
        self._check = check
        self._waits_for_mount = waits_for_mount
        self._clock = clock
        self._sleep = sleep
        self._away_since: float | None = None
        self._waits = 0  # since work last went well
        self._outages = 0

    def __call__(self, work: Callable[[], T], /) -> T:
        """What `work` returns. When it fails while the store is away, whatever the error, it is called again later.

        The same holds for work that went well in a folder which was no longer the store's.
        Raises: what `work` raises of a store that is there; when the store stays away the error, or an AwayError in
        place of one that nobody would try again; what `check` raises.
        """
        while True:
            earlier = self._outages
            try:
                found = work()
            except Exception as failure:
                error = failure if isinstance(failure, Magi2Error) else machine_error(failure)
                if error is None:
                    raise
                if not self._is_away(error):
                    if self._outages == earlier:
                        raise
                    logger.warning("begins again, since the store was away meanwhile: %s", error_text(error))
                    continue
            else:
                if not self._is_unmounted():
                    self._away_since, self._waits = None, 0
                    return found
                error = self._unmounted()
            self._wait(error)

    def store_of(self, batch_id: str) -> ArtifactStore:
        """The store, known to be the catalog's, in which a batch was planned: it is not empty. Raises as a call does.

        Nothing is made in an empty folder that the store is to be mounted on, such as a new catalog.
        """

        def find() -> ArtifactStore:
            if self._waits_for_mount and self._is_empty() and not self._is_catalog_made():
                raise _EmptyError(f"store {self._deployment.store.url}: is empty, batch {batch_id} was planned in it")
            if not self._deployment.is_store_there():
                raise self._unmounted()
            return self._deployment.store_to_render()

        return self(find)

    def _wait(self, error: Magi2Error) -> None:
        """Return when the store answers again. Raises as a call does."""
        error.__traceback__ = error.__cause__ = error.__context__ = None  # their frames keep a clip's tensors in memory
        now = self._clock()
        since = self._away_since = now if self._away_since is None else self._away_since
        if now - since >= self._limit:
            raise _retried(error)
        url, reason = self._deployment.store.url, error_text(error)
        logger.warning("store %s is away; it is waited for, %g s at most: %s", url, self._limit, reason)
        self._progress.store_away(now - since, reason)
        pause, told_at = min(PAUSE_S * 2**self._waits, LONGEST_PAUSE_S), now
        self._outages, self._waits = self._outages + 1, self._waits + 1
        while True:
            self._sleep(pause)
            self._check()
            if self._is_back(error):
                break
            now = self._clock()
            if now - since >= self._limit:
                logger.error("store %s stays away, for %.0f s now: %s", url, now - since, reason)
                raise _retried(error)
            if now - told_at >= TELL_S:
                told_at = now
                logger.warning("store %s has been away for %.0f s: %s", url, now - since, reason)
                self._progress.store_away(now - since, reason)
        seconds = self._clock() - since
        logger.warning("store %s is back after %.0f s", url, seconds)
        self._progress.store_back(seconds)

    def _is_away(self, error: Magi2Error) -> bool:
        """Whether the work failed since the store is away; whatever the error, the store itself is asked."""
        if isinstance(error, AwayError):
            return True
        if isinstance(error, GroupLostError | CancelledError):
            return False
        if isinstance(error, IdentityError):
            return self._waits_for_mount and self._is_empty()
        return not self._answers()

    def _is_back(self, error: Magi2Error) -> bool:
        was_empty = isinstance(error, IdentityError | _EmptyError)
        return self._answers() and not (was_empty and self._is_empty())

    def _answers(self) -> bool:
        try:
            return self._deployment.is_store_there()
        except InfrastructureError:
            return False
        except Magi2Error:  # an answer, though no good one
            return True

    def _is_unmounted(self) -> bool:
        try:
            return not self._deployment.is_store_there()
        except Magi2Error:  # the next work will see
            return False

    def _unmounted(self) -> AwayError:
        return AwayError(f"store {self._deployment.store.url}: is not there any more, as a folder that was unmounted")

    def _is_empty(self) -> bool:
        try:
            return self._deployment.store.is_empty()
        except Magi2Error:
            return False

    def _is_catalog_made(self) -> bool:
        try:
            return is_made(catalog_url(self._deployment.settings))
        except Magi2Error:  # there is none
            return True


class _EmptyError(AwayError):
    """The store has nothing, where something of it is needed."""


def _retried(error: Magi2Error) -> Magi2Error:
    """The error, if it is tried again or names what to do about the store; else one that is."""
    if error.retryable or isinstance(error, IdentityError):
        return error
    return AwayError(error_text(error))
