"""Why a stage of a shard as a whole ended without results, kept for the report.

batches/<batch_id>/failures/<shard>.<stage>.json
"""

from __future__ import annotations

import json
from typing import Any

from magi2.artifacts.store import ArtifactStore
from magi2.errors import Magi2Error, reason_of
from magi2.types import StageName


def save_failure(store: ArtifactStore, batch_id: str, shard: int, stage: StageName, error: Magi2Error) -> None:
    """Write down why a stage of a shard ended without results, for the report."""
    content = {"error_code": error.code, "error": reason_of(error)}
    store.put_document(_failure_name(batch_id, shard, stage), json.dumps(content, ensure_ascii=False).encode())


def load_failure(store: ArtifactStore, batch_id: str, shard: int, stage: StageName) -> dict[str, Any] | None:
    """The error and its code, or None when the stage did not end that way."""
    content = store.get_document(_failure_name(batch_id, shard, stage))
    return json.loads(content) if content else None


def _failure_name(batch_id: str, shard: int, stage: StageName) -> str:
    return f"batches/{batch_id}/failures/{shard}.{stage.value}.json"
