"""Retention: which artifacts are old enough to go, and which must stay whatever their age.

By default only lossless intermediates go, seven days after the clip was delivered and they were last used; captions
never go, since a language model does not write the same one twice. Nothing goes that an undelivered clip of a known
batch needs, nor what an unfinished batch has leased, from its plan on.
"""

from __future__ import annotations

import logging
import re
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from magi2.artifacts.manifest import Manifest
from magi2.artifacts.progress import Progress
from magi2.artifacts.removals import note_removals
from magi2.artifacts.store import ArtifactStore, Look
from magi2.batches.documents import KnownManifests, all_results, batch_folder
from magi2.batches.leases import REMOVAL_S, Leases, announced_removal, named_keys, read_leases, sweep_leases
from magi2.errors import InfrastructureError, InputError
from magi2.stages.snapshots import PICTURES, SNAPSHOTS
from magi2.types import ARTIFACT_STAGES, NEGATIVE, StageName

logger = logging.getLogger(__name__)

NEVER = (StageName.ENHANCE, NEGATIVE)
"""Captions cannot be made again; the negative embedding is one small file for many clips."""
_KEY_TEXT = re.compile("[0-9a-f]{64}")
_ROUND = 2048  # artifacts that are announced and looked at again together, after the leases were read
_TOGETHER = 256  # and of these removed at once
_SNAPSHOT = re.compile(rf"{SNAPSHOTS}/(?P<stage>{'|'.join(StageName)})/(?P<key>[0-9a-f]{{64}})\..*")


@dataclass(frozen=True)
class RetentionPolicy:
    """Days an artifact of a stage is kept after its clip's delivery, its making and its last use, whichever is last.

    A stage that is absent is kept for ever. `batch_id` limits to one batch. A batch without a sign of life for
    `lease_days` holds nothing any more.
    """

    keep_days: Mapping[StageName, float] = field(default_factory=lambda: {StageName.DECODE: 7.0})
    batch_id: str | None = None
    lease_days: float = 7.0

    def __post_init__(self) -> None:
        for stage, days in self.keep_days.items():
            if stage in NEVER:
                raise InputError(f"retention names {stage}, which is never removed")
            if days < 0:
                raise InputError(f"retention of {stage} is {days} days, must be 0 or more")

    def lets_go(self, manifest: Manifest, since: datetime, leases: Leases, now: datetime) -> bool:
        """Whether an artifact, of whose clips the last was delivered at `since`, is old enough."""
        last = max(since, manifest.created_at, leases.last_use.get(manifest.key, since))
        return now - last >= timedelta(days=self.keep_days[StageName(manifest.stage)])


@dataclass(frozen=True)
class Candidate:
    """An artifact that was old enough at the first look, and when the last of its clips was delivered."""

    stage: StageName
    key: str
    size_bytes: int
    since: datetime


@dataclass(frozen=True)
class GcReport:
    """What went, or would go: artifacts by stage and bytes; `kept_needed` were old enough but somebody needs them.

    `unreadable` are results that say no more what their batch needs, with the reasons; what they still name is kept.
    """

    dry_run: bool
    removed: tuple[tuple[StageName, str], ...]
    freed_bytes: int
    kept_needed: int
    unreadable: Mapping[str, str]


