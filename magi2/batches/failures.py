"""Why a stage of a shard as a whole ended without results, kept for the report."""

from __future__ import annotations

from magi2.artifacts.store import ArtifactStore
from magi2.batches.documents import failure_name, find_document, write_document
from magi2.batches.schema import FailureDocument
from magi2.errors import Magi2Error, reason_of
from magi2.types import StageName


def save_failure(store: ArtifactStore, batch_id: str, shard: int, stage: StageName, error: Magi2Error) -> None:
    """Write down why a stage of a shard ended without results, for the report."""
    document = FailureDocument(error_code=error.code, error=reason_of(error))
    write_document(store, failure_name(batch_id, shard, stage), document)


def load_failure(store: ArtifactStore, batch_id: str, shard: int, stage: StageName) -> FailureDocument | None:
    """The error and its code, or None when the stage did not end that way. Raises as `find_document` does."""
    return find_document(store, failure_name(batch_id, shard, stage), FailureDocument)
