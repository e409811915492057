"""In which batches the catalog has seen clips rendered."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, select

from magi2.catalog.records import ClipState
from magi2.catalog.repository import Catalog
from magi2.catalog.statements import chunks
from magi2.catalog.tables import BatchClipRow
from magi2.types import Clip


def rendered_in(catalog: Catalog, clips: Sequence[Clip]) -> list[tuple[str, int]]:
    """The batches and shards that finished these clips, in order, of each clip one."""
    return catalog.database.read(_shards, [clip.clip_id for clip in clips])


def _shards(connection: Connection, clip_ids: Sequence[str]) -> list[tuple[str, int]]:
    found: dict[str, tuple[str, int]] = {}
    for chunk in chunks(clip_ids):
        query = (
            select(BatchClipRow.clip_id, BatchClipRow.batch_id, BatchClipRow.shard)
            .where(BatchClipRow.clip_id.in_(chunk), BatchClipRow.state == ClipState.DONE)
            .where(BatchClipRow.shard.is_not(None))
            .order_by(BatchClipRow.batch_id)
        )
        rows = connection.execute(query).all()
        found |= {clip_id: (batch_id, shard) for clip_id, batch_id, shard in rows if shard is not None}
    return sorted(set(found.values()))
