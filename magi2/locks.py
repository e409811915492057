"""The locks that a run's store falls back on."""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import cache

from magi2.artifacts.store import NamedLocks
from magi2.config.settings import Settings


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
