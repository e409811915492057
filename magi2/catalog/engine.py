"""The connection to the catalog's database: its address, its transactions and what its errors mean to us."""

from __future__ import annotations

import logging
import os
import random
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError, DataError, DBAPIError, IntegrityError, NoSuchModuleError, TimeoutError

from magi2.artifacts.address import open_store
from magi2.artifacts.local import LocalStore
from magi2.catalog.mounts import network_file_system
from magi2.catalog.states import StateError
from magi2.config.settings import Settings
from magi2.errors import ConfigError, InfrastructureError, Magi2Error
from magi2.files import disk_errors, make_store_folder, store_modes

logger = logging.getLogger(__name__)

FILE_NAME = "catalog.sqlite"
BUSY_TIMEOUT_S = 12.0  # the longest a writer waits for another; the longest transaction takes a few seconds
CONNECT_TIMEOUT_S = 5  # for each of the server's addresses
STATEMENT_TIMEOUT_S = 8.0
LOCK_TIMEOUT_S = 5.0
POOL_TIMEOUT_S = 12.0
PATIENCE_S = 8.0  # after so long nothing is repeated: what took that much does not pass in a moment
ATTEMPTS = 6
RETRY_S = 300.0
"""A catalog that is away takes a while to say so, in which a render stands still: it asks again only after so long."""
_BACK_OFF_S = 0.05
_URL_HINT = "give sqlite:////folder/catalog.sqlite or postgresql+psycopg2://user:password@host/database"
_PASSING_STATES = {"40001", "40P01", "55P03"}  # PostgreSQL: serialization failure, deadlock, lock not available
_NO_TABLE_STATE = "42P01"
_WRITING = "magi2_writing"

P = ParamSpec("P")
T = TypeVar("T")


def catalog_url(settings: Settings) -> URL:
    """The catalog's address: MAGI2_CATALOG, or else a SQLite file in the local artifact store.

    Its `str` and `repr` show no password. Raises ConfigError when the store is remote and no address is set, or when
    the address is none.
    """
    if settings.catalog:
        return parse_url(settings.catalog)
    store = None if settings.store.startswith("s3:") else open_store(settings.store)
    if not isinstance(store, LocalStore):
        raise ConfigError(
            "no catalog: MAGI2_CATALOG is not set, and the artifact store is no folder that could hold one",
            hint="set MAGI2_CATALOG to a PostgreSQL URL, or to sqlite:////folder/catalog.sqlite",
        )
    return URL.create("sqlite", database=str(store.root / FILE_NAME))


def is_made(url: URL) -> bool:
    """Whether opening the catalog would make nothing: it lies on a server, or its file is there."""
    return url.get_backend_name() != "sqlite" or Path(url.database or "").is_file()


def shared_place(url: URL) -> str | None:
    """One line for whoever keeps a SQLite catalog on a network file system; None for all others."""
    if url.get_backend_name() != "sqlite":
        return None
    kind = network_file_system(Path(str(url.database)))
    if kind is None:
        return None
    reason = f"lies on a network file system ({kind}), where SQLite's log and locks do not hold between hosts"
    return f"catalog {url.database} {reason}: set MAGI2_CATALOG=postgresql://user:password@host/database"


def parse_url(text: str | URL) -> URL:
    """The address as a URL. Raises ConfigError, which never repeats the text, since it may hold a password."""
    try:
        url = make_url(text)
    except (ArgumentError, ValueError) as error:
        raise ConfigError("the catalog's address is not a database URL", hint=_URL_HINT) from error
    if url.get_backend_name() not in ("sqlite", "postgresql"):
        raise ConfigError(f"the catalog cannot be kept in {url.get_backend_name()!r}", hint=_URL_HINT)
    if url.get_backend_name() == "sqlite" and url.database in (None, "", ":memory:"):
        raise ConfigError("a SQLite catalog needs a file, which other processes can open", hint=_URL_HINT)
    return url


