"""Planning a batch: which clips, what is in the store already, which shards; written to the store, torch-free.

For the documents see `magi2.batches.documents`, for reference images `magi2.batches.images`.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from math import ceil
from pathlib import Path
from typing import Literal

from magi2.artifacts.recipe import JSON, canonical_json, sha256_text
from magi2.artifacts.removals import read_removals
from magi2.artifacts.store import ArtifactStore
from magi2.batches.batch_file import BadRow, Batch, EqualRow
from magi2.batches.documents import (
    batch_name,
    finished_name,
    load_batch,
    load_shard_document,
    shard_name,
    write_document,
)
from magi2.batches.failure_limit import OnLimit
from magi2.batches.images import image_name, read_image
from magi2.batches.leases import require_unremoved, take_lease
from magi2.batches.row_clips import MAX_PRIORITY
from magi2.batches.schema import (
    BatchDocument,
    ByHand,
    ClipDocument,
    FinishedClip,
    FinishedDocument,
    FinishedFile,
    OptionsDocument,
    RefusedRow,
    ShardDocument,
)
from magi2.batches.told import Told, nothing_told
from magi2.config.load import require_named_files
from magi2.config.price import check_budget
from magi2.config.profile import Profile
from magi2.delivery.names import check_template
from magi2.errors import ContractError, CorruptedArtifactError, InputError
from magi2.files import partial_file
from magi2.inputs.files import read_unchanged
from magi2.inputs.limits import MAX_PROFILES
from magi2.recipes.book import RecipeBook
from magi2.recipes.many import look_for_clips
from magi2.recipes.marking import marking_config
from magi2.types import Clip, StageName

logger = logging.getLogger(__name__)

MAX_SHARDS = MAX_PROFILES
"""Length of the task map in Airflow, whatever the size of the batch."""
SHOWN_CLIPS = 10
"""Clips that a dry run shows."""
MIN_CLIPS_PER_SHARD = 16
"""So that loading weights costs a small share of a shard's time."""


@dataclass(frozen=True)
class BatchOptions:
    """What a user decides about a batch besides its prompts.

    `force` names stages to compute again and compare. Of batches that wait, those of higher `priority` go first.
    `budget` is what the batch may cost, in the deployment's currency: once it is spent no further shard starts.
    `delivery_target` and `delivery_name` say where clips are brought whose rows do not. `on_limit` says what happens
    when more clips failed than `failure_limit`, see `OnLimit.chosen`; `failure_streak` equal failures in a row, if it
    is not 0, pause the batch.
    """

    failure_limit: int = 0
    on_bad_rows: Literal["refuse", "skip"] = "refuse"
    force: tuple[str, ...] = ()
    priority: int = 0
    budget: float | None = None
    delivery_target: str | None = None
    delivery_name: str | None = None
    on_limit: Literal["stop", "continue"] | None = None
    failure_streak: int = 0

    def __post_init__(self) -> None:
        if self.failure_limit < 0:
            raise InputError(f"failure_limit is {self.failure_limit}, must be 0 or more")
        if self.failure_streak < 0:
            raise InputError(f"failure_streak is {self.failure_streak}, must be 0 (off) or more")
        if self.on_limit not in (None, *OnLimit):
            raise InputError(f"on_limit is {self.on_limit!r}, must be {' or '.join(OnLimit)}")
        if self.on_bad_rows not in ("refuse", "skip"):
            raise InputError(f"on_bad_rows is {self.on_bad_rows!r}, must be refuse or skip")
        if abs(self.priority) > MAX_PRIORITY:
            raise InputError(f"priority is {self.priority}, must be from {-MAX_PRIORITY} to {MAX_PRIORITY}")
        check_budget(self.budget)
        if self.delivery_name is not None:
            check_template(self.delivery_name)
        known = [stage.value for stage in StageName]
        for stage in self.force:
            if stage not in known:
                raise InputError(f"force names {stage!r}, known stages are {', '.join(known)}")

    @property
    def at_limit(self) -> OnLimit:
        """What happens when more clips failed than the limit."""
        return OnLimit.chosen(self.on_limit, self.failure_limit)

    @property
    def remakes(self) -> bool:
        """Whether anything that is stored is to be made again; deliver makes nothing."""
        return any(stage != StageName.DELIVER for stage in self.force)


