"""Every promise of the catalog is kept on SQLite and on a real PostgreSQL server."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import URL

from magi2.artifacts import LocalStore
from magi2.catalog import Catalog, open_catalog
from magi2.catalog.migrate import migrate
from tests.catalog.databases import Databases
from tests.real_servers import postgresql

KINDS = ["sqlite", pytest.param("postgresql", marks=pytest.mark.servers)]
ALIKE = ("test_catalog_mending.py", "test_catalog_rebuild.py", "test_catalog_steps.py", "test_catalog_verify.py")
"""They ask the database for nothing that other files do not ask as well. On PostgreSQL the first of each is run in
`make test`, and the others under `make test-servers`."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    seen = set[str]()
    for item in items:
        callspec = getattr(item, "callspec", None)
        if item.path.name in ALIKE and callspec and "postgresql" in callspec.params.values():
            if item.path.name in seen:
                item.add_marker(pytest.mark.deployment)
            seen.add(item.path.name)


@pytest.fixture(scope="session")
def postgres() -> Iterator[Databases]:
    with postgresql() as server:
        yield Databases(server)


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("catalog") / "template.sqlite"
    migrate(f"sqlite:///{path}")
    return path


@pytest.fixture(params=KINDS)
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> URL:
    """A database without tables."""
    if request.param == "sqlite":
        return URL.create("sqlite", database=str(tmp_path / "empty" / "catalog.sqlite"))
    postgres: Databases = request.getfixturevalue("postgres")
    return postgres.new()


@pytest.fixture(params=KINDS)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> URL:
    """A database with tables and no rows; on PostgreSQL the tables must stay as they are."""
    if request.param == "sqlite":
        path = tmp_path / "catalog.sqlite"
        shutil.copy(request.getfixturevalue("sqlite_template"), path)
        return URL.create("sqlite", database=str(path))
    postgres: Databases = request.getfixturevalue("postgres")
    return postgres.emptied()


@pytest.fixture
def catalog(url: URL) -> Iterator[Catalog]:
    opened = open_catalog(url)
    yield opened
    opened.close()


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "store")
