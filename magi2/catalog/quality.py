"""The defects of clips in the catalog: judged when somebody asks, under the thresholds of today, and then kept.

A clip's `defects` hold under the thresholds named by its `judged_by` alone. So other thresholds, and measures or
expectations that are new, need nobody who goes through the catalog: what is not judged so is, before it is shown.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Connection, Text, bindparam, cast, exists, func, or_, select, update

from magi2.catalog.engine import Database
from magi2.catalog.records import ClipState, RunState
from magi2.catalog.statements import CHUNK
from magi2.catalog.tables import ArtifactRow, BatchClipRow, StageRunRow, TotalClipsRow, json_fragment
from magi2.quality.defects import DEFECTS, Judgement, judge
from magi2.quality.measures import Measures
from magi2.quality.thresholds import Thresholds
from magi2.types import Expect

ANY_FLAG = "any"
"""Stands for every flag in a search."""
UNMEASURED = "unmeasured"
"""In a search: clips that a version made which did not look for defects."""


@dataclass(frozen=True)
class FlaggedTotals:
    """Finished clips by defect, those that were not measured, and of those finished lately all and the defective."""

    defects: Mapping[str, int]
    unmeasured: int
    recent: int
    recent_flagged: int


class Quality:
    """Judges what is in the catalog under these thresholds. All raise InfrastructureError without a database."""

    def __init__(self, database: Database, thresholds: Thresholds) -> None:
        self._database = database
        self._thresholds = thresholds
        self._name = thresholds.digest()

    def bring_up_to_date(self, batch_id: str | None = None) -> None:
        """Judge the finished clips of a batch, or of all, that were not yet judged under these thresholds."""
        while self._database.read(self._pending, batch_id, 1) and self._database.write(self._judge, batch_id) == CHUNK:
            pass

    def of(self, batch_id: str, clip_id: str) -> Judgement | None:
        """How a finished clip is judged; None of one that is not finished or was not measured."""
        query = (
            select(BatchClipRow.expect, ArtifactRow.measures)
            .join(ArtifactRow, ArtifactRow.key == BatchClipRow.artifact_key)
            .where(BatchClipRow.batch_id == batch_id, BatchClipRow.clip_id == clip_id)
        )
        row = self._database.read(lambda connection: connection.execute(query).one_or_none())
        measures = Measures.of(row.measures) if row else None
        return judge(measures, Expect(**(row.expect or {})), self._thresholds) if row and measures else None

    def totals(self, recent_since: datetime) -> FlaggedTotals:
        """Count all finished clips, once they are judged."""
        self.bring_up_to_date()
        return self._database.read(_totals, recent_since)

    def _pending(self, connection: Connection, batch_id: str | None, limit: int) -> list[Any]:
        query = (
            select(BatchClipRow.batch_id, BatchClipRow.clip_id, BatchClipRow.expect, ArtifactRow.measures)
            .join(ArtifactRow, ArtifactRow.key == BatchClipRow.artifact_key)
            .where(BatchClipRow.state == ClipState.DONE)
            .limit(limit)
        )
        if batch_id is not None:
            query = query.where(BatchClipRow.batch_id == batch_id)
        judged_by, rows = BatchClipRow.judged_by, list[Any]()
        # One by one an index finds them; what is not equal to a name it does not.
        for others in (judged_by.is_(None), judged_by < self._name, judged_by > self._name):
            rows += [] if len(rows) >= limit else connection.execute(query.where(others)).all()
        return sorted(rows[:limit], key=lambda row: (row.batch_id, row.clip_id))

    def _judge(self, connection: Connection, batch_id: str | None) -> int:
        """How many clips were judged: a chunk, or what was left."""
        rows = self._pending(connection, batch_id, CHUNK)
        judged = [
            {"of_batch": row.batch_id, "of_clip": row.clip_id, "found": self._defects(row.expect, row.measures)}
            for row in rows
        ]
        if judged:
            these = BatchClipRow.batch_id == bindparam("of_batch"), BatchClipRow.clip_id == bindparam("of_clip")
            values = {"defects": bindparam("found", type_=BatchClipRow.defects.type), "judged_by": self._name}
            table = BatchClipRow.__table__
            connection.execute(update(table).where(*these).values(values), judged)  # type: ignore[arg-type]
        return len(judged)

    def _defects(self, expect: Mapping[str, Any] | None, content: object) -> list[str] | None:
        measures = Measures.of(content)
        return None if measures is None else list(judge(measures, Expect(**(expect or {})), self._thresholds).flags)


def has_flag(flag: str) -> ColumnElement[bool]:
    """That a `BatchClipRow` has a flag, `ANY_FLAG` of them, or is finished and was not measured (`UNMEASURED`)."""
    if flag == UNMEASURED:
        return (BatchClipRow.state == ClipState.DONE) & BatchClipRow.defects.is_(None)
    attempts = (
        StageRunRow.batch_id == BatchClipRow.batch_id,
        StageRunRow.clip_id == BatchClipRow.clip_id,
        StageRunRow.state.in_((RunState.MADE, RunState.REUSED)),
    )
    return or_(
        _names(BatchClipRow.defects, flag),
        exists().where(*attempts, _names(StageRunRow.flags, flag)),
        exists().where(ArtifactRow.key == BatchClipRow.artifact_key, _names(ArtifactRow.flags, flag)),
    )


def _names(column: Any, flag: str) -> ColumnElement[bool]:
    """That a list of flags, stored as JSON, holds this one."""
    sought = '"' if flag == ANY_FLAG else f'"{json_fragment(flag)}"'
    return cast(column, Text).contains(sought, autoescape=True)


def _totals(connection: Connection, recent_since: datetime) -> FlaggedTotals:
    kept = select(TotalClipsRow.defects, func.sum(TotalClipsRow.clips).label("clips"))
    rows = connection.execute(kept.where(TotalClipsRow.state == ClipState.DONE).group_by(TotalClipsRow.defects)).all()
    found: Counter[str] = Counter()
    for row in rows:
        found.update(dict.fromkeys((kind for kind in DEFECTS if f'"{kind}"' in row.defects), row.clips))
    is_flagged = cast(BatchClipRow.defects, Text) != "[]"
    counts = func.count().label("recent"), func.count().filter(is_flagged).label("flagged")
    recent = connection.execute(
        select(*counts).where(BatchClipRow.state == ClipState.DONE, BatchClipRow.updated_at >= recent_since)
    ).one()
    return FlaggedTotals(
        defects=found,
        unmeasured=sum(row.clips for row in rows if not row.defects),
        recent=recent.recent,
        recent_flagged=recent.flagged,
    )
