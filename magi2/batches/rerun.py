"""Running a planned batch again, whole or in part, with some settings changed; torch-free."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from magi2.artifacts.store import ArtifactStore
from magi2.batches.batch_file import Batch
from magi2.batches.documents import load_batch, load_finished, load_shard_document, read_document, report_name
from magi2.batches.pictures import References
from magi2.batches.placing import UNPLACED, Placing, merged
from magi2.batches.plan import with_local_images
from magi2.batches.schema import ClipDocument, ReportedClips
from magi2.batches.sources import Sources
from magi2.config.load import override_profile
from magi2.config.profile import Profile
from magi2.delivery.names import OUT, without_collisions
from magi2.errors import ImageError, InputError
from magi2.inputs.files import InputRoots
from magi2.prompts.figures import Figure
from magi2.recipes.book import RecipeBook
from magi2.types import ARTIFACT_STAGES, Clip, Delivery, StageName

logger = logging.getLogger(__name__)

DAG_ID = "magi2_render_batch"
"""The DAG that renders a batch."""
FAILED = "failed"
_PLACES = ("delivery.target=", "delivery.name=")


def rerun_batch(
    store: ArtifactStore,
    batch_id: str,
    *,
    only: Sequence[str],
    overrides: Sequence[str],
    scratch: Path,
    placing: Placing = UNPLACED,
) -> tuple[Batch, dict[str, Profile]]:
    """The clips of an earlier batch under changed profiles, and those profiles by digest.

    `only` holds clip ids (12 characters are enough) or "failed"; empty means all. Images come from the store, to
    `scratch`. Clips are brought where they were, unless `placing` or an override says otherwise.
    Raises: InputError for an unknown batch, clip or target, ConfigError for a bad override.
    """
    document = load_batch(store, batch_id)
    changed = {digest: override_profile(document.profile(digest), overrides) for digest in document.profiles}
    moves = bool(placing.target or placing.name) or any(each.startswith(_PLACES) for each in overrides)
    references, clips = References(Sources(scratch, InputRoots((scratch,)))), []
    for clip in select_clips(store, batch_id, only):
        profile, local = changed[clip.profile_digest], with_local_images(clip, store, scratch)
        again = _under(profile, _with_treatments(local, profile, references), overrides)
        clips.append(_placed(again, profile, placing, moves=moves))
    return Batch(without_collisions(clips), ()), {profile.digest(): profile for profile in changed.values()}


def _with_treatments(clip: Clip, profile: Profile, references: References) -> Clip:
    """The clip with its images as this version reads them; with those as planned where it takes one no longer, of which
    encode says why, so that the batch's other clips are rendered.
    """
    figures = (Figure(figure.number, "", str(figure.path)) for figure in clip.figures)
    try:
        return replace(clip, figures=tuple(references.image(figure, profile.preview) for figure in figures))
    except ImageError as error:
        logger.warning("clip %s: %s", clip.short_id, error)
        return clip


def _under(profile: Profile, clip: Clip, overrides: Sequence[str]) -> Clip:
    """The clip under a changed profile; what its row expects stays unless the change is about that."""
    says_more = any(override.startswith("quality.") for override in overrides)
    return replace(
        clip,
        profile_name=profile.title if overrides else clip.profile_name,
        profile_digest=profile.digest(),
        expect=profile.quality.expect if says_more else clip.expect,
    )


def rerun_conf(
    batch_id: str,
    *,
    only: Sequence[str],
    overrides: Sequence[str],
    from_stage: StageName | None,
    failure_limit: int,
    budget: float | None = None,
) -> dict[str, Any]:
    """What a run of `DAG_ID` is given to run a batch again.

    Without overrides the stages from `from_stage` on are made again and compared with what is stored; None makes what
    is missing, and so does deliver, which only brings clips where they are not. With overrides the stages that they
    change are made.
    """
    onward = () if overrides or from_stage is None else from_stage.onward
    return {
        "rerun_of": batch_id,
        "only": list(only),
        "overrides": list(overrides),
        "failure_limit": failure_limit,
        "budget": budget,
        "force": [stage.value for stage in onward if stage in ARTIFACT_STAGES],
    }


def select_clips(store: ArtifactStore, batch_id: str, only: Sequence[str]) -> tuple[Clip, ...]:
    """The clips of a batch that `only` names, all of them when it is empty. Raises InputError for an unknown one."""
    clips = batch_clips(store, batch_id)
    if not only:
        return clips
    wanted: set[str] = set()
    for name in only:
        found = _failed(store, batch_id) if name == FAILED else {c.clip_id for c in clips if c.clip_id.startswith(name)}
        if name != FAILED and len(found) != 1:
            raise InputError(f"batch {batch_id}: clip {name!r} names {len(found)} clips")
        wanted |= found
    if not wanted:
        raise InputError(f"batch {batch_id}: no clip failed, so there is nothing to run again")
    return tuple(clip for clip in clips if clip.clip_id in wanted)


def batch_clips(store: ArtifactStore, batch_id: str) -> tuple[Clip, ...]:
    """Every clip of a planned batch: those that were to be rendered, by shard, then those that were finished."""
    documents: list[ClipDocument] = []
    for number in range(load_batch(store, batch_id).shards):
        documents += load_shard_document(store, batch_id, number).clips
    documents += load_finished(store, batch_id).finished
    return tuple(document.to_clip() for document in documents)


def first_changed_stage(before: RecipeBook, after: RecipeBook) -> StageName | None:
    """The first stage whose recipe two profiles do not share, or None when they make the same clips."""
    clip = Clip("any prompt", 0, before.profile.name, before.profile.digest())
    old, new = ({StageName.ENHANCE: book.enhance(clip), **book.chain(clip, clip.prompt)} for book in (before, after))
    return next((stage for stage in after.profile.stages if old.get(stage) != new.get(stage)), None)


def check_first_stage(
    profiles: Iterable[Profile],
    overrides: Sequence[str],
    from_stage: StageName,
    book_of: Callable[[Profile], RecipeBook],
) -> None:
    """Raises InputError when a change reaches back before `from_stage`, so that nothing is made again unawares."""
    for profile in profiles:
        first = first_changed_stage(book_of(profile), book_of(override_profile(profile, overrides)))
        if first in from_stage.before:
            raise InputError(
                f"profile {profile.name}: {', '.join(overrides)} changes the {first.value} stage already",
                hint=f"use --from {first.value}, or change something else",
            )


def _placed(clip: Clip, profile: Profile, placing: Placing, *, moves: bool) -> Clip:
    """The clip with its places: those that it had, but for the folder of a command, or those asked for now."""
    if not moves:
        kept = tuple(each for each in clip.deliveries if each.target != OUT)
        for each in kept:
            placing.require(each.target)
        return replace(clip, deliveries=kept)
    places: tuple[Delivery, ...] = ()
    for name in clip.names:
        places = merged(places, placing.deliveries(replace(clip, names=(name,)), profile.delivery))
    return replace(clip, deliveries=places)


def _failed(store: ArtifactStore, batch_id: str) -> set[str]:
    report = read_document(store, report_name(batch_id), ReportedClips)
    return {clip.clip_id for clip in report.failed if clip.clip_id}
