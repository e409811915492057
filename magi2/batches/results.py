"""The document in which a stage of a shard says what became of every clip."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from magi2.artifacts.store import ArtifactStore
from magi2.errors import CorruptedArtifactError, error_text
from magi2.recipes.result import StageResult
from magi2.runtime.job import StageJob
from magi2.types import StageName


def results_name(batch_id: str, shard: int, stage: StageName) -> str:
    """The document's name in the store."""
    return f"batches/{batch_id}/results/{shard}.{stage.value}.json"


def write_results(store: ArtifactStore, job: StageJob, results: Iterable[StageResult]) -> None:
    """Store or replace the document of this job."""
    rows = [
        {
            "clip_id": result.clip.clip_id,
            "state": result.state,
            "key": result.key,
            "seconds": round(result.seconds, 3),
            "flags": list(result.flags),
            "error_code": result.error.code if result.error else None,
            "error": error_text(result.error) if result.error else None,
        }
        for result in results
    ]
    content = {"batch_id": job.batch_id, "shard": job.shard, "stage": job.stage.value, "attempt": job.attempt}
    document = json.dumps({**content, "results": rows}, sort_keys=True, ensure_ascii=False, indent=1)
    store.put_document(results_name(job.batch_id, job.shard, job.stage), document.encode())


def read_results(store: ArtifactStore, batch_id: str, shard: int, stage: StageName) -> list[dict[str, Any]]:
    """The rows of a document, one for each clip; none when the stage has not run.

    Raises: CorruptedArtifactError when it is no such document.
    """
    name = results_name(batch_id, shard, stage)
    data = store.get_document(name)
    if data is None:
        return []
    try:
        rows = json.loads(data)["results"]
        if not all({"clip_id", "state"} <= row.keys() for row in rows):
            raise ValueError("a row has no clip_id or no state")
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise CorruptedArtifactError(f"document {name}: not the results of a stage: {error}") from error
    return list(rows)


def failed_clips(store: ArtifactStore, batch_id: str, shard: int, stages: Sequence[StageName]) -> set[str]:
    """The ids of clips that failed in one of `stages`."""
    rows = [row for stage in stages for row in read_results(store, batch_id, shard, stage)]
    return {row["clip_id"] for row in rows if row["state"] == "failed"}
