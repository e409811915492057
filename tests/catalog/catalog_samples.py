"""Batches, clips and artifacts to fill a catalog with."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

from magi2.artifacts import ArtifactStore, Manifest, ManifestDraft, Recipe
from magi2.catalog import Catalog, NewBatch, PlannedClip, Run, RunState
from magi2.types import Clip, StageName

REFINED, PLAIN = "a" * 64, "b" * 64
PROFILES: dict[str, dict[str, Any]] = {REFINED: {"refiner": {"steps": 5}}, PLAIN: {"refiner": None}}
CREATED = datetime(2031, 2, 3, 4, 5, 6, 789012, tzinfo=UTC)


def make_clip(number: int = 0, **changes: Any) -> Clip:
    values = {
        "prompt": f"prompt {number}",
        "seed": number,
        "profile_name": "1080p",
        "profile_digest": REFINED,
        "names": (f"row {number}",),
    }
    return Clip(**{**values, **changes})


def make_batch(batch_id: str = "night", clips_total: int = 0, **changes: Any) -> NewBatch:
    values = {"name": "Night run", "source": "inbox/night.jsonl", "created_at": CREATED}
    return NewBatch(batch_id=batch_id, clips_total=clips_total, **{**values, **changes})


def enter(catalog: Catalog, clips: Iterable[Clip], batch_id: str = "night", **changes: Any) -> list[str]:
    """Enter a batch with these clips, all in shard 0, and give their ids."""
    planned = [PlannedClip(clip, 0) for clip in clips]
    catalog.batches.create(make_batch(batch_id, len(planned), **changes), PROFILES)
    catalog.clips.add(batch_id, planned)
    return [item.clip.clip_id for item in planned]


def publish(store: ArtifactStore, stage: str = "mux", seed: int = 0, **draft: Any) -> Manifest:
    recipe = Recipe(stage=stage, version=1, seed=seed)
    with store.stage_folder(stage, recipe.key) as folder:
        (folder / "clip.mp4").write_bytes(b"picture %d" % seed)
        made = {"device": "cpu", "timings": {"make_s": 1.5}, **draft}
        return store.publish(ManifestDraft(recipe=recipe, **made), {"clip.mp4": folder / "clip.mp4"})


def done(clip_id: str, manifest: Manifest, **changes: Any) -> Run:
    """The run that makes a clip done."""
    values = {"clip_id": clip_id, "stage": StageName.MUX, "state": RunState.MADE, "artifact_key": manifest.key}
    return Run(**{**values, **changes})


def failed(clip_id: str, stage: StageName = StageName.PREVIEW, **changes: Any) -> Run:
    values = {"error_code": "contract", "error": "video has NaN", "state": RunState.FAILED}
    return Run(clip_id=clip_id, stage=stage, **{**values, **changes})


class StoredPlan:
    """Writes the documents of a batch into a store."""

    def __init__(self, store: ArtifactStore, batch_id: str = "night") -> None:
        self.store, self.folder = store, f"batches/{batch_id}"
        self.batch_id = batch_id

    def put(self, name: str, content: object) -> None:
        self.store.put_document(f"{self.folder}/{name}", json.dumps(content).encode())

    def save(
        self, shards: Sequence[Sequence[Clip]], cached: Sequence[tuple[Clip, str | None]] = (), **changes: Any
    ) -> None:
        for number, clips in enumerate(shards):
            shard = {"batch_id": self.batch_id, "shard": number, "profile_digest": REFINED}
            self.put(f"shards/{number}.json", {**shard, "clips": [clip_document(clip) for clip in clips]})
        self.put("cached.json", [{**clip_document(clip), "key": key} for clip, key in cached])
        content = {
            "batch_id": self.batch_id,
            "name": "Night run",
            "source": "inbox/night.jsonl",
            "created_at": CREATED.isoformat(),
            "options": {"failure_limit": 1, "on_bad_rows": "skip", "force": []},
            "profiles": PROFILES,
            "refused": [{"row": 3, "reason": "the prompt is empty"}],
            "shards": len(shards),
            "clips": sum(len(clips) for clips in shards) + len(cached),
            "dag_id": "magi2_render_batch",
            "run_id": "manual__1",
            "requested_by": None,
            "parent_batch_id": None,
        }
        self.put("batch.json", {**content, **changes})

    def save_results(self, shard: int, stage: str, rows: Sequence[dict[str, Any]], attempt: int = 1) -> None:
        content = {"batch_id": self.batch_id, "shard": shard, "stage": stage, "attempt": attempt, "results": rows}
        self.put(f"results/{shard}.{stage}.json", content)


def clip_document(clip: Clip) -> dict[str, Any]:
    figures = [{"number": each.number, "path": str(each.path), "sha256": each.sha256} for each in clip.figures]
    return {
        "clip_id": clip.clip_id,
        "prompt": clip.prompt,
        "seed": clip.seed,
        "profile_name": clip.profile_name,
        "profile_digest": clip.profile_digest,
        "figures": figures,
        "names": list(clip.names),
        "tags": list(clip.tags),
        "priority": clip.priority,
    }


def result(clip: Clip, state: str = "made", **values: Any) -> dict[str, Any]:
    row: dict[str, Any] = {"clip_id": clip.clip_id, "state": state, "key": None, "seconds": 2.5, "flags": []}
    return {**row, "error_code": None, "error": None, **values}
