"""Databases of a real PostgreSQL server."""

from __future__ import annotations

from itertools import count
from pathlib import Path

from sqlalchemy import URL, text

from magi2.catalog.engine import Database
from magi2.catalog.migrate import migrate
from magi2.catalog.tables import Base
from tests.real_servers import PostgresServer

_numbers = count()


class Databases:
    """Databases of a server. Making one takes ten times as long as emptying one, so most tests share one."""

    def __init__(self, server: PostgresServer) -> None:
        self._server = server
        self._shared = server.create("shared")
        migrate(self._shared)

    @property
    def socket(self) -> Path:
        """Where the server listens."""
        return next(Path(self._server.folder).glob(".s.PGSQL.*[0-9]"))

    def new(self) -> URL:
        """A database without tables."""
        return self._server.create(f"test_{next(_numbers)}")

    def emptied(self) -> URL:
        """A database with tables and no rows."""
        tables = ", ".join(Base.metadata.tables)
        Database(self._shared).write(lambda connection: connection.execute(text(f"TRUNCATE {tables}")))
        return self._shared
