"""Addresses without secrets, transactions that are repeated, connections that are not inherited."""

from __future__ import annotations

import logging
import multiprocessing
import sqlite3
import traceback
from itertools import count
from pathlib import Path

import pytest
from sqlalchemy import URL, Connection, text
from sqlalchemy.exc import OperationalError

from magi2.catalog import Catalog, PlannedClip, StateError, catalog_url, engine, open_catalog
from magi2.catalog.engine import Database
from magi2.catalog.migrate import migrate
from magi2.config.settings import Settings
from magi2.errors import ConfigError, InfrastructureError
from tests.catalog.catalog_samples import PROFILES, make_batch, make_clip

SECRET = "s3cr3t-pa55"


def test_default_is_a_file_beside_the_local_store(tmp_path: Path) -> None:
    for store in (str(tmp_path), tmp_path.as_uri()):
        url = catalog_url(Settings(store=store))
        assert (url.drivername, url.database) == ("sqlite", str(tmp_path / "catalog.sqlite"))


def test_remote_store_needs_an_address() -> None:
    with pytest.raises(ConfigError, match="MAGI2_CATALOG"):
        catalog_url(Settings(store="s3://clips/?endpoint=http://127.0.0.1:1"))
    url = catalog_url(Settings(store="s3://clips", catalog="postgresql+psycopg2://me:word@db/magi2"))
    assert (url.host, url.database, url.password) == ("db", "magi2", "word")


@pytest.mark.parametrize(
    "url",
    [
        "",
        "catalog.sqlite",
        f"mysql://me:{SECRET}@db/x",
        f"postgres://:{SECRET}@db/x",
        "sqlite://",
        "sqlite:///:memory:",
    ],
)
def test_address_of_no_use_is_refused_without_repeating_it(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Database(url)
    assert SECRET not in str(caught.value)


def test_password_is_in_no_error_log_or_repr(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    urls = [
        f"postgresql+psycopg2://me:{SECRET}@127.0.0.1:1/magi2",
        f"postgresql+psycopg2://127.0.0.1:1/x?password={SECRET}",
    ]
    for url in urls:
        database = Database(url)
        with pytest.raises(InfrastructureError, match=r"catalog postgresql://127\.0\.0\.1:1/") as caught:
            database.read(lambda connection: connection.execute(text("SELECT 1")))
        shown = "".join(traceback.format_exception(caught.value)) + caplog.text
        assert SECRET not in shown + repr(database) + repr(Catalog(database)) + str(
            catalog_url(Settings(catalog=urls[0]))
        )
    assert SECRET not in repr(Settings(catalog=urls[0]))


def test_prompts_are_in_no_error(catalog: Catalog) -> None:
    with pytest.raises(StateError) as caught:
        catalog.clips.add("night", [PlannedClip(make_clip(prompt=SECRET))])
    assert SECRET not in "".join(traceback.format_exception(caught.value))


def test_missing_driver_is_named() -> None:
    with pytest.raises(ConfigError, match=r"no driver for postgresql\+nosuch"):
        Database("postgresql+nosuch://db/x").read(lambda connection: None)


def test_server_without_tables_names_the_command(empty_url: URL) -> None:
    if empty_url.get_backend_name() == "sqlite":
        assert open_catalog(empty_url).batches.search().total == 0  # a file of one's own is made on the way
        return
    with pytest.raises(ConfigError, match=r"has no tables.*magi2 catalog migrate"):
        open_catalog(empty_url)
    with pytest.raises(ConfigError, match="magi2 catalog migrate"):
        Catalog(Database(empty_url)).batches.search()


def test_sqlite_is_set_up_for_many_processes(tmp_path: Path) -> None:
    database = open_catalog(f"sqlite:///{tmp_path / 'new' / 'catalog.sqlite'}").database
    names = ("journal_mode", "foreign_keys", "busy_timeout", "synchronous")
    found = database.read(lambda connection: [connection.scalar(text(f"PRAGMA {name}")) for name in names])
    assert found == ["wal", 1, 12_000, 1]


def test_folder_that_cannot_be_made_is_trouble_of_the_machine(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InfrastructureError, match="file"):
        open_catalog(f"sqlite:///{tmp_path / 'file' / 'catalog.sqlite'}")


def test_file_that_is_no_database_is_named(tmp_path: Path) -> None:
    (tmp_path / "catalog.sqlite").write_bytes(b"no database at all" * 100)
    with pytest.raises(InfrastructureError, match=r"catalog\.sqlite: file is not a database"):
        open_catalog(f"sqlite:///{tmp_path / 'catalog.sqlite'}")


@pytest.mark.parametrize("failures", [0, 2, engine.ATTEMPTS - 1, engine.ATTEMPTS])
def test_transaction_is_repeated_when_another_was_in_the_way(
    url: URL, monkeypatch: pytest.MonkeyPatch, failures: int
) -> None:
    monkeypatch.setattr(engine, "_BACK_OFF_S", 0.0)
    attempts = count()

    def work(connection: Connection) -> str:
        if next(attempts) < failures:
            raise OperationalError("UPDATE", {}, sqlite3.OperationalError("database is locked"))
        return "done"

    if failures < engine.ATTEMPTS:
        assert Database(url).write(work) == "done"
    else:
        with pytest.raises(InfrastructureError, match="database is locked"):
            Database(url).write(work)
    assert next(attempts) == min(failures + 1, engine.ATTEMPTS)


def test_failed_transaction_leaves_nothing(catalog: Catalog) -> None:
    def work(connection: Connection) -> None:
        connection.execute(text("DELETE FROM batches"))
        raise StateError("changed my mind")

    catalog.batches.create(make_batch(), PROFILES)
    with pytest.raises(StateError):
        catalog.database.write(work)
    assert catalog.batches.get("night") is not None


@pytest.mark.slow
def test_forked_process_opens_its_own_connections(catalog: Catalog) -> None:
    catalog.batches.create(make_batch(), PROFILES)
    child = multiprocessing.get_context("fork").Process(
        target=lambda: catalog.batches.create(make_batch("child"), PROFILES)
    )
    child.start()
    child.join(30)
    assert child.exitcode == 0
    assert catalog.batches.search().total == 2


def test_closed_catalog_opens_again(catalog: Catalog) -> None:
    catalog.close()
    assert catalog.batches.search().total == 0


def test_migrations_leave_the_catalog_usable(empty_url: URL) -> None:
    migrate(empty_url)
    assert open_catalog(empty_url).batches.search().total == 0