@dataclass(frozen=True)
class Shard:
    """Clips of one profile that one task renders with one load of the weights.

    `finished` are those that are only to be delivered: the keys of their files, by clip id.
    """

    number: int
    profile: Profile
    clips: tuple[Clip, ...]
    finished: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class BatchPlan:
    """A whole batch: shards to render, clips that are finished already, rows that were refused."""

    batch_id: str
    name: str
    source: str
    options: BatchOptions
    shards: tuple[Shard, ...]
    cached: tuple[Clip, ...]
    refused: tuple[BadRow, ...]
    missing: Mapping[str, int]
    """Artifacts to make, by stage, one that clips share once; all stages after a caption that is not there count.
    Of deliver it is the clips to bring somewhere."""
    profiles: Mapping[str, Profile]
    missing_of: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """The same by profile digest; one that profiles share counts for the first."""
    origin: Mapping[str, str | None] = field(default_factory=dict)
    """dag_id, run_id, requested_by, parent_batch_id, where there are such."""
    finished: Mapping[str, str] = field(default_factory=dict)
    """Key of the file of each clip that is finished, by clip id: cached ones, and those only to be delivered."""
    by_hand: ByHand | None = None
    keys: Mapping[str, Mapping[StageName, str]] = field(default_factory=dict)
    """Keys of the artifacts of each clip to render, by clip id, as far as its caption is known."""
    text_flags: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Flags of the caption and embeddings of each such clip, by clip id: its file's manifest does not repeat them."""
    first: tuple[tuple[str, Clip], ...] = ()
    """The first clips in the order of the rows, each with the place of its row."""
    equal: tuple[EqualRow, ...] = ()
    """Rows whose clip another row has already."""
    marking: Mapping[str, Mapping[str, JSON]] = field(default_factory=dict)
    """What the recipes of the files say of their marks, by profile digest."""

    @property
    def clips(self) -> int:
        """Distinct clips of the batch."""
        return len(self.cached) + sum(len(shard.clips) for shard in self.shards)

    @property
    def repeats(self) -> int:
        """Rows that give the prompt, images, seed and profile of another, and so are the same clip."""
        clips = (*self.cached, *(clip for shard in self.shards for clip in shard.clips))
        return sum(len(clip.names) - 1 for clip in clips if clip.names)


def plan_batch(
    batch: Batch,
    *,
    name: str,
    source: str,
    store: ArtifactStore,
    book_of: Callable[[str], RecipeBook],
    options: BatchOptions,
    origin: Mapping[str, str | None] | None = None,
    clips_per_shard: int | None = None,
    told: Told = nothing_told,
) -> BatchPlan:
    """The plan of a validated batch; reads the store and writes nothing. `book_of` gives a profile digest's recipes.

    `told` gives what others were told of these clips' artifacts, so that the store need not be asked for each.

    Raises: InputError listing all bad rows when `options.on_bad_rows` is refuse.
    """
    if options.on_bad_rows == "refuse":
        batch.require_good()
    origin = origin or {}
    cached: list[Clip] = []
    to_render: list[Clip] = []
    to_deliver: list[Clip] = []
    missing: dict[StageName, dict[str, str]] = {stage: {} for stage in StageName}
    finished: dict[str, str] = {}
    keys: dict[str, Mapping[StageName, str]] = {}
    text_flags: dict[str, tuple[str, ...]] = {}
    stored_of = look_for_clips(store, book_of, batch.clips, told(batch.clips))
    for clip, stored in zip(batch.clips, stored_of, strict=True):
        if options.remakes or stored.file is None:
            to_render.append(clip)
            keys[clip.clip_id] = stored.keys
        else:
            (to_deliver if clip.deliveries else cached).append(clip)
            finished[clip.clip_id] = stored.file
            text_flags[clip.clip_id] = stored.text_flags
        for stage, key in stored.missing.items():
            missing[stage].setdefault(key, clip.profile_digest)
        if clip.deliveries:
            missing[StageName.DELIVER].setdefault(clip.clip_id, clip.profile_digest)
    clips = [*to_render, *to_deliver]
    profiles = {digest: book_of(digest).profile for digest in dict.fromkeys(c.profile_digest for c in batch.clips)}
    return BatchPlan(
        batch_id=batch_id_of(batch.clips, options, origin),
        name=name,
        source=source,
        options=options,
        shards=tuple(_with_files(each, finished) for each in pack_shards(clips, profiles, clips_per_shard)),
        cached=tuple(cached),
        refused=batch.bad_rows,
        missing={stage.value: len(keys) for stage, keys in missing.items() if keys},
        missing_of={
            digest: {stage.value: list(keys.values()).count(digest) for stage, keys in missing.items()}
            for digest in profiles
        },
        profiles=profiles,
        origin=origin,
        finished=finished,
        keys=keys,
        text_flags=text_flags,
        first=tuple((batch.places.get(clip.clip_id, ""), clip) for clip in batch.clips[:SHOWN_CLIPS]),
        equal=batch.equal,
        marking={digest: marking_config(profile, book_of(digest).marking) for digest, profile in profiles.items()},
    )