def collect_garbage(
    store: ArtifactStore, *, policy: RetentionPolicy, dry_run: bool = True, now: datetime | None = None
) -> GcReport:
    """Remove artifacts that `policy` lets go, or say which would go. Files only they held are gone afterwards.

    Each is looked at again right before it goes, see `magi2.batches.leases`.
    """
    now = now or datetime.now(UTC)
    unreadable: dict[str, str] = {}
    known = KnownManifests(store)
    delivered = _delivered(store, policy, known, unreadable)
    leases = read_leases(store, lease_days=policy.lease_days, now=now, unreadable=unreadable)
    limited_to = None if policy.batch_id is None else _keys_of_batch(store, policy.batch_id)
    old, needed = [], 0
    for stage in policy.keep_days:
        for manifest in _manifests(store, stage, known):
            if limited_to is not None and manifest.key not in limited_to:
                continue
            since = delivered.get(manifest.key, manifest.created_at if stage is StageName.MUX else None)
            if since is None or manifest.key in leases.held:
                needed += 1
            elif policy.lets_go(manifest, since, leases, now):
                old.append(Candidate(stage, manifest.key, manifest.size_bytes, since))
    going = old if dry_run else list(remove_candidates(store, old, policy, now))
    if not dry_run:
        longest = max([policy.lease_days, *policy.keep_days.values()])
        sweep_leases(store, before=now - timedelta(days=longest + 1))
    removed = tuple((each.stage, each.key) for each in going)
    freed = sum(each.size_bytes for each in going)
    return GcReport(dry_run, removed, freed, needed + len(old) - len(going), unreadable)


def remove_candidates(
    store: ArtifactStore, old: Sequence[Candidate], policy: RetentionPolicy, now: datetime
) -> Iterator[Candidate]:
    """Remove what may still go, round by round, and give what went; it is decided for each anew."""
    stages = list(policy.keep_days)
    # In the order of a listing: some that lie together are on a page or two of it, else on nearly all.
    waiting = deque(sorted(old, key=lambda each: (stages.index(each.stage), each.key)))
    progress = Progress("retention: %s artifacts gone or needed", len(old))
    while waiting:
        round_ = [waiting.popleft() for _ in range(min(_ROUND, len(waiting)))]
        with announced_removal(store, [each.key for each in round_]) as has_time:
            leases = read_leases(store, lease_days=policy.lease_days, now=now, unreadable={})
            if not has_time():
                raise InfrastructureError(f"{store.url}: reading the leases took longer than {REMOVAL_S:.0f} s")
            clips = [each.key for each in round_ if each.stage is StageName.MUX]
            if clips:
                note_removals(store, StageName.MUX, clips, now)
            while round_ and has_time():
                some, round_ = round_[:_TOGETHER], round_[_TOGETHER:]
                going = _still_going(store, some, leases, policy, now)
                store.remove_all(list(going.values()))
                progress.add(len(some))
                yield from (each for each in some if (each.stage, each.key) in going)
        waiting.extendleft(reversed(round_))


def _still_going(
    store: ArtifactStore, some: Sequence[Candidate], leases: Leases, policy: RetentionPolicy, now: datetime
) -> dict[tuple[StageName, str], Manifest]:
    """Those that, at a second look, nobody holds and that are as old as they were."""
    since = {(each.stage, each.key): each.since for each in some if each.key not in leases.held}
    found: dict[tuple[StageName, str], Manifest] = {}
    for stage in dict.fromkeys(each.stage for each in some):
        for manifest in _whole(store.look(stage, [key for of, key in since if of is stage])):
            place = (stage, manifest.key)
            if policy.lets_go(manifest, since[place], leases, now):
                found[place] = manifest
    return found


def sweep_snapshots(
    store: ArtifactStore, *, older_than_hours: float = 168.0, dry_run: bool = True, lease_days: float = 7.0
) -> list[str]:
    """Remove snapshots of clips that are made, or that nobody has gone on with for so long; the documents' names.

    Those of clips that an unfinished batch has to make, or to make again, stay.
    """
    leases = read_leases(store, lease_days=lease_days, now=datetime.now(UTC), unreadable={})
    made = _made(store, store.list_documents(SNAPSHOTS))
    old = store.sweep_documents(SNAPSHOTS, older_than_hours=older_than_hours, dry_run=True)
    going = [name for name in dict.fromkeys([*made, *old]) if not leases.held & set(_KEY_TEXT.findall(name))]
    for name in going if not dry_run else []:
        store.remove_document(name)
    return going


