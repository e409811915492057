"""Recipe books for tests of recipes: weights by made-up fingerprints, and two clips."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from magi2.artifacts.recipe import Recipe
from magi2.checkpoints.layout import COMPONENTS
from magi2.config.load import load_negative_prompt
from magi2.config.profile import Profile
from magi2.recipes.book import RecipeBook
from magi2.types import ARTIFACT_FOLDERS, NEGATIVE, Clip, FigureImage, StageName
from tests.render_helpers import CONFIGS

FINGERPRINTS = {name: f"{index:064x}" for index, name in enumerate(COMPONENTS)}
FROM_PROMPT = Clip("a heron", 7, "tiny", "0")
FROM_IMAGE = replace(FROM_PROMPT, figures=(FigureImage(1, Path("a.png"), "a" * 64),))

Keys = dict[str, str]


def make_book(profile: Profile, mode: str = "off", **changes: Any) -> RecipeBook:
    arguments: dict[str, Any] = {
        "fingerprints": FINGERPRINTS,
        "negative_prompt": load_negative_prompt(profile, CONFIGS),
        "enhancement_mode": mode,
        "enhancement_model": "some-model" if mode.startswith("llm") else None,
    }
    return RecipeBook(profile, **{**arguments, **changes})


def keys_of(book: RecipeBook, clip: Clip, caption: str | None = None) -> Keys:
    chain = book.chain(clip, clip.prompt if caption is None else caption)
    recipes: dict[str, Recipe] = {stage.value: recipe for stage, recipe in chain.items()}
    recipes[StageName.ENHANCE] = book.enhance(clip)
    if book.negative:
        recipes[NEGATIVE] = book.negative
    return {stage: recipe.key for stage, recipe in recipes.items()}


def changed(before: Keys, after: Keys) -> set[str]:
    return {stage for stage in ARTIFACT_FOLDERS if before.get(stage) != after.get(stage)}
