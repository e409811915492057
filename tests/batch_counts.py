"""What the catalog says of one batch, in numbers."""

from __future__ import annotations

from magi2.catalog import BatchState, Catalog
from magi2.catalog.counts import BatchCounts
from magi2.catalog.overview import Overview


def counts_of(catalog: Catalog, batch_id: str) -> BatchCounts:
    """The batch's clips and stages; all zero for one that is not there."""
    return Overview(catalog.database).counts([batch_id])[batch_id]


def state_of(catalog: Catalog, batch_id: str) -> BatchState:
    """The state of a batch that is there."""
    batch = catalog.batches.get(batch_id)
    assert batch is not None, batch_id
    return batch.state
