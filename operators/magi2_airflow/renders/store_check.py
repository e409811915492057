"""Whether the store that pages show is the catalog's."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from magi2.artifacts.store import ArtifactStore
from magi2.catalog import Catalog
from magi2.catalog.identity import find_mismatch, last_refusal
from magi2.errors import Magi2Error

logger = logging.getLogger(__name__)

FRESH_S = 20.0
REFUSED = "the catalog was last not brought in line with its store: "


class StoreCheck:
    """What is wrong with the store, asked at most once in `FRESH_S` and by one request, for which no other waits."""

    def __init__(self, store: ArtifactStore, catalog: Catalog, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._catalog = catalog
        self._clock = clock
        self._lock = threading.Lock()
        self._asked_at = float("-inf")
        self._problem: str | None = None

    def problem(self) -> str | None:
        """One sentence without addresses, or None. Raises InfrastructureError when the catalog does not answer."""
        if self._clock() - self._asked_at >= FRESH_S and self._lock.acquire(blocking=False):
            try:
                self._problem = self._find()
                self._asked_at = self._clock()
            finally:
                self._lock.release()
        return self._problem

    def _find(self) -> str | None:
        refusal = last_refusal(self._catalog)
        try:
            mismatch = find_mismatch(self._store, self._catalog)
        except Magi2Error as error:
            logger.error("the store cannot be asked whether it is the catalog's: %s", error)
            return f"the store cannot be asked whether it is the catalog's ({error.code})"
        return mismatch or (refusal and REFUSED + refusal)
