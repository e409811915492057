"""The catalog as one object: what the plan, the stages, the report and the page in the UI talk to."""

from __future__ import annotations

from sqlalchemy import URL, Connection, inspect, select, text

from magi2.catalog.artifacts import Artifacts
from magi2.catalog.batches import Batches
from magi2.catalog.clips import Clips
from magi2.catalog.control import Control
from magi2.catalog.engine import Database
from magi2.catalog.kept import settle_counts
from magi2.catalog.notices import Notices
from magi2.catalog.runs import Runs
from magi2.catalog.shards import Shards
from magi2.catalog.tables import REVISION, VERSION_TABLE
from magi2.errors import ConfigError


class Catalog:
    """Batches, their clips, stage runs and the artifact index. Threads and forked processes may share one."""

    def __init__(self, database: Database) -> None:
        self.database = database
        database.before_commit = settle_counts
        self.batches = Batches(database)
        self.clips = Clips(database)
        self.runs = Runs(database)
        self.shards = Shards(database)
        self.artifacts = Artifacts(database)
        self.control = Control(database)
        self.notices = Notices(database)

    def __repr__(self) -> str:
        return f"Catalog({self.database.place!r})"

    def read_trip(self) -> None:
        """Ask the database for nothing: what a question takes at least. Raises InfrastructureError or ConfigError."""
        self.database.read(_ask_nothing)

    def write_trip(self) -> None:
        """Commit a transaction that changes nothing, but waits its turn like one that does."""
        self.database.write(_ask_nothing)

    def close(self) -> None:
        """Close this process's connections; they open again when needed."""
        self.database.close()


def open_catalog(url: str | URL) -> Catalog:
    """The catalog at `url`, as `catalog_url` gives it; a SQLite file is made or upgraded on the way.

    A server's tables are left to `magi2 catalog migrate`, since workers of other versions may be using them.
    Raises: ConfigError when they are not of this version, InfrastructureError when it does not answer.
    """
    database = Database(url)
    revision = database.read(_revision)
    if revision != REVISION:
        if not database.is_sqlite:
            state = f"has tables of version {revision}, this code needs {REVISION}" if revision else "has no tables"
            raise ConfigError(f"catalog {database.place}: {state}", hint="run: magi2 catalog migrate")
        from magi2.catalog.migrate import migrate  # Alembic takes 0.3 s that only a new file needs to pay

        migrate(database.url)
    return Catalog(database)


def _revision(connection: Connection) -> str | None:
    if not inspect(connection).has_table(VERSION_TABLE):
        return None
    revision: str | None = connection.scalar(text(f"SELECT version_num FROM {VERSION_TABLE}"))
    return revision


def _ask_nothing(connection: Connection) -> None:
    connection.execute(select(1))
