"""Migrations lead from anywhere to exactly the tables that the code declares."""

from __future__ import annotations

import multiprocessing
from multiprocessing.synchronize import Barrier

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import URL, Connection, inspect, text

from magi2.catalog import open_catalog
from magi2.catalog.engine import Database
from magi2.catalog.migrate import alembic_config, migrate
from magi2.catalog.tables import REVISION, VERSION_TABLE, Base
from magi2.errors import ConfigError
from tests.catalog.catalog_samples import PROFILES, make_batch

WRITERS = 8


def tables(url: URL) -> set[str]:
    return Database(url).read(lambda connection: set(inspect(connection).get_table_names()))


def version(url: URL) -> str | None:
    return Database(url).read(lambda connection: connection.scalar(text(f"SELECT version_num FROM {VERSION_TABLE}")))


def test_migrated_tables_are_those_of_the_code(empty_url: URL) -> None:
    migrate(empty_url)

    def differences(connection: Connection) -> list[object]:
        options = {"version_table": VERSION_TABLE, "compare_type": True, "compare_server_default": True}
        return compare_metadata(MigrationContext.configure(connection, opts=options), Base.metadata)

    assert Database(empty_url).read(differences) == []
    assert tables(empty_url) == {*Base.metadata.tables, VERSION_TABLE}


def test_constraints_have_the_names_of_the_code(empty_url: URL) -> None:
    migrate(empty_url)

    def names(connection: Connection, table: str) -> set[str | None]:
        found = inspect(connection)
        keys = [*found.get_foreign_keys(table), *found.get_check_constraints(table), found.get_pk_constraint(table)]
        return {key["name"] for key in keys}

    for name, table in Base.metadata.tables.items():
        assert Database(empty_url).read(names, name) == {str(each.name) for each in table.constraints}


def test_revision_of_the_code_is_the_newest_migration(empty_url: URL) -> None:
    heads = Database(empty_url).read(
        lambda connection: ScriptDirectory.from_config(alembic_config(connection)).get_heads()
    )
    assert heads == [REVISION]


def test_migrating_again_changes_nothing(url: URL) -> None:
    catalog = open_catalog(url)
    catalog.batches.create(make_batch(), PROFILES)
    migrate(url)
    migrate(str(url) if url.get_backend_name() == "sqlite" else url)
    assert version(url) == REVISION
    assert catalog.batches.get("night") is not None


def test_tables_go_and_come_back(empty_url: URL) -> None:
    url = empty_url
    migrate(url)
    Database(url).write(lambda connection: command.downgrade(alembic_config(connection), "base"))
    assert tables(url) == {VERSION_TABLE}
    migrate(url)
    assert tables(url) == {*Base.metadata.tables, VERSION_TABLE}


def test_failed_migration_leaves_nothing(empty_url: URL) -> None:
    database = Database(empty_url)
    database.write(lambda connection: connection.execute(text("CREATE TABLE stage_runs (x INTEGER)")))
    with pytest.raises(Exception, match="already exists"):
        migrate(empty_url)
    assert tables(empty_url) == {"stage_runs"}


def test_catalog_of_a_newer_version_is_refused(empty_url: URL) -> None:
    url = empty_url
    migrate(url)
    Database(url).write(lambda connection: connection.execute(text(f"UPDATE {VERSION_TABLE} SET version_num = '9999'")))
    with pytest.raises(ConfigError, match="older than its catalog"):
        migrate(url)
    with pytest.raises(ConfigError):
        open_catalog(url)


def _migrate(url: URL, barrier: Barrier) -> None:
    barrier.wait(30)
    migrate(url)


@pytest.mark.slow
def test_eight_processes_may_migrate_at_once(empty_url: URL) -> None:
    context = multiprocessing.get_context("fork")
    barrier = context.Barrier(WRITERS)
    processes = [context.Process(target=_migrate, args=(empty_url, barrier)) for _ in range(WRITERS)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0] * WRITERS
    assert version(empty_url) == REVISION
    assert tables(empty_url) == {*Base.metadata.tables, VERSION_TABLE}