class Database:
    """Short transactions on one database, repeated when another writer was in the way.

    A database that does not answer, or only slowly, is an InfrastructureError within about 15 seconds for each
    statement: nobody who renders waits longer for it.
    The engine is made on first use and again after a fork, so an object may be handed to worker processes.
    What `before_commit` does is the last of every transaction that `write` makes.
    """

    def __init__(self, url: str | URL) -> None:
        self.url = parse_url(url)
        self.before_commit: Callable[[Connection], None] | None = None
        self._engines: dict[int, Engine] = {}

    def __repr__(self) -> str:
        return f"Database({self.place!r})"

    @property
    def is_sqlite(self) -> bool:
        return self.url.get_backend_name() == "sqlite"

    @property
    def place(self) -> str:
        """Where the database is, without user and password."""
        if self.is_sqlite:
            return str(self.url.database)
        host = self.url.host or self.url.query.get("host") or "localhost"
        port = f":{self.url.port}" if self.url.port else ""
        return f"postgresql://{host}{port}/{self.url.database}"

    def read(self, work: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """What `work` returns, called with a connection. Raises InfrastructureError or ConfigError."""
        return self._run(lambda connection: work(connection, *args, **kwargs), writing=False)

    def write(self, work: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """What `work` returns, called with a connection whose transaction is then committed, all of it or nothing.

        `work` may be called several times, so its arguments are no iterators.
        Raises: StateError when a row refers to one that is not there, InfrastructureError, ConfigError.
        """
        return self._run(lambda connection: work(connection, *args, **kwargs), writing=True)

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """A writing transaction around what cannot be repeated. Raises InfrastructureError or ConfigError."""
        try:
            with self._engine().execution_options(**{_WRITING: True}).begin() as connection:
                yield connection
        except DBAPIError as error:
            raise self._explain(error) from error
        except TimeoutError as error:
            raise InfrastructureError(f"catalog {self.place}: all connections are in use") from error

    def close(self) -> None:
        """Close this process's connections; they open again when needed."""
        if engine := self._engines.pop(os.getpid(), None):
            engine.dispose()

    def _run(self, work: Callable[[Connection], T], *, writing: bool) -> T:
        began = time.monotonic()
        for attempt in range(1, ATTEMPTS + 1):
            try:
                with self._engine().execution_options(**{_WRITING: writing}).begin() as connection:
                    result = work(connection)
                    if writing and self.before_commit is not None:
                        self.before_commit(connection)
                    return result
            except DBAPIError as error:
                is_late = time.monotonic() - began > PATIENCE_S
                if attempt == ATTEMPTS or is_late or not _may_pass(error):
                    raise self._explain(error) from error
            except OverflowError as error:  # the SQLite driver's word for it
                raise StateError(f"catalog {self.place}: a number is too large: {error}") from error
            except TimeoutError as error:
                raise InfrastructureError(f"catalog {self.place}: all connections are in use") from error
            time.sleep(_BACK_OFF_S * 2**attempt * random.uniform(0.5, 1.5))
        raise InfrastructureError(f"catalog {self.place}: unreachable")  # pragma: no cover

    def _engine(self) -> Engine:
        # The parent's engine stays referenced in a forked child: even closing an inherited SQLite handle is unsafe.
        pid = os.getpid()
        if pid not in self._engines:
            self._engines[pid] = self._sqlite_engine() if self.is_sqlite else self._postgresql_engine()
        return self._engines[pid]

    def _sqlite_engine(self) -> Engine:
        file = Path(str(self.url.database)).absolute()
        with disk_errors(file.parent):
            make_store_folder(file.parent, root=file.parent)
            _close_to_others(file)
        if warning := shared_place(self.url):
            logger.warning("%s", warning)
        engine = create_engine(
            self.url,
            hide_parameters=True,
            pool_timeout=POOL_TIMEOUT_S,
            connect_args={"timeout": BUSY_TIMEOUT_S},
        )
        event.listen(engine, "connect", _configure_sqlite)
        event.listen(engine, "begin", _begin_sqlite)
        return engine

    def _postgresql_engine(self) -> Engine:
        try:
            driver = self.url.get_driver_name()
            # Else this driver waits for the server's answer to every single row.
            batched = {"executemany_mode": "values_plus_batch"} if driver == "psycopg2" else {}
            engine = create_engine(
                self.url,
                hide_parameters=True,
                pool_pre_ping=True,
                pool_size=2,
                pool_timeout=POOL_TIMEOUT_S,
                connect_args=_postgresql_limits(driver, self.url.query),
                **batched,
            )
        except (NoSuchModuleError, ModuleNotFoundError) as error:
            raise ConfigError(
                f"catalog {self.place}: no driver for {self.url.drivername}", hint="pip install psycopg2-binary"
            ) from error
        event.listen(engine, "begin", allow_time)
        return engine

    def _explain(self, error: DBAPIError) -> Magi2Error:
        message = f"catalog {self.place}: {self._first_line(error)}"
        if isinstance(error, IntegrityError | DataError):
            return StateError(message, hint="a batch, clip or artifact is named that was never entered")
        if "no such table" in message or _sql_state(error) == _NO_TABLE_STATE:
            return ConfigError(message, hint="run: magi2 catalog migrate")
        return InfrastructureError(message)

    def _first_line(self, error: DBAPIError) -> str:
        line = (str(error.orig).strip().splitlines() or [type(error.orig).__name__])[0]
        return line.replace(str(self.url.password), "***") if self.url.password else line


def allow_time(connection: Connection, seconds: float | None = None) -> None:
    """Let a statement of this transaction take so long on a server, locks in its way included; None: as usual."""
    if connection.dialect.name != "postgresql":
        return
    statement_s, lock_s = (STATEMENT_TIMEOUT_S, LOCK_TIMEOUT_S) if seconds is None else (seconds + 1.0, seconds)
    connection.connection.dbapi_connection.answer_s = statement_s + 1.0  # type: ignore[union-attr]  # our class
    # Of the transaction, not of the session: a pooler before the server gives its sessions to others.
    connection.exec_driver_sql(
        f"SET LOCAL statement_timeout = {statement_s * 1000:.0f}; SET LOCAL lock_timeout = {lock_s * 1000:.0f}"
    )


def _close_to_others(file: Path) -> None:
    """Make the database's file, if need be, before SQLite does: its log and its index get the same mode."""
    with suppress(FileExistsError):
        os.close(os.open(file, os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        file.chmod(store_modes()[1])


def _configure_sqlite(connection: Any, record: object) -> None:
    connection.isolation_level = None  # the driver must not begin transactions on its own: see _begin_sqlite
    cursor = connection.cursor()
    if cursor.execute("PRAGMA journal_mode").fetchone() != ("wal",):
        cursor.execute("PRAGMA journal_mode = WAL")
    cursor.execute("PRAGMA foreign_keys = ON")
    # A power cut may take the last transactions, never the file's soundness; `rebuild` brings them back.
    cursor.execute("PRAGMA synchronous = NORMAL")
    cursor.close()


def _begin_sqlite(connection: Connection) -> None:
    # A transaction that begins by reading cannot be turned into a writing one when another wrote in between.
    writing = connection.get_execution_options().get(_WRITING)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writing else "BEGIN")


def _postgresql_limits(driver: str, query: Mapping[str, Any]) -> dict[str, Any]:
    """What to connect with; a limit that stands in the address is the user's choice and stays."""
    if not driver.startswith("psycopg"):
        return {}
    limits: dict[str, Any] = {
        "connect_timeout": CONNECT_TIMEOUT_S,
        "tcp_user_timeout": int(STATEMENT_TIMEOUT_S * 1000),
        "keepalives_idle": 10,
        "keepalives_interval": 5,
        "keepalives_count": 3,
    }
    limits = {name: value for name, value in limits.items() if name not in query}
    if driver == "psycopg2":
        from magi2.catalog.postgresql import TimedConnection

        limits["connection_factory"] = TimedConnection
    return limits


def _may_pass(error: DBAPIError) -> bool:
    return error.connection_invalidated or "is locked" in str(error.orig) or _sql_state(error) in _PASSING_STATES


def _sql_state(error: DBAPIError) -> str | None:
    return getattr(error.orig, "pgcode", None) or getattr(error.orig, "sqlstate", None)
