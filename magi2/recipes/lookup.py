"""What the store has of a clip: the one place that reusing and rendering ask; planning asks `many`; torch-free."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping
from functools import cached_property

from magi2.artifacts.manifest import Manifest
from magi2.artifacts.store import ArtifactStore
from magi2.config.profile import Profile
from magi2.errors import ContractError, CorruptedArtifactError
from magi2.prompts.caption import Caption
from magi2.recipes.book import RecipeBook
from magi2.recipes.captions import CAPTION, caption_flags, caption_key
from magi2.recipes.result import StageResult, measures_of, without_manifests
from magi2.stages.contracts import check_promise, contract_of
from magi2.types import NEGATIVE, Clip, StageName

logger = logging.getLogger(__name__)


class StoredClip:
    """What the store has of a clip under its profile's recipes; the store is asked when first needed, and once.

    A damaged artifact counts as absent: the stage that makes it puts a new one in its place. Nothing is changed here.
    """

    def __init__(self, store: ArtifactStore, book: RecipeBook, clip: Clip) -> None:
        self._store = store
        self._book = book
        self._clip = clip
        self._found: dict[StageName, Manifest | None] = {}

    def manifest(self, stage: StageName) -> Manifest | None:
        """The artifact of a stage, None when it is not there; of enhance it is the caption in use, perhaps a fallback.

        Raises: KeyError for a stage that the profile does not have.
        """
        if stage not in self._found:
            self._found[stage] = None if self._caption is None else self._find(stage, *self._caption)
        return self._found[stage]

    @property
    def keys(self) -> Mapping[StageName, str]:
        """The keys of the clip's artifacts by stage, stored or not; none while its caption is not there."""
        if self._caption is None:
            return {}
        key, caption = self._caption
        chain = self._book.chain(self._clip, caption.text)
        return {StageName.ENHANCE: key} | {stage: recipe.key for stage, recipe in chain.items()}

    @property
    def caption(self) -> Caption | None:
        """The caption in use, None while there is none."""
        return None if self._caption is None else self._caption[1]

    def manifests(self) -> dict[StageName, Manifest]:
        """The artifact of each stage that has one, in order."""
        found = ((stage, self.manifest(stage)) for stage in self._book.profile.stages)
        return {stage: manifest for stage, manifest in found if manifest is not None}

    def results(self) -> list[StageResult]:
        """A `reused` result for each stage whose artifact is there, in order."""
        return without_manifests(self._result(stage, manifest, 0.0) for stage, manifest in self.manifests().items())

    def result(self, stage: StageName) -> StageResult | None:
        """A `reused` result when the stage has nothing to make of the clip, else None.

        A caption that somebody's fallback wrote is no reason not to ask the language model again.
        """
        started = time.monotonic()
        manifest = self.manifest(stage)
        is_fallback = stage is StageName.ENHANCE and manifest and manifest.key != self._book.enhance(self._clip).key
        if manifest is None or is_fallback:
            return None
        return self._result(stage, manifest, time.monotonic() - started)

    def flags(self, *stages: StageName) -> tuple[str, ...]:
        """The flags of the artifacts of these stages, as far as they are there, each once."""
        found = [flag for stage in stages if (manifest := self.manifest(stage)) for flag in manifest.flags]
        return tuple(dict.fromkeys(caption_flags(found, self._book.enhancement_mode)))

    @cached_property
    def _caption(self) -> tuple[str, Caption] | None:
        """Key and content of the caption in use."""
        try:
            key = caption_key(self._store, self._book, self._clip)
            if key is None:
                return None
            path = self._store.fetch(StageName.ENHANCE, key, CAPTION)
            return key, Caption.from_json(path.read_bytes())
        except (CorruptedArtifactError, ContractError) as error:
            logger.warning("clip %s: its caption counts as absent: %s", self._clip.short_id, error)
            return None

    def _find(self, stage: StageName, caption_key: str, caption: Caption) -> Manifest | None:
        key = caption_key if stage is StageName.ENHANCE else self._book.chain(self._clip, caption.text)[stage].key
        try:
            return find_whole(self._store, stage, key, self._book.profile)
        except CorruptedArtifactError as error:
            logger.warning("clip %s: its %s artifact counts as absent: %s", self._clip.short_id, stage.value, error)
            return None

    def _result(self, stage: StageName, manifest: Manifest, seconds: float) -> StageResult:
        flags = caption_flags(manifest.flags, self._book.enhancement_mode)
        return StageResult(
            stage, self._clip, "reused", seconds, manifest.key, flags, measures=measures_of(manifest), manifest=manifest
        )


def reusable_results(
    store: ArtifactStore, book: RecipeBook, stage: StageName, clips: Iterable[StoredClip]
) -> list[StageResult] | None:
    """A `reused` result for each clip when the stage has nothing to make, of a clip or for all of them; else None."""
    if stage is StageName.ENCODE and not _has_negative(store, book):
        return None
    results = []
    for clip in clips:
        result = clip.result(stage)
        if result is None:
            return None
        results.append(result)
    return results


def find_whole(store: ArtifactStore, stage: str, key: str, profile: Profile) -> Manifest | None:
    """The manifest of an artifact that the stage need not make, or None when it is not there.

    Raises: CorruptedArtifactError, also for a manifest that promises what the stage would not have published. One that
    carries its digest is as it was published.
    """
    manifest = store.find(stage, key)
    if manifest is not None and not manifest.is_sealed:
        check_promise(manifest, contract_of(manifest.recipe, profile))
    return manifest


def _has_negative(store: ArtifactStore, book: RecipeBook) -> bool:
    try:
        return book.negative is None or find_whole(store, NEGATIVE, book.negative.key, book.profile) is not None
    except CorruptedArtifactError:
        return False
