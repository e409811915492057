"""Deleting a batch: its documents, and the artifacts that no other batch has to do with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from magi2.artifacts.store import ArtifactStore
from magi2.batches.documents import FOLDER, all_results, batch_folder, is_planned, load_batch, remove_batch
from magi2.batches.leases import end_lease, named_keys
from magi2.batches.retention import Candidate, RetentionPolicy, remove_candidates
from magi2.errors import CorruptedArtifactError
from magi2.types import ARTIFACT_STAGES, StageName

_STAGES = tuple(stage for stage in ARTIFACT_STAGES if stage is not StageName.ENHANCE)


@dataclass(frozen=True)
class Deletion:
    """What went, or would go: artifacts by stage with their bytes, and documents; `kept` artifacts others need."""

    dry_run: bool
    removed: tuple[tuple[StageName, str], ...]
    freed_bytes: int
    kept: int
    documents: int

    def to_json(self) -> dict[str, Any]:
        """The numbers as JSON values, artifacts by stage."""
        numbers = {name: getattr(self, name) for name in ("dry_run", "freed_bytes", "kept", "documents")}
        return {"artifacts": dict(Counter(stage.value for stage, _ in self.removed)), **numbers}


def delete_batch(
    store: ArtifactStore, batch_id: str, *, spared: Collection[str] = (), lease_days: float, dry_run: bool = True
) -> Deletion:
    """Remove a batch that has ended, or say what would go. What was brought to targets stays there.

    Captions stay, since a language model does not write the same one twice, and so does what `spared` names, what
    another batch made, found or holds, and what is damaged. A batch that is not in the store has nothing there.
    """
    own, others = _own_keys(store, batch_id), _keys_of_others(store, batch_id)
    names = ((stage, key) for stage in _STAGES for key in store.keys(stage) if key in own - others - set(spared))
    gone = [found for stage, key in names if (found := _find(store, stage, key))]
    documents = len(list(store.list_documents(batch_folder(batch_id))))
    if not dry_run:
        policy = RetentionPolicy(dict.fromkeys(_STAGES, 0.0), lease_days=lease_days)
        _end_leases(store, batch_id)
        gone = list(remove_candidates(store, gone, policy, datetime.now(UTC)))
        remove_batch(store, batch_id)
    removed = tuple((each.stage, each.key) for each in gone)
    freed = sum(each.size_bytes for each in gone)
    return Deletion(dry_run, removed, freed, len(own) - len(removed), documents)


def _own_keys(store: ArtifactStore, batch_id: str) -> set[str]:
    documents = all_results(store, batch_folder(batch_id), unreadable={})
    return {result.key for document in documents for result in document.results if result.key}


def _keys_of_others(store: ArtifactStore, batch_id: str) -> set[str]:
    """Whatever looks like a key in a document of another batch."""
    own = f"{batch_folder(batch_id)}/"
    names = [name for name in store.list_documents(FOLDER) if not name.startswith(own)]
    return {key for name in names for key in named_keys(store, name)}


def _end_leases(store: ArtifactStore, batch_id: str) -> None:
    for shard in range(load_batch(store, batch_id).shards) if is_planned(store, batch_id) else ():
        end_lease(store, batch_id, shard)


def _find(store: ArtifactStore, stage: StageName, key: str) -> Candidate | None:
    try:
        manifest = store.find(stage, key)
    except CorruptedArtifactError:
        return None
    return Candidate(stage, key, manifest.size_bytes, manifest.created_at) if manifest else None
