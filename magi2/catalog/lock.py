"""Locks by name for every machine that shares the catalog; a holder that dies lets go."""

from __future__ import annotations

import fcntl
import hashlib
import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import cache, partial
from pathlib import Path

from sqlalchemy import URL, text

from magi2.artifacts.store import NamedLocks
from magi2.catalog.engine import Database, allow_time
from magi2.config.settings import Settings
from magi2.errors import InfrastructureError
from magi2.files import disk_errors, make_store_folder, store_modes

WAIT_S = 120.0  # far longer than anybody holds one
_POLL_S = 0.02


def named_locks(url: str | URL) -> Callable[[str], AbstractContextManager[None]]:
    """What makes locks of names, in the catalog at `url`: advisory ones on PostgreSQL, a file beside SQLite's.

    The catalog needs no tables. Hold one briefly, and take no second one meanwhile: beside SQLite all names share one.
    Entering one raises InfrastructureError when it is not free for `WAIT_S`, or the database does not answer; leaving
    it does when the connection was lost, and with it the lock.
    """
    database = Database(url)
    if database.is_sqlite:
        return lambda name: _file_lock(Path(f"{database.url.database}.lock"))
    return partial(_advisory_lock, database)


@contextmanager
def _advisory_lock(database: Database, name: str) -> Iterator[None]:
    number = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], signed=True)
    with database.transaction() as connection:
        allow_time(connection, WAIT_S)
        connection.execute(text("SELECT pg_advisory_xact_lock(:number)"), {"number": number})
        allow_time(connection)
        yield
        connection.execute(text("SELECT 1"))  # raises when the connection, and so the lock, was lost


@contextmanager
def _file_lock(path: Path) -> Iterator[None]:
    with disk_errors(path):
        make_store_folder(path.parent, root=path.parent)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        with suppress(PermissionError):  # another user of the group made it
            os.fchmod(fd, store_modes()[1])
    try:
        _wait_for(fd, path)
        yield
    finally:
        os.close(fd)


def _wait_for(fd: int, path: Path) -> None:
    deadline = time.monotonic() + WAIT_S
    while True:
        with disk_errors(path), suppress(BlockingIOError):
            return fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if time.monotonic() > deadline:
            raise InfrastructureError(f"{path}: still locked by another process after {WAIT_S:.0f} s")
        time.sleep(_POLL_S)


def run_locks(settings: Settings) -> NamedLocks | None:
    """Locks in a deployment's catalog, which is not opened before one is taken; None when MAGI2_CATALOG is not set."""
    url = settings.catalog
    if url is None:
        return None

    @cache
    def locks() -> NamedLocks:
        return named_locks(url)

    def lock(name: str) -> AbstractContextManager[None]:
        return locks()(name)

    return lock
