"""A catalog that takes connections and statements and says nothing is an error in bounded time, never a wait."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import count
from pathlib import Path

import pytest
from sqlalchemy import Connection, text

from magi2.catalog import engine, lock
from magi2.catalog.engine import Database
from magi2.catalog.lock import named_locks
from magi2.errors import InfrastructureError
from tests.catalog.databases import Databases
from tests.relay import GUARD_S, Relay


@pytest.fixture
def relay(postgres: Databases) -> Iterator[Relay]:
    found = Relay(postgres.socket)
    yield found
    found.close()


def one(connection: Connection) -> object:
    return connection.scalar(text("SELECT 1"))


def test_server_that_never_greets_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "CONNECT_TIMEOUT_S", 1)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Timer(GUARD_S, listener.close)
        database = Database(f"postgresql+psycopg2://me@127.0.0.1:{listener.getsockname()[1]}/magi2")
        with pytest.raises(InfrastructureError, match="timeout"):
            database.read(one)


@pytest.mark.servers
@pytest.mark.parametrize("moment", ["between", "within"])
def test_server_that_falls_silent_is_away_and_is_used_again_when_it_speaks(
    relay: Relay, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    monkeypatch.setattr(engine, "CONNECT_TIMEOUT_S", 1)
    monkeypatch.setattr(engine, "STATEMENT_TIMEOUT_S", 0.5)
    monkeypatch.setattr(engine, "PATIENCE_S", 0.5)
    database = Database(f"postgresql+psycopg2://postgres@127.0.0.1:{relay.port}/shared")
    assert database.read(one) == 1

    def work(connection: Connection) -> object:
        relay.mute.set()
        return one(connection)

    if moment == "between":
        relay.mute.set()
    with pytest.raises(InfrastructureError, match=r"no answer within 1\.5 s|timeout expired"):
        database.read(work)
    relay.mute.clear()
    assert database.read(one) == 1
    database.close()


@pytest.mark.servers
def test_statement_and_lock_that_take_too_long_are_ended_by_the_server(
    postgres: Databases, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = postgres.emptied()
    monkeypatch.setattr(engine, "STATEMENT_TIMEOUT_S", 0.5)
    monkeypatch.setattr(engine, "LOCK_TIMEOUT_S", 0.2)
    monkeypatch.setattr(engine, "ATTEMPTS", 1)
    database, other = Database(url), Database(url)
    with pytest.raises(InfrastructureError, match="statement timeout"):
        database.read(lambda connection: connection.execute(text("SELECT pg_sleep(30)")))
    take = text("LOCK TABLE batches IN ACCESS EXCLUSIVE MODE")
    with other.transaction() as connection:
        connection.execute(take)
        with pytest.raises(InfrastructureError, match="lock timeout"):
            database.write(lambda connection: connection.execute(take))
    database.close(), other.close()


@pytest.mark.servers
def test_lock_by_name_may_be_waited_for_longer_than_a_statement(
    postgres: Databases, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "STATEMENT_TIMEOUT_S", 0.1)
    monkeypatch.setattr(engine, "LOCK_TIMEOUT_S", 0.1)
    monkeypatch.setattr(lock, "WAIT_S", 30.0)
    take = named_locks(postgres.emptied())
    held = ExitStack()
    held.enter_context(take("name"))
    threading.Timer(1.0, held.close).start()
    with take("name"):
        pass


def test_writer_that_keeps_the_file_is_waited_for_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "BUSY_TIMEOUT_S", 0.2)
    monkeypatch.setattr(engine, "PATIENCE_S", 0.1)
    url, attempts = f"sqlite:///{tmp_path}/catalog.sqlite", count()
    waiting, holding = Database(url), Database(url)
    monkeypatch.setattr(engine, "_BACK_OFF_S", 0.0)
    monkeypatch.setattr(engine, "_may_pass", lambda error: next(attempts) >= 0)
    with holding.transaction(), pytest.raises(InfrastructureError, match="database is locked"):
        waiting.write(one)
    assert next(attempts) == 0  # nobody asked whether it may pass