def batch_id_of(clips: Sequence[Clip], options: BatchOptions, origin: Mapping[str, str | None]) -> str:
    """The id of a batch of these clips: 16 hexadecimal digits."""
    # What came later enters only where it is used, so that a command that was interrupted before an update goes on.
    later = ("delivery_target", "delivery_name", "on_limit", "failure_streak")
    chosen = {name: value for name, value in asdict(options).items() if value or name not in later}
    identity = {"clips": sorted(clip.clip_id for clip in clips), "options": chosen, "origin": dict(origin)}
    return sha256_text(canonical_json(identity))[:16]


def pack_shards(
    clips: Sequence[Clip], profiles: Mapping[str, Profile], clips_per_shard: int | None = None
) -> tuple[Shard, ...]:
    """Shards of one profile each, at most MAX_SHARDS of them; urgent clips first, else in the order of the batch.

    `clips_per_shard` is raised when it would give more shards than that. Raises: InputError when it is less than one,
    or when there are more than MAX_SHARDS profiles.
    """
    if clips_per_shard is not None and clips_per_shard < 1:
        raise InputError(f"clips_per_shard is {clips_per_shard}, must be 1 or more")
    by_profile: dict[str, list[Clip]] = {digest: [] for digest in profiles}
    for clip in clips:
        by_profile[clip.profile_digest].append(clip)
    groups = [group for group in by_profile.values() if group]
    if len(groups) > MAX_SHARDS:
        raise InputError(f"clips of {len(groups)} profiles, a batch has at most {MAX_SHARDS}", hint="split the batch")
    least = clips_per_shard or max(MIN_CLIPS_PER_SHARD, ceil(len(clips) / MAX_SHARDS))
    sizes = range(least, max(least, len(clips)) + 1)
    size = sizes[bisect_left(sizes, True, key=lambda size: sum(ceil(len(g) / size) for g in groups) <= MAX_SHARDS)]
    shards: list[Shard] = []
    for group in groups:
        ordered = sorted(group, key=lambda clip: -clip.priority)
        for first in range(0, len(ordered), size):
            part = tuple(ordered[first : first + size])
            shards.append(Shard(len(shards), profiles[part[0].profile_digest], part))
    return tuple(shards)


def _with_files(shard: Shard, keys: Mapping[str, str]) -> Shard:
    """The shard, which knows the files of those of its clips that are finished."""
    return replace(shard, finished={each.clip_id: keys[each.clip_id] for each in shard.clips if each.clip_id in keys})


