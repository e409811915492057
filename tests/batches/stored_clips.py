"""Artifacts of a clip as a store has them after its stages, without anything that computes."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

from magi2.artifacts.local import LocalStore
from magi2.artifacts.manifest import Manifest, ManifestDraft
from magi2.artifacts.recipe import Recipe
from magi2.types import StageName

CHAIN = (StageName.ENCODE, StageName.PREVIEW, StageName.DECODE, StageName.MUX)


def publish(store: LocalStore, stage: StageName, clip: str, **inputs: str) -> Manifest:
    recipe = Recipe(stage=stage.value, version=1, config={"clip": clip}, inputs=inputs)
    with store.stage_folder(recipe.stage, recipe.key) as folder:
        path = folder / "payload.bin"
        path.write_bytes(clip.encode() * 100)
        return store.publish(ManifestDraft(recipe=recipe), {"payload.bin": path})


def render(store: LocalStore, clip: str, stages: tuple[StageName, ...] = CHAIN) -> dict[StageName, Manifest]:
    made: dict[StageName, Manifest] = {}
    inputs: dict[str, str] = {}
    for stage in stages:
        made[stage] = publish(store, stage, clip, **inputs)
        inputs = {"from": made[stage].key}
    return made


def later(days: float) -> datetime:
    return datetime.now(UTC) + timedelta(days=days)


def record(store: LocalStore, batch: str, clip: str, made: dict[StageName, Manifest]) -> None:
    for stage, manifest in made.items():
        results = [{"clip_id": clip, "state": "made", "key": manifest.key}]
        content = {"batch_id": batch, "shard": 0, "stage": stage.value, "attempt": 1, "results": results}
        store.put_document(f"batches/{batch}/results/0.{stage.value}.json", json.dumps(content).encode())
