"""Connections to PostgreSQL that wait for an answer no longer than a limit, whatever became of the server.

The server's own limits hold while it answers, and the kernel's while nobody is there. Neither ends the wait for a
server, or a proxy before it, that takes every byte and says nothing.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, cast

from psycopg2 import OperationalError
from psycopg2.extensions import connection, cursor

ANSWER_S = 9.0
"""Before a transaction has said what it allows."""


class TimedCursor(cursor):  # type: ignore[misc]  # has no types
    """A cursor whose statements raise OperationalError, and end the connection, after its limit without an answer."""

    def execute(self, query: Any, vars: Any = None) -> None:
        with _limited(cast(TimedConnection, self.connection)):
            super().execute(query, vars)


class TimedConnection(connection):  # type: ignore[misc]  # has no types
    """A connection that waits for each answer `answer_s` seconds at most."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.cursor_factory = TimedCursor
        self.answer_s = ANSWER_S

    def commit(self) -> None:
        with _limited(self):
            super().commit()

    def rollback(self) -> None:
        with _limited(self):
            super().rollback()


@contextmanager
def _limited(waiting: TimedConnection) -> Iterator[None]:
    """Hang up after the connection's limit, which wakes the driver; by a handle that is nobody else's meanwhile."""
    has_passed = threading.Event()
    with socket.socket(fileno=os.dup(waiting.fileno())) as line:

        def hang_up() -> None:
            has_passed.set()
            with suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)

        watch = threading.Timer(waiting.answer_s, hang_up)
        watch.daemon = True
        watch.start()
        try:
            yield
        except Exception as error:
            if has_passed.is_set():
                raise OperationalError(f"no answer within {waiting.answer_s:g} s") from error
            raise
        finally:
            watch.cancel()