def save_plan(plan: BatchPlan, store: ArtifactStore) -> None:
    """Write the plan's documents; the batch's own comes last, so that a batch that is there is whole.

    Raises: InfrastructureError when a clip that was finished has been removed since.
    """
    _take_leases(plan, store)
    clips = [*plan.cached, *(clip for shard in plan.shards for clip in shard.clips)]
    for figure in {figure.sha256: figure for clip in clips for figure in clip.figures}.values():
        store.put_document(image_name(figure.sha256), read_unchanged(figure.path, figure.sha256))
    for shard in plan.shards:
        document = ShardDocument(
            batch_id=plan.batch_id,
            shard=shard.number,
            profile_digest=shard.profile.digest(),
            clips=tuple(ClipDocument.of(clip) for clip in shard.clips),
            finished={
                clip_id: FinishedFile(key=key, flags=plan.text_flags.get(clip_id, ()))
                for clip_id, key in shard.finished.items()
            },
        )
        write_document(store, shard_name(plan.batch_id, shard.number), document)
    finished = tuple(
        FinishedClip.of(clip, key=plan.finished[clip.clip_id], flags=plan.text_flags.get(clip.clip_id, ()))
        for clip in plan.cached
    )
    write_document(store, finished_name(plan.batch_id), FinishedDocument(finished=finished))
    write_document(store, batch_name(plan.batch_id), _batch_document(plan))


def _take_leases(plan: BatchPlan, store: ArtifactStore) -> None:
    """Hold what is known of the clips' artifacts; a stage that starts takes the lease on all that it needs."""
    for shard in plan.shards:
        known = {clip.clip_id: keys for clip in shard.clips if (keys := plan.keys.get(clip.clip_id))}
        if known:
            take_lease(store, plan.batch_id, shard.number, known)
    if plan.finished:
        clips = {clip_id: {StageName.MUX: key} for clip_id, key in plan.finished.items()}
        take_lease(store, plan.batch_id, None, clips)
        require_unremoved(store, plan.finished.values(), read_removals(store, StageName.MUX))


def load_shard(store: ArtifactStore, batch_id: str, number: int, scratch: Path | None) -> Shard:
    """A shard of a planned batch; its reference images are written to `scratch`, or left where they are for None.

    Raises: as `load_shard_document` and `BatchDocument.profile` do when a clip or the profile is not the one that was
    planned, InputError when there is no such shard included; ConfigError for a profile that cannot be rendered here;
    ContractError when an image is not in the store.
    """
    document = load_shard_document(store, batch_id, number)
    profile = load_batch(store, batch_id).profile(document.profile_digest)
    require_named_files(profile)
    clips = tuple(clip.to_clip() for clip in document.clips)
    if scratch is not None:
        clips = tuple(with_local_images(clip, store, scratch) for clip in clips)
    return Shard(number, profile, clips, {clip_id: file.key for clip_id, file in document.finished.items()})


def with_local_images(clip: Clip, store: ArtifactStore, scratch: Path) -> Clip:
    """The clip with its reference images read from the store into `scratch`.

    Raises: ContractError when one is not in the store, or is not what was planned.
    """
    figures = []
    for figure in clip.figures:
        target = scratch / f"{figure.sha256}{figure.path.suffix}"
        if not target.exists():
            try:
                content = read_image(store, figure.sha256)
            except CorruptedArtifactError as error:
                raise ContractError(f"clip {clip.short_id}: {error}", hint="plan it again") from error
            with partial_file(target) as partial:
                partial.write_bytes(content)
        figures.append(replace(figure, path=target))
    return replace(clip, figures=tuple(figures))


def _batch_document(plan: BatchPlan) -> BatchDocument:
    origin = {name: plan.origin.get(name) for name in ("dag_id", "run_id", "requested_by", "parent_batch_id")}
    return BatchDocument(
        batch_id=plan.batch_id,
        name=plan.name,
        source=plan.source,
        created_at=datetime.now(UTC),
        options=OptionsDocument(**asdict(plan.options) | {"on_limit": plan.options.at_limit}),
        profiles={digest: profile.model_dump(mode="json") for digest, profile in plan.profiles.items()},
        refused=tuple(RefusedRow(row=row.number, reason=row.reason) for row in plan.refused),
        shards=len(plan.shards),
        clips=plan.clips,
        missing=dict(plan.missing),
        marking={digest: dict(marking) for digest, marking in plan.marking.items()},
        by_hand=plan.by_hand,
        **origin,
    )
