"""What the store has of many clips, for planning: a few listings instead of questions for each artifact; torch-free."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from magi2.artifacts.ahead import in_order
from magi2.artifacts.manifest import Manifest
from magi2.artifacts.store import ArtifactStore, Known, Look, nothing_known
from magi2.config.profile import Profile
from magi2.errors import CorruptedArtifactError
from magi2.prompts.caption import Caption
from magi2.recipes.book import RecipeBook
from magi2.recipes.captions import CAPTION, caption_flags, caption_keys
from magi2.stages.contracts import check_promise, contract_of
from magi2.types import Clip, StageName

logger = logging.getLogger(__name__)

Flags = tuple[str, ...]


@dataclass(frozen=True)
class StoredStages:
    """What is stored of a clip.

    `keys` are those of its artifacts by stage, stored or not, none while its caption is not there; `file` that of the
    delivered file, None for a clip that is not finished, whatever retention has taken of what led to it. `missing` are
    the stages still to run, each with the key of what it makes: without a caption those of later stages are no keys of
    the store, but equal for clips that share the artifact. `text_flags` are those of caption and embeddings.
    """

    keys: Mapping[StageName, str]
    file: str | None
    missing: Mapping[StageName, str]
    text_flags: Flags


def look_for_clips(
    store: ArtifactStore,
    book_of: Callable[[str], RecipeBook],
    clips: Sequence[Clip],
    known: Callable[[str], Known] = nothing_known,
) -> Iterator[StoredStages]:
    """What the store has of each clip under its profile's recipes, in order; `known` gives manifests as `look` takes.

    A damaged artifact counts as absent: the stage that makes it puts a new one in its place. Nothing is changed here.
    Raises: InfrastructureError.
    """
    captions = _captions(store, book_of, clips, known)
    keys = [_keys_of(book_of(clip.profile_digest), clip, captions) for clip in clips]
    found: dict[StageName, dict[str, Flags]] = {StageName.ENHANCE: {key: flags for key, (flags, _) in captions.items()}}
    del captions  # the texts of a great batch
    profiles = [book_of(clip.profile_digest).profile for clip in clips]
    found[StageName.MUX] = _flags(store, StageName.MUX, zip(keys, profiles, strict=True), known)
    for stage in (StageName.ENCODE, StageName.PREVIEW, StageName.REFINE, StageName.DECODE):
        wanted = (
            (of, profile)
            for of, profile in zip(keys, profiles, strict=True)
            if stage is StageName.ENCODE or of.get(StageName.MUX) not in found[StageName.MUX]
        )
        found[stage] = _flags(store, stage, wanted, known)
    for clip, of in zip(clips, keys, strict=True):
        yield _stored(book_of(clip.profile_digest), clip, of, found)


def _captions(
    store: ArtifactStore, book_of: Callable[[str], RecipeBook], clips: Sequence[Clip], known: Callable[[str], Known]
) -> dict[str, tuple[Flags, str | None]]:
    """Flags and text of every stored caption that may be one of the clips', by key; no text of a damaged one."""
    wanted = {key for clip in clips for key in caption_keys(book_of(clip.profile_digest), clip)}
    looks = store.look(StageName.ENHANCE, wanted, known=known(StageName.ENHANCE))
    return dict(in_order(lambda look: _caption(store, look), looks))


def _caption(store: ArtifactStore, look: Look) -> tuple[str, tuple[Flags, str | None]]:
    try:
        manifest = _trusted(look, None)
        check_promise(manifest, None)
        payload = manifest.payloads[CAPTION]
        content = store.read(StageName.ENHANCE, look.key, payload, 0, payload.size_bytes)
        return look.key, (manifest.flags, Caption.from_json(content).text)
    except CorruptedArtifactError as error:
        logger.warning("caption %s counts as absent: %s", look.key[:12], error)
        return look.key, ((), None)


def _keys_of(book: RecipeBook, clip: Clip, captions: Mapping[str, tuple[Flags, str | None]]) -> Mapping[StageName, str]:
    key = next((key for key in caption_keys(book, clip) if key in captions), None)
    text = captions[key][1] if key else None
    if key is None or text is None:
        return {}
    return {StageName.ENHANCE: key} | {stage: recipe.key for stage, recipe in book.chain(clip, text).items()}


def _flags(
    store: ArtifactStore,
    stage: StageName,
    clips: Iterable[tuple[Mapping[StageName, str], Profile]],
    known: Callable[[str], Known],
) -> dict[str, Flags]:
    """The flags of a stage's artifacts that are there, by key."""
    wanted = {keys[stage]: profile for keys, profile in clips if stage in keys}
    found: dict[str, Flags] = {}
    for look in store.look(stage, wanted, known=known(stage)) if wanted else ():
        try:
            found[look.key] = _trusted(look, wanted[look.key]).flags
        except CorruptedArtifactError as error:
            logger.warning("artifact %s/%s counts as absent: %s", stage.value, look.key[:12], error)
    return found


def _trusted(look: Look, profile: Profile | None) -> Manifest:
    """Raises CorruptedArtifactError for a damaged artifact, or one that promises what its stage does not make."""
    if look.fault or look.manifest is None:
        raise look.fault or CorruptedArtifactError(f"{look.key} was removed")
    if profile and not look.manifest.is_sealed:
        check_promise(look.manifest, contract_of(look.manifest.recipe, profile))
    return look.manifest


def _stored(
    book: RecipeBook, clip: Clip, keys: Mapping[StageName, str], found: Mapping[StageName, Mapping[str, Flags]]
) -> StoredStages:
    stages = book.profile.stages
    if not keys:
        enhance = book.enhance(clip).key
        chain = book.chain(clip, f"what enhance/{enhance} will say")
        later = {stage: recipe.key for stage, recipe in chain.items()}
        return StoredStages({}, None, {stage: later.get(stage, enhance) for stage in stages}, ())
    file = keys[StageName.MUX] if keys[StageName.MUX] in found[StageName.MUX] else None
    missing = {} if file else {stage: keys[stage] for stage in stages if keys[stage] not in found[stage]}
    flags = [*found[StageName.ENHANCE][keys[StageName.ENHANCE]]]
    flags += found[StageName.ENCODE].get(keys[StageName.ENCODE], ())
    return StoredStages(keys, file, missing, tuple(dict.fromkeys(caption_flags(flags, book.enhancement_mode))))
