"""What a stage says became of every clip of a shard."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from magi2.artifacts.store import ArtifactStore
from magi2.batches.documents import find_document, newest_attempts, results_name, write_document
from magi2.batches.schema import ClipResult, ResultsDocument, WrittenResults
from magi2.errors import error_text
from magi2.recipes.result import StageResult
from magi2.types import StageName


def write_results(
    store: ArtifactStore, batch_id: str, shard: int, stage: StageName, attempt: int, results: Iterable[StageResult]
) -> None:
    """Store what an attempt at a stage made of a shard; what other attempts made stays."""
    told = list(results)
    document = WrittenResults(
        batch_id=batch_id,
        shard=shard,
        stage=stage,
        attempt=attempt,
        results=tuple(_row(result) for result in told),
        manifests={each.key: each.manifest.to_bytes().decode() for each in told if each.key and each.manifest},
    )
    write_document(store, results_name(batch_id, shard, stage, attempt), document)


def read_results(store: ArtifactStore, batch_id: str, shard: int, *stages: StageName) -> tuple[ClipResult, ...]:
    """What became of each clip in each of the stages by its highest attempt; nothing of those that have not run.

    Raises as `find_document` does.
    """
    names = newest_attempts(store, (results_name(batch_id, shard, stage) for stage in stages))
    documents = (find_document(store, name, ResultsDocument) for name in names)
    return tuple(result for document in documents if document for result in document.results)


def failed_clips(store: ArtifactStore, batch_id: str, shard: int, stages: Sequence[StageName]) -> set[str]:
    """The ids of clips that failed in one of `stages`."""
    return {row.clip_id for row in read_results(store, batch_id, shard, *stages) if row.state == "failed"}


def _row(result: StageResult) -> ClipResult:
    return ClipResult(
        clip_id=result.clip.clip_id,
        state=result.state,
        key=result.key,
        seconds=round(result.seconds, 3),
        flags=result.flags,
        measures=result.measures,
        error_code=result.error.code if result.error else None,
        error=error_text(result.error) if result.error else None,
    )
