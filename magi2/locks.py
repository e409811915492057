"""The locks of a run: those that its store falls back on, and those that keep two processes off one artifact."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache

from magi2.artifacts.recipe import Recipe
from magi2.artifacts.store import NamedLocks
from magi2.config.settings import Settings
from magi2.runtime.lock import work_lock

logger = logging.getLogger(__name__)


def run_locks(settings: Settings) -> NamedLocks | None:
    """Locks in a deployment's catalog, which is not opened before one is taken; None when MAGI2_CATALOG is not set."""
    url = settings.catalog
    if url is None:
        return None

    @cache
    def locks() -> NamedLocks:
        from magi2.catalog.lock import named_locks  # loads SQLAlchemy, which hardly any server makes a worker need

        return named_locks(url)

    def lock(name: str) -> AbstractContextManager[None]:
        return locks()(name)

    return lock


def artifact_locks(store: str, on_wait: Callable[[], None]) -> Callable[[Recipe], AbstractContextManager[None]]:
    """What makes locks of recipes, each held inside its context by one process of this user and host at a time.

    They are for renders on the CPU, which no lock on accelerators keeps apart. Who had to wait for one finds the
    artifact in the store of this address. There is no limit: the kernel frees what a dead process held. `on_wait` is
    called at once and then every 10 s.
    """

    @contextmanager
    def lock(recipe: Recipe) -> Iterator[None]:
        def tell(holder: str) -> None:
            on_wait()
            logger.info("artifact %s/%s: waits for %s", recipe.stage, recipe.key, holder)

        with work_lock(store, recipe.stage, recipe.key, timeout_s=math.inf, on_wait=tell):
            yield

    return lock