def _made(store: ArtifactStore, snapshots: Iterable[str]) -> list[str]:
    """Those of the clips that are made; a picture goes with its clip's preview, or by its age."""
    names: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for name in snapshots:
        if found := _SNAPSHOT.fullmatch(name):
            names[found["stage"]][found["key"]].append(name)
        elif not name.startswith(f"{PICTURES}/"):
            logger.warning("%s is no snapshot: it is left until it is old", name)
    return [
        name
        for stage, named in names.items()
        for manifest in _whole(store.look(stage, list(named)))
        for name in named[manifest.key]
    ]


def _delivered(
    store: ArtifactStore, policy: RetentionPolicy, known: KnownManifests, unreadable: dict[str, str]
) -> dict[str, datetime]:
    """When the last clip made from each artifact was delivered; artifacts of undelivered clips are not in it.

    Only of the stages that the policy names: what they were made from is not asked.
    """
    finished: dict[str, datetime] = {}
    undelivered: set[str] = set()
    chain = (StageName.ENCODE, StageName.PREVIEW, StageName.REFINE, StageName.DECODE)
    first = min((chain.index(stage) for stage in policy.keep_days if stage in chain), default=len(chain))
    inputs_of = {
        manifest.key: tuple(manifest.recipe.inputs.values())
        for stage in chain[first + 1 :]
        for manifest in _manifests(store, stage, known)
    }
    for manifest in _manifests(store, StageName.MUX, known):
        for key in _ancestors(manifest.recipe.inputs.values(), inputs_of):
            finished[key] = max(finished.get(key, manifest.created_at), manifest.created_at)
    for key in _pending_keys(store, unreadable):
        undelivered |= {key, *_ancestors(inputs_of.get(key, ()), inputs_of)}
    return {key: moment for key, moment in finished.items() if key not in undelivered}


def _ancestors(keys: Any, inputs_of: Mapping[str, tuple[str, ...]]) -> set[str]:
    found: set[str] = set()
    waiting = list(keys)
    while waiting:
        key = waiting.pop()
        if key not in found:
            found.add(key)
            waiting += inputs_of.get(key, ())
    return found


def _manifests(store: ArtifactStore, stage: StageName, known: KnownManifests) -> Iterator[Manifest]:
    progress = Progress(f"retention: %s artifacts of {stage.value} looked at")
    for manifest in _whole(store.look(stage, known=known(stage))):
        progress.add(1)
        yield manifest


def _whole(found: Iterable[Look]) -> Iterator[Manifest]:
    """The manifests of those that are not damaged: `magi2 verify` reports the others.

    Retention only removes what it understands.
    """
    for each in found:
        if isinstance(each.fault, InfrastructureError):
            raise each.fault
        if each.manifest is not None:
            yield each.manifest


def _pending_keys(store: ArtifactStore, unreadable: dict[str, str]) -> set[str]:
    """Keys of clips, in batches that the store knows, whose last stage has not been delivered as far as one can read.

    All that an unreadable document still names counts as pending.
    """
    made: dict[tuple[str, str], set[str]] = {}
    done: set[tuple[str, str]] = set()
    for document in all_results(store, unreadable=unreadable):
        for result in document.results:
            clip = (document.batch_id, result.clip_id)
            if result.key:
                made.setdefault(clip, set()).add(result.key)
            if document.stage is StageName.MUX and result.has_artifact:
                done.add(clip)
    pending = {key for clip, keys in made.items() if clip not in done for key in keys}
    for name in unreadable:
        pending |= _named_keys(store, name)
    return pending


def _named_keys(store: ArtifactStore, name: str) -> set[str]:
    """Every key that stands in a document; of one that the store does not give, every key there is."""
    try:
        return named_keys(store, name)
    except InfrastructureError:
        return {key for stage in ARTIFACT_STAGES for key in store.keys(stage)}


def _keys_of_batch(store: ArtifactStore, batch_id: str) -> set[str]:
    documents = all_results(store, batch_folder(batch_id), unreadable={})
    keys = {result.key for document in documents for result in document.results if result.key}
    if not keys:
        raise InputError(f"batch {batch_id} has no results in the store {store.url}")
    return keys
