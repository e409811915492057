"""Bringing a database to the tables of this version. Any number of processes may try at once."""

from __future__ import annotations

import threading
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.util import CommandError
from sqlalchemy import URL, Connection, text

from magi2.catalog.engine import Database, allow_time
from magi2.catalog.kept import settle_counts
from magi2.errors import ConfigError

_LOCK = 0x6D616769  # "magi"
_LONGEST_S = 3600.0  # a table that is full is rewritten, and another process may be at it
_one_at_a_time = threading.Lock()  # Alembic keeps the running migration in a global


def migrate(url: str | URL) -> None:
    """Create or upgrade the tables, all or nothing; no work when they are up to date.

    Raises: ConfigError when the catalog is of a newer version than this code, InfrastructureError.
    """
    database = Database(url)
    try:
        with _one_at_a_time:
            database.write(_upgrade)
    except CommandError as error:
        raise ConfigError(
            f"catalog {database.place}: {error}", hint="update magi2: it is older than its catalog"
        ) from (error)
    finally:
        database.close()


def alembic_config(connection: Connection) -> Config:
    """Alembic's settings for this connection."""
    config = Config(attributes={"connection": connection})
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations").replace("%", "%%"))
    config.set_main_option("path_separator", "newline")
    return config


def _upgrade(connection: Connection) -> None:
    allow_time(connection, _LONGEST_S)
    # On SQLite the writing transaction itself keeps the others out.
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _LOCK})
    command.upgrade(alembic_config(connection), "head")
    settle_counts(connection)
