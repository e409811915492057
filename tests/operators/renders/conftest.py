"""The sample site: one for all tests that only look, one of its own for each that acts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from tests.operators.renders.renders_site import Site, client, copy_site, make_site, served


@pytest.fixture(scope="session")
def seen_site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    return make_site(tmp_path_factory.mktemp("renders"))


@pytest.fixture
def site(seen_site: Site) -> Iterator[Site]:
    """A site that the test changes nothing of."""
    seen_site.deployment.counts.forget()
    with served(seen_site):
        yield seen_site


@pytest.fixture
def own_site(seen_site: Site, tmp_path: Path) -> Iterator[Site]:
    """A site that the test may change."""
    own = copy_site(seen_site, tmp_path)
    with served(own):
        yield own
    own.catalog.close()


@pytest.fixture
def viewer(site: Site) -> TestClient:
    return client("viewer")
