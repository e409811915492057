"""Why a stage of a shard as a whole ended without results, kept for the report."""

from __future__ import annotations

from magi2.artifacts.store import ArtifactStore
from magi2.batches.documents import failure_name, find_document, newest_attempts, write_document
from magi2.batches.schema import FailureDocument
from magi2.errors import Magi2Error, reason_of
from magi2.types import StageName


def save_failure(
    store: ArtifactStore, batch_id: str, shard: int, stage: StageName, error: Magi2Error, *, attempt: int = 1
) -> None:
    """Write down why an attempt at a stage of a shard ended without results, for the report."""
    document = FailureDocument(error_code=error.code, error=reason_of(error))
    write_document(store, failure_name(batch_id, shard, stage, attempt), document)


def load_failure(store: ArtifactStore, batch_id: str, shard: int, stage: StageName) -> FailureDocument | None:
    """The error of the highest attempt that ended so, and its code, or None. Raises as `find_document` does."""
    names = newest_attempts(store, [failure_name(batch_id, shard, stage)])
    return find_document(store, names[0], FailureDocument) if names else None
