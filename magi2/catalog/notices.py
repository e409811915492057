"""What people were told of, so that they are told once."""

from __future__ import annotations

from sqlalchemy import Connection, delete, select

from magi2.catalog.engine import Database
from magi2.catalog.records import now
from magi2.catalog.statements import upsert
from magi2.catalog.tables import NoticeRow


class Notices:
    """Notices by kind and subject, a batch id or any other name. All raise InfrastructureError like the others."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def is_first(self, kind: str, subject: str) -> bool:
        """Enter that people are told now; whether they were not before. Of several callers at once one hears True."""
        return self._database.write(_enter, kind, subject)

    def forget(self, kind: str, subject: str) -> None:
        """Let people be told again when it happens again."""
        query = delete(NoticeRow).where(NoticeRow.kind == kind, NoticeRow.subject == subject)
        self._database.write(lambda connection: connection.execute(query))


def _enter(connection: Connection, kind: str, subject: str) -> bool:
    mine = now()
    upsert(connection, NoticeRow, [{"kind": kind, "subject": subject, "at": mine}])
    found = select(NoticeRow.at).where(NoticeRow.kind == kind, NoticeRow.subject == subject)
    return connection.scalar(found) == mine
