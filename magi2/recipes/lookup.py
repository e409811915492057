"""Seeing that a stage has nothing left to make, without a model, an accelerator or a process of its own; torch-free."""

from __future__ import annotations

import time
from collections.abc import Sequence

from magi2.artifacts.store import ArtifactStore
from magi2.errors import CorruptedArtifactError
from magi2.recipes.book import RecipeBook
from magi2.recipes.captions import caption_flags, find_caption
from magi2.recipes.result import StageResult
from magi2.types import Clip, StageName


def stored_results(
    store: ArtifactStore, book: RecipeBook, stage: StageName, clips: Sequence[Clip]
) -> list[StageResult] | None:
    """A `reused` result for each clip when all their artifacts of `stage` are stored, else None.

    None also when one is damaged: whoever runs the stage then makes it anew.
    """
    try:
        if stage is StageName.ENCODE and book.negative and not store.find(StageName.NEGATIVE, book.negative.key):
            return None
        results = []
        for clip in clips:
            result = _stored_result(store, book, stage, clip)
            if result is None:
                return None
            results.append(result)
        return results
    except CorruptedArtifactError:
        return None


def _stored_result(store: ArtifactStore, book: RecipeBook, stage: StageName, clip: Clip) -> StageResult | None:
    started = time.monotonic()
    if stage is StageName.ENHANCE:
        recipe = book.enhance(clip)
    else:
        caption = find_caption(store, book, clip)
        if caption is None:
            return None
        recipe = book.chain(clip, caption.text)[stage]
    manifest = store.find(stage, recipe.key)
    if manifest is None:
        return None
    flags = caption_flags(manifest.flags, book.enhancement_mode)
    return StageResult(stage, clip, "reused", time.monotonic() - started, recipe.key, flags)
