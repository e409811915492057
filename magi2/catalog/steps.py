"""Which steps of housekeeping are done, so that one that was killed, or ran out of time, goes on where it stopped.

They stand beside the notices of the catalog: a catalog that was lost or made anew has none, and all is done again.
"""

from __future__ import annotations

import logging
from datetime import timedelta

from sqlalchemy import Connection, delete, select

from magi2.catalog.records import now
from magi2.catalog.repository import Catalog
from magi2.catalog.statements import upsert
from magi2.catalog.tables import NoticeRow

logger = logging.getLogger(__name__)

LONGEST = timedelta(days=1)
"""What was done longer ago is done again: much may have come since."""


class Steps:
    """The steps of one kind of work that earlier tries have done; with `catalog` None none is remembered."""

    def __init__(self, catalog: Catalog | None, work: str) -> None:
        self._catalog, self._kind = catalog, f"housekeeping {work}"
        self._done: set[str] = catalog.database.read(_done, self._kind) if catalog else set()
        if self._done:
            logger.info("%s goes on where it stopped: %d steps are done", work, len(self._done))

    def is_done(self, step: str) -> bool:
        """Whether an earlier try did it."""
        return step in self._done

    def add(self, step: str) -> None:
        """Remember that a step is done."""
        self._done.add(step)
        if self._catalog:
            row = {"kind": self._kind, "subject": step, "at": now()}
            self._catalog.database.write(upsert, NoticeRow, [row], update=["at"])

    def clear(self) -> None:
        """All is done: the next time starts anew."""
        self._done.clear()
        if self._catalog:
            query = delete(NoticeRow).where(NoticeRow.kind == self._kind)
            self._catalog.database.write(lambda connection: connection.execute(query))


def _done(connection: Connection, kind: str) -> set[str]:
    query = select(NoticeRow.subject).where(NoticeRow.kind == kind, NoticeRow.at >= now() - LONGEST)
    return set(connection.scalars(query))
