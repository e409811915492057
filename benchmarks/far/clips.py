"""Clips that a store has as if they had been rendered: real recipes, manifests and documents, tiny payloads."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime

from magi2.artifacts.manifest import Manifest, ManifestDraft, Payload
from magi2.artifacts.recipe import Recipe
from magi2.artifacts.store import ArtifactStore, artifact_prefix, attempt_file_name, new_attempt
from magi2.batches.batch_file import Batch
from magi2.batches.plan import BatchOptions, BatchPlan, plan_batch, save_plan
from magi2.batches.results import write_results
from magi2.batches.told import Told, nothing_told
from magi2.checkpoints.layout import COMPONENTS
from magi2.config.load import load_profile
from magi2.config.settings import Settings
from magi2.prompts.caption import Caption
from magi2.recipes.book import RecipeBook
from magi2.recipes.result import StageResult
from magi2.stages.contracts import CAPTION_FILE, PAYLOADS
from magi2.types import NEGATIVE, Clip, StageName

Put = Callable[[str, bytes], None]
MADE_BY = {name: "1.2.3" for name in ("torch", "triton", "ffmpeg", "numpy", "safetensors", "transformers", "magi2")}


def clips_of(book: RecipeBook, count: int, *, first: int = 0) -> list[Clip]:
    """Clips of different prompts."""
    profile = book.profile
    return [
        Clip(f"a heron takes off from the water, take {number}", 7, profile.name, profile.digest())
        for number in range(first, first + count)
    ]


def put_artifact(put: Put, recipe: Recipe, contents: Mapping[str, bytes]) -> Manifest:
    """Store an artifact without asking the server whether it is there; its manifest."""
    attempt, folder = new_attempt(), artifact_prefix(recipe.stage, recipe.key)
    payloads = {
        name: Payload(attempt_file_name(name, attempt), len(content), hashlib.sha256(content).hexdigest())
        for name, content in contents.items()
    }
    draft = ManifestDraft(recipe, timings={"make_s": 12.5}, report={"profile": "far", "made_by": MADE_BY})
    manifest = draft.complete(payloads, datetime.now(UTC))
    for name, content in contents.items():
        put(f"{folder}/{payloads[name].file}", content)
    put(f"{folder}/manifest.json", manifest.to_bytes())
    return manifest


def put_clip(put: Put, book: RecipeBook, clip: Clip) -> dict[StageName, Manifest]:
    """Store all artifacts of a finished clip."""
    caption = Caption(clip.prompt)
    made = {StageName.ENHANCE: put_artifact(put, book.enhance(clip), {CAPTION_FILE: caption.to_json()})}
    for stage, recipe in book.chain(clip, caption.text).items():
        made[stage] = put_artifact(put, recipe, {name: recipe.key.encode() for name in sorted(PAYLOADS[stage])})
    return made


def put_batch(store: ArtifactStore, put: Put, book: RecipeBook, clips: Sequence[Clip], name: str = "far") -> BatchPlan:
    """Plan a batch, store all its clips, and write down what the stages of its shards made."""
    plan = plan_of(store, book, clips, name)
    save_plan(plan, store)
    if book.negative:
        put_artifact(put, book.negative, {name: b"negative" for name in PAYLOADS[NEGATIVE]})
    for shard in plan.shards:
        made = [(clip, put_clip(put, book, clip)) for clip in shard.clips]
        for stage in book.profile.stages:
            write_results(store, plan.batch_id, shard.number, stage, 1, _results(stage, made))
    return plan


def plan_of(
    store: ArtifactStore, book: RecipeBook, clips: Sequence[Clip], name: str = "far", told: Told = nothing_told
) -> BatchPlan:
    """A batch of these clips."""
    return plan_batch(
        Batch(tuple(clips), ()),
        name=name,
        source=f"{name}.jsonl",
        store=store,
        book_of=lambda digest: book,
        options=BatchOptions(),
        origin={"run_id": name},
        told=told,
    )


def _results(stage: StageName, made: Sequence[tuple[Clip, Mapping[StageName, Manifest]]]) -> Iterator[StageResult]:
    for clip, manifests in made:
        manifest = manifests[stage]
        yield StageResult(stage, clip, "made", 1.0, manifest.key, manifest=manifest)


def far_book() -> RecipeBook:
    """The recipes of the smallest profile on weights that nobody has."""
    profile = load_profile("tiny-preview", Settings().configs)
    fingerprints = {name: f"{index:064x}" for index, name in enumerate(COMPONENTS)}
    return RecipeBook(
        profile, fingerprints=fingerprints, negative_prompt="bad", enhancement_mode="off", enhancement_model=None
    )
