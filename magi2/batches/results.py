"""What a stage says became of every clip of a shard."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from magi2.artifacts.store import ArtifactStore
from magi2.batches.documents import find_document, results_name, write_document
from magi2.batches.schema import ClipResult, ResultsDocument
from magi2.errors import error_text
from magi2.recipes.result import StageResult
from magi2.types import StageName


def write_results(
    store: ArtifactStore, batch_id: str, shard: int, stage: StageName, attempt: int, results: Iterable[StageResult]
) -> None:
    """Store or replace what an attempt at a stage made of a shard."""
    rows = tuple(_row(result) for result in results)
    document = ResultsDocument(batch_id=batch_id, shard=shard, stage=stage, attempt=attempt, results=rows)
    write_document(store, results_name(batch_id, shard, stage), document)


def read_results(store: ArtifactStore, batch_id: str, shard: int, stage: StageName) -> tuple[ClipResult, ...]:
    """What became of each clip; nothing when the stage has not run. Raises as `find_document` does."""
    found = find_document(store, results_name(batch_id, shard, stage), ResultsDocument)
    return found.results if found else ()


def failed_clips(store: ArtifactStore, batch_id: str, shard: int, stages: Sequence[StageName]) -> set[str]:
    """The ids of clips that failed in one of `stages`."""
    rows = (row for stage in stages for row in read_results(store, batch_id, shard, stage))
    return {row.clip_id for row in rows if row.state == "failed"}


def _row(result: StageResult) -> ClipResult:
    return ClipResult(
        clip_id=result.clip.clip_id,
        state=result.state,
        key=result.key,
        seconds=round(result.seconds, 3),
        flags=result.flags,
        error_code=result.error.code if result.error else None,
        error=error_text(result.error) if result.error else None,
    )
