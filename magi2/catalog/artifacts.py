"""The artifact index: the store's manifests, in a form that can be searched and counted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import fields
from typing import Any

from sqlalchemy import Connection, Row, Select, case, delete, func, select, update

from magi2.artifacts.manifest import Manifest
from magi2.catalog.engine import Database
from magi2.catalog.records import ArtifactRecord, ClipState, now
from magi2.catalog.statements import chunks, upsert
from magi2.catalog.tables import ArtifactRow, BatchClipRow, StageRunRow

_COLUMNS = [field.name for field in fields(ArtifactRecord)]
_PAGE = 5000  # rows held at once while all are read


class Artifacts:
    """What is in the store, as far as its manifests were entered."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def index(self, manifests: Iterable[Manifest]) -> None:
        """Enter manifests that the store gave; one that is there is replaced, since it was made anew."""
        for chunk in chunks(manifests):
            records = [ArtifactRecord.of(manifest) for manifest in chunk]
            self._database.write(insert_artifacts, records)

    def forget(self, keys: Iterable[str]) -> None:
        """Take artifacts out of the index, because the store has removed them. Clips they proved are waiting again."""
        for chunk in chunks(keys):
            self._database.write(_forget, chunk)

    def of_others(self, batch_id: str) -> set[str]:
        """The keys of what other batches made or found."""
        return self._database.read(_of_others, batch_id)

    def get(self, key: str) -> ArtifactRecord | None:
        """The artifact's row, or None."""
        query = select(ArtifactRow.__table__).where(ArtifactRow.key == key)
        row = self._database.read(lambda connection: connection.execute(query).one_or_none())
        return None if row is None else _record(row)

    def of_keys(self, keys: Iterable[str]) -> dict[str, ArtifactRecord]:
        """The rows of these artifacts, by key, as far as they are there."""
        found: dict[str, ArtifactRecord] = {}
        for chunk in chunks(keys):
            query = select(ArtifactRow.__table__).where(ArtifactRow.key.in_(chunk))
            found |= {record.key: record for record in self._database.read(_records, query)}
        return found

    def records(self, stage: str) -> Iterator[ArtifactRecord]:
        """All artifacts of a stage, in order of their keys, read page by page."""
        last = ""
        while True:
            query = select(ArtifactRow.__table__).where(ArtifactRow.stage == stage, ArtifactRow.key > last)
            page = self._database.read(_records, query.order_by(ArtifactRow.key).limit(_PAGE))
            yield from page
            if len(page) < _PAGE:
                return
            last = page[-1].key

    def totals(self) -> dict[str, tuple[int, int]]:
        """How many artifacts of each stage there are, and their bytes."""
        query = select(ArtifactRow.stage, func.count(), func.sum(ArtifactRow.size_bytes)).group_by(ArtifactRow.stage)
        rows = self._database.read(lambda connection: connection.execute(query).all())
        return {stage: (count, int(size)) for stage, count, size in rows}


def _of_others(connection: Connection, batch_id: str) -> set[str]:
    runs = select(StageRunRow.artifact_key).where(StageRunRow.batch_id != batch_id)
    files = select(BatchClipRow.artifact_key).where(BatchClipRow.batch_id != batch_id)
    found: set[str | None] = {*connection.scalars(runs.distinct()), *connection.scalars(files.distinct())}
    return {key for key in found if key is not None}


def insert_artifacts(connection: Connection, records: Iterable[ArtifactRecord]) -> None:
    """Enter or replace artifacts."""
    rows = [{**vars(record), "flags": list(record.flags)} for record in records]
    upsert(connection, ArtifactRow, rows, update=[name for name in _COLUMNS if name != "key"])


def _forget(connection: Connection, keys: list[str]) -> None:
    was_done = BatchClipRow.state == ClipState.DONE
    connection.execute(
        update(BatchClipRow)
        .where(BatchClipRow.artifact_key.in_(keys))
        .values(
            state=case((was_done, ClipState.WAITING.value), else_=BatchClipRow.state),
            reason=case((was_done, "its file was removed from the store"), else_=BatchClipRow.reason),
            artifact_key=None,
            updated_at=now(),
        )
    )
    connection.execute(delete(ArtifactRow).where(ArtifactRow.key.in_(keys)))


def _records(connection: Connection, query: Select[*tuple[Any, ...]]) -> list[ArtifactRecord]:
    return [_record(row) for row in connection.execute(query)]


def _record(row: Row[Any]) -> ArtifactRecord:
    values = {name: getattr(row, name) for name in _COLUMNS}
    return ArtifactRecord(**{**values, "flags": tuple(values["flags"])})
