"""The store and the catalog of a deployment, opened together by whoever writes to either."""

from __future__ import annotations

import logging

from magi2.artifacts.address import open_store
from magi2.artifacts.store import ArtifactStore
from magi2.catalog import Catalog, catalog_url, open_catalog
from magi2.catalog.engine import is_made
from magi2.catalog.identity import find_mismatch, require_match
from magi2.catalog.lock import run_locks
from magi2.config.settings import Settings
from magi2.errors import IdentityError, Magi2Error

logger = logging.getLogger(__name__)


def open_both(settings: Settings) -> tuple[ArtifactStore, Catalog]:
    """Store and catalog, to be compared or brought in line: nobody has asked yet whether they belong together.

    Raises: ConfigError or InfrastructureError when the catalog cannot be opened.
    """
    return open_store(settings.store, lock=run_locks(settings)), open_catalog(catalog_url(settings))


def open_matching(settings: Settings, *, dry_run: bool = False) -> tuple[ArtifactStore, Catalog]:
    """Store and catalog, of one identity: for whoever changes the catalog or removes from the store.

    A dry run gives neither an identity, but is refused where the run would be.
    Raises: IdentityError when they do not belong together, ConfigError, InfrastructureError.
    """
    store, catalog = open_both(settings)
    require_match(store, catalog, dry_run=dry_run)
    return store, catalog


def open_store_to_render(settings: Settings, *, dry_run: bool = False) -> ArtifactStore:
    """The store, known to be the catalog's: for whoever adds to it.

    A catalog that cannot be opened keeps nobody from rendering, and a log line says that it was not asked. A dry run
    makes nothing, as with `open_matching`.
    Raises: IdentityError when the store is not the catalog's, InfrastructureError when it does not answer.
    """
    store = open_store(settings.store, lock=run_locks(settings))
    try:
        url = catalog_url(settings)
        if dry_run and not is_made(url):
            return store  # a catalog that is not there knows of no other store
        catalog = open_catalog(url)
    except Magi2Error as error:
        logger.warning("store %s is used without asking whether it is the catalog's: %s", store.url, error)
        return store
    require_match(store, catalog, dry_run=dry_run)
    return store


def warning(settings: Settings) -> str | None:
    """One line for whoever only reads, when the store does not seem to be the catalog's or cannot be asked."""
    try:
        mismatch = find_mismatch(*open_both(settings))
    except IdentityError as error:
        return str(error)
    except Magi2Error as error:
        return f"nobody knows whether store and catalog belong together: {error}"
    return mismatch and f"{mismatch}; what is shown may be wrong ({IdentityError.hint})"
