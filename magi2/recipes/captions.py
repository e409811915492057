"""The key of a clip's caption in a store, and reading payloads so that damage heals; torch-free."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from magi2.artifacts.store import ArtifactStore
from magi2.errors import ContractError, CorruptedArtifactError
from magi2.prompts.caption import Caption
from magi2.recipes.book import RecipeBook
from magi2.stages.contracts import CAPTION_FILE
from magi2.types import Clip, StageName

CAPTION = CAPTION_FILE
FALLBACK = "enhancement_fallback"
"""Flag of a caption that the offline structurer wrote because the language model could not."""


def caption_flags(flags: Iterable[str], enhancement_mode: str) -> tuple[str, ...]:
    """A caption's flags; who asked for the offline one is not told that it once was somebody's fallback."""
    return tuple(flag for flag in flags if not (enhancement_mode == "offline" and flag == FALLBACK))


def caption_keys(book: RecipeBook, clip: Clip) -> list[str]:
    """The keys that the clip's caption may have: with `llm-then-offline` that of an earlier fallback comes second."""
    mode = book.enhancement_mode
    return [book.enhance(clip, each).key for each in ((mode, "offline") if mode == "llm-then-offline" else (mode,))]


def caption_key(store: ArtifactStore, book: RecipeBook, clip: Clip) -> str | None:
    """The key of the clip's caption, the first that is stored, or None when the enhance stage has not made it yet."""
    return next((key for key in caption_keys(book, clip) if store.find(StageName.ENHANCE, key) is not None), None)


def stored_caption(store: ArtifactStore, key: str) -> Caption | None:
    """The caption of a key, None when it is not there or damaged; nothing is changed."""
    try:
        if store.find(StageName.ENHANCE, key) is None:
            return None
        return Caption.from_json(store.fetch(StageName.ENHANCE, key, CAPTION).read_bytes())
    except (CorruptedArtifactError, ContractError):
        return None


def fetch_or_condemn(store: ArtifactStore, stage: str, key: str, name: str) -> Path:
    """A verified local copy of a payload. Raises as `condemned_if_damaged` does."""
    with condemned_if_damaged(store, stage, key):
        return store.fetch(stage, key, name)


@contextmanager
def condemned_if_damaged(store: ArtifactStore, stage: str, key: str) -> Iterator[None]:
    """Reading an artifact. One that is damaged, or lacks a payload of its stage, goes to quarantine before
    CorruptedArtifactError goes on, so that the next run makes it anew instead of failing on it for ever.
    """
    try:
        yield
    except (CorruptedArtifactError, ContractError) as error:
        store.condemn(stage, key, why=str(error))
        raise CorruptedArtifactError(str(error)) from error
