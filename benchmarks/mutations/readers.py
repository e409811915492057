"""Reading one file of a store as the product does: what comes back, or the error that says why nothing does."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

from benchmarks.mutations.subjects import STREAM, Sample
from magi2.artifacts.removals import read_removals
from magi2.artifacts.tensors import load_tensors
from magi2.batches.documents import load_batch, load_finished, load_report
from magi2.batches.failures import load_failure
from magi2.batches.plan import load_shard, with_local_images
from magi2.batches.results import read_results
from magi2.errors import CorruptedArtifactError
from magi2.prompts.caption import Caption
from magi2.recipes.lookup import find_whole
from magi2.stages.contracts import CAPTION_FILE, TENSORS, check_promise, contract_of
from magi2.stages.snapshots import load_snapshot
from magi2.types import StageName


def read(sample: Sample, name: str) -> object:
    """What the stage that needs the file `name`, relative to the store, reads; raises the product's own error."""
    top, folder, *rest = name.split("/")
    if top == "artifacts":
        return _artifact(sample, folder, rest[1])
    return _DOCUMENTS[folder](sample, rest)


def _artifact(sample: Sample, stage: str, key: str) -> object:
    """As a stage looks for its own artifact, then as the next one reads it."""
    manifest = find_whole(sample.store, stage, key, sample.profile)
    if manifest is None:
        raise CorruptedArtifactError(f"{stage}/{key}: there is no such artifact")
    check_promise(manifest, contract_of(manifest.recipe, sample.profile))
    for name, payload in manifest.payloads.items():
        path = sample.store.fetch(stage, key, name)
        if name == TENSORS:
            load_tensors(path, specs=payload.tensors or {})
        elif name == CAPTION_FILE:
            Caption.from_json(path.read_bytes())
    return manifest


def _batch_document(sample: Sample, rest: list[str]) -> object:
    store, batch_id, name = sample.store, rest[0], rest[1]
    if name == "batch.json":
        return load_batch(store, batch_id).profile(sample.profile.digest())
    if name == "cached.json":
        return load_finished(store, batch_id)
    if name == "report.json":
        return load_report(store, batch_id)
    shard, _, rest_of_name = rest[2].partition(".")
    if name == "shards":
        return load_shard(store, batch_id, int(shard), scratch=None)
    stage = StageName(rest_of_name.partition(".")[0])
    reader: Callable[..., object] = read_results if name == "results" else load_failure
    return reader(store, batch_id, int(shard), stage)


def _image(sample: Sample, rest: list[str]) -> object:
    with tempfile.TemporaryDirectory() as scratch:
        return with_local_images(sample.clips[1], sample.store, Path(scratch))


def _snapshot(sample: Sample, rest: list[str]) -> object:
    clip = sample.clips[3]
    recipe = sample.book.chain(clip, clip.prompt)[StageName.PREVIEW]
    found = load_snapshot(sample.store, recipe, lambda: STREAM)
    if found is None:
        raise CorruptedArtifactError(f"{rest[-1]}: not used")
    return found


def _note(sample: Sample, rest: list[str]) -> object:
    found = read_removals(sample.store, rest[0])
    if not found:
        raise CorruptedArtifactError(f"{rest[-1]}: passed over")
    return found


_DOCUMENTS: dict[str, Callable[[Sample, list[str]], object]] = {
    "batches": _batch_document,
    "images": _image,
    "removed": _note,
    "snapshots": _snapshot,
}
