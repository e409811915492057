"""Planned batches with their results in a store, as the stages leave them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from magi2.artifacts.manifest import ManifestDraft
from magi2.artifacts.store import ArtifactStore
from magi2.batches.batch_file import BadRow, Batch
from magi2.batches.plan import BatchOptions, BatchPlan, plan_batch, save_plan
from magi2.batches.results import write_results
from magi2.config.load import load_profile
from magi2.config.profile import Profile
from magi2.config.settings import Settings
from magi2.errors import Magi2Error
from magi2.prompts.caption import Caption
from magi2.quality.measures import MEASURES
from magi2.recipes.book import RecipeBook
from magi2.recipes.captions import CAPTION
from magi2.recipes.result import StageResult
from magi2.types import Clip, StageName

CONFIGS = Settings().configs
WEIGHTS = dict.fromkeys(("text_encoder", "preview", "refiner", "video_vae", "turbo_vae", "audio_vae"), "0" * 64)
TINY, NO_REFINER = load_profile("tiny", CONFIGS), load_profile("tiny-preview", CONFIGS)
TOLD = load_profile("tiny", CONFIGS, ["delivery.provenance=full"])
"""Its files hold prompt and caption."""


def book(profile: Profile) -> RecipeBook:
    return RecipeBook(
        profile, fingerprints=WEIGHTS, negative_prompt="bad", enhancement_mode="off", enhancement_model=None
    )


BOOKS = {profile.digest(): book(profile) for profile in (TINY, NO_REFINER, TOLD)}


def clip(number: int, profile: Profile = TINY, prompt: str = "a kite over dunes") -> Clip:
    return Clip(f"{prompt} {number}", number, profile.name, profile.digest(), names=(f"row {number}",))


def planned(
    store: ArtifactStore, clips: list[Clip], *bad_rows: BadRow, failure_limit: int = 0, name: str = "night"
) -> BatchPlan:
    options = BatchOptions(failure_limit=failure_limit, on_bad_rows="skip")
    batch = Batch(tuple(clips), bad_rows)
    plan = plan_batch(batch, name=name, source="night.jsonl", store=store, book_of=BOOKS.__getitem__, options=options)
    save_plan(plan, store)
    return plan


def run_stages(store: ArtifactStore, plan: BatchPlan, failures: dict[str, tuple[StageName, Magi2Error]]) -> None:
    """Result documents as the worker writes them; a clip that fails has no results afterwards."""
    for shard in plan.shards:
        alive = list(shard.clips)
        for stage in shard.profile.stages:
            results = [result_of(each, stage, failures) for each in alive]
            write_results(store, plan.batch_id, shard.number, stage, 1, results)
            alive = [result.clip for result in results if result.state != "failed"]


def result_of(clip: Clip, stage: StageName, failures: dict[str, tuple[StageName, Magi2Error]]) -> StageResult:
    failed_stage, error = failures.get(clip.clip_id, (None, None))
    if failed_stage is stage:
        return StageResult(stage, clip, "failed", 0.5, error=error)
    flags = ("enhancement_fallback",) if "fallback" in clip.prompt and stage is StageName.ENHANCE else ()
    return StageResult(stage, clip, "reused" if stage is StageName.ENCODE else "made", 2.0, "a" * 64, flags)


def publish_files(store: ArtifactStore, clip: Clip, contents: Mapping[str, bytes]) -> str:
    """The delivered file of a clip and its poster, which say what they are unless contents are given; the key."""
    recipe = BOOKS[clip.profile_digest].chain(clip, clip.prompt)[StageName.MUX]
    with store.stage_folder(recipe.stage, recipe.key) as folder:
        files = {name: folder / name for name in ("clip.mp4", "poster.jpg")}
        for name, path in files.items():
            path.write_bytes(contents.get(name, f"{name} of {clip.clip_id}".encode()))
        return store.publish(ManifestDraft(recipe), files).key


def rendered(
    store: ArtifactStore,
    clips: list[Clip],
    failures: dict[str, tuple[StageName, Magi2Error]] | None = None,
    contents: Mapping[str, bytes] = MappingProxyType({}),
) -> BatchPlan:
    """A batch whose run has ended, with the files of its clips in the store."""
    plan = planned(store, clips)
    run_stages(store, plan, failures or {})
    for shard in plan.shards:
        alive = [clip for clip in shard.clips if clip.clip_id not in (failures or {})]
        results = (result_of(clip, StageName.MUX, {}) for clip in alive)
        made = [replace(result, key=publish_files(store, result.clip, contents)) for result in results]
        write_results(store, plan.batch_id, shard.number, StageName.MUX, 1, made)
    return plan


def deliver(
    store: ArtifactStore,
    clip: Clip,
    folder: Path,
    flags: tuple[str, ...] = (),
    caption_flags: tuple[str, ...] = (),
    encode_flags: tuple[str, ...] = (),
    measures: Mapping[str, Any] | None = None,
) -> None:
    """A caption, embeddings and a delivered file, as the stages leave them."""
    recipes = BOOKS[clip.profile_digest]
    chain = recipes.chain(clip, clip.prompt)
    made = [
        (recipes.enhance(clip), CAPTION, Caption(clip.prompt, mode_requested="off", mode_used="off").to_json()),
        (chain[StageName.ENCODE], "payload", b"embeddings"),
        (chain[StageName.MUX], "clip.mp4", b"video"),
    ]
    for (recipe, name, content), flagged in zip(made, (caption_flags, encode_flags, flags), strict=True):
        (folder / name).write_bytes(content)
        report = {MEASURES: measures} if measures and recipe.stage == StageName.MUX else {}
        store.publish(ManifestDraft(recipe, flags=flagged, report=report), {name: folder / name})
