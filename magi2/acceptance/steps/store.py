"""Store and catalog: whether they keep their promises, belong together, and how long a round trip takes."""

from __future__ import annotations

import secrets
import statistics
import time
from collections.abc import Callable, Iterator

from magi2.acceptance.plan import Difference, Figure, Found
from magi2.acceptance.site import Site
from magi2.artifacts.store import ArtifactStore
from magi2.catalog import catalog_url
from magi2.catalog.engine import is_made, shared_place
from magi2.deployment import Deployment

ROUNDS = 10
CONTENT = bytes(1000)


def run(site: Site) -> Iterator[Found]:
    """The store's own test, medians of requests, and the same of the catalog where there is one."""
    deployment = Deployment(site.settings)
    yield Figure("store", deployment.store.self_test())
    yield from _documents(deployment.store)
    url = catalog_url(site.settings)
    if not is_made(url):
        yield Figure("catalog", "none yet: the first batch makes it")
        return
    if mismatch := deployment.mismatch():
        yield Difference(mismatch)
        return
    yield Figure("catalog", "SQLite" if deployment.catalog.database.is_sqlite else "PostgreSQL")
    if warning := shared_place(url):
        yield Difference(warning)
    yield Figure("catalog.read", _median_ms(deployment.catalog.read_trip), "ms")
    yield Figure("catalog.write", _median_ms(deployment.catalog.write_trip), "ms")


def _documents(store: ArtifactStore) -> Iterator[Found]:
    """A small document, written, read and removed under a name of its own."""
    name = f"accept/{secrets.token_hex(8)}"
    try:
        yield Figure("store.write", _median_ms(lambda: store.put_document(name, CONTENT)), "ms")
        yield Figure("store.read", _median_ms(lambda: store.get_document(name, fresh=True)), "ms")
        if store.get_document(name, fresh=True) != CONTENT:
            yield Difference("the store gave back other bytes than were written")
    finally:
        store.remove_document(name)
    if store.get_document(name, fresh=True) is not None:
        yield Difference("a document that was removed is still in the store")


def _median_ms(work: Callable[[], object]) -> float:
    spans = []
    for _ in range(ROUNDS):
        started = time.perf_counter()
        work()
        spans.append(1e3 * (time.perf_counter() - started))
    return round(statistics.median(spans), 3)
