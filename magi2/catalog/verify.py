"""Checking store and catalog against each other, both ways."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set

from sqlalchemy import Connection, select

from magi2.artifacts.manifest import MADE_BY
from magi2.artifacts.store import ArtifactStore, nothing_known
from magi2.batches.documents import (
    KnownManifests,
    batch_folder,
    batch_ids,
    batch_name,
    delivery_name,
    fault_of,
    find_faults,
    finished_name,
    newest_results,
    shard_name,
)
from magi2.batches.images import image_digests, image_name, read_image
from magi2.catalog.batches import planned_ids
from magi2.catalog.compare import Pair, Problem, ProblemKind, pairs, stages_of
from magi2.catalog.documents import read_batch
from magi2.catalog.identity import find_mismatch
from magi2.catalog.merge import untried_clips
from magi2.catalog.records import ArtifactRecord, PlannedClip
from magi2.catalog.recount import miscounted
from magi2.catalog.repository import Catalog
from magi2.catalog.steps import Steps
from magi2.catalog.tables import BatchClipRow
from magi2.errors import CorruptedArtifactError, InfrastructureError
from magi2.types import ARTIFACT_FOLDERS

ORPHAN_AGE_HOURS = 24.0
"""Younger files without a manifest may belong to an artifact that is being published."""
_FILES = "files of no artifact"  # a step, beside those of stages and batches


def verify(
    store: ArtifactStore,
    catalog: Catalog,
    *,
    digests: bool,
    orphan_age_hours: float = ORPHAN_AGE_HOURS,
    steps: Steps | None = None,
) -> Iterator[Problem]:
    """What is wrong, found while it is asked for; without the `steps` that are done, to which it adds.

    Every manifest must be readable, its payloads there with their sizes and, with `digests`, their SHA-256, which
    reads every byte; every document of a batch must be the one that was written; every file must belong to a manifest,
    every manifest and batch document to a row and every row to one of them; the reference images of every batch must be
    there and, with `digests`, be those; the numbers that the catalog keeps must be those of its rows. A clip that is
    done is backed by an artifact's row, which the database itself sees to. Without `digests` a server's listing may say
    of a manifest that it is the one that a batch's results carry.
    """
    if mismatch := find_mismatch(store, catalog):
        yield Problem(ProblemKind.FOREIGN, store.url, mismatch)
    steps = steps or Steps(None, "verify")
    known = nothing_known if digests else KnownManifests(store)
    for stage in stages_of(catalog.artifacts):
        if not steps.is_done(stage):
            for pair in pairs(store, catalog.artifacts, stage, known(stage)):
                yield from _check_artifact(store, catalog, pair, digests=digests)
            steps.add(stage)
    if not steps.is_done(_FILES):
        for name in store.sweep(older_than_hours=orphan_age_hours, dry_run=True, known=known):
            yield Problem(ProblemKind.ORPHAN, name, "no manifest names this file")
        steps.add(_FILES)
    images = set(image_digests(store))
    yield from _check_batches(store, catalog, images, steps)
    for digest in sorted(images) if digests else ():
        yield from _check_image(store, digest)
    for batch_id, message in miscounted(catalog.database):
        yield Problem(ProblemKind.MISCOUNTED, batch_folder(batch_id) if batch_id else "batches", message)


def made_by_others(store: ArtifactStore, catalog: Catalog, here: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Artifacts that another set of libraries and programs than `here` made: place, and what differs or is not known.

    Of a manifest's set only the names in `here` count. Damaged artifacts are left to `verify`.
    """
    known = KnownManifests(store)
    for pair in (each for stage in ARTIFACT_FOLDERS for each in pairs(store, catalog.artifacts, stage, known(stage))):
        if pair.manifest is None:
            continue
        made_by = pair.manifest.report.get(MADE_BY)
        if not isinstance(made_by, dict):
            yield pair.place, "its manifest names no set"
        elif differs := [f"{name}: {made_by.get(name)}" for name in here if made_by.get(name) != here[name]]:
            yield pair.place, ", ".join(differs)


def _check_artifact(store: ArtifactStore, catalog: Catalog, pair: Pair, *, digests: bool) -> Iterator[Problem]:
    if pair.fault:
        yield Problem(ProblemKind.DAMAGED, pair.place, pair.fault)
    elif pair.manifest is None:
        # Looked at again: it may have gone on both sides since.
        if pair.record is not None and catalog.artifacts.get(pair.key) is not None:
            yield Problem(ProblemKind.UNPROVEN, pair.place, "the catalog lists an artifact that has no manifest")
    else:
        record = pair.record or catalog.artifacts.get(pair.key)
        if record is None:
            yield Problem(ProblemKind.NOT_INDEXED, pair.place, "the catalog does not list this artifact")
        elif record != ArtifactRecord.of(pair.manifest):
            yield Problem(ProblemKind.STALE, pair.place, "the catalog describes another artifact of this key")
        if digests:
            yield from _check_digests(store, pair, sorted(pair.manifest.payloads))


def _check_digests(store: ArtifactStore, pair: Pair, names: list[str]) -> Iterator[Problem]:
    for name in names:
        try:
            store.fetch(pair.stage, pair.key, name)
        except (CorruptedArtifactError, InfrastructureError) as error:
            yield Problem(ProblemKind.DAMAGED, pair.place, fault_of(store, error))


def _check_image(store: ArtifactStore, digest: str) -> Iterator[Problem]:
    try:
        read_image(store, digest)
    except (CorruptedArtifactError, InfrastructureError) as error:
        yield Problem(ProblemKind.DAMAGED, image_name(digest), fault_of(store, error))


def _check_batches(store: ArtifactStore, catalog: Catalog, images: Set[str], steps: Steps) -> Iterator[Problem]:
    stored = set()
    for batch_id in batch_ids(store):
        stored.add(batch_id)
        step = batch_folder(batch_id)
        if not steps.is_done(step):
            yield from _check_batch(store, catalog, batch_id, images)
            steps.add(step)
    for batch_id in catalog.database.read(planned_ids):
        if batch_id not in stored:
            yield Problem(ProblemKind.UNPROVEN, batch_folder(batch_id), "the catalog lists a batch without documents")


def _check_batch(store: ArtifactStore, catalog: Catalog, batch_id: str, images: Set[str]) -> Iterator[Problem]:
    place = batch_folder(batch_id)
    try:
        clips = read_batch(store, batch_id).clips
        faults = [fault for _, fault in find_faults(store, batch_id, but=_read_names(store, batch_id, clips))]
    except CorruptedArtifactError as error:
        faults = [fault for _, fault in find_faults(store, batch_id)] or [str(error)]
    yield from (Problem(ProblemKind.DAMAGED, place, fault) for fault in faults)
    if faults:
        return
    if catalog.batches.get(batch_id) is None:
        yield Problem(ProblemKind.NOT_INDEXED, place, "the catalog does not list this batch")
        return
    planned = clips.keys()
    for figure in {figure.sha256 for each in clips.values() for figure in each.clip.figures} - images:
        yield Problem(ProblemKind.DAMAGED, image_name(figure), f"a reference image of {place} is not in the store")
    known = catalog.database.read(_clip_ids, batch_id)
    untried = catalog.database.read(untried_clips, batch_id)
    if missing := planned - known:
        message = f"the catalog lacks {len(missing)} clips, such as {min(missing)[:12]}"
        yield Problem(ProblemKind.NOT_INDEXED, place, message)
    if extra := untried - planned:  # others stay, for what they cost
        message = f"the catalog has {len(extra)} clips that were never planned, such as {min(extra)[:12]}"
        yield Problem(ProblemKind.UNPROVEN, place, message)


def _read_names(store: ArtifactStore, batch_id: str, clips: Mapping[str, PlannedClip]) -> set[str]:
    """The documents that `read_batch` has read, all of them good, when it gave these clips."""
    shards = {each.shard for each in clips.values() if each.shard is not None}
    return {
        batch_name(batch_id),
        finished_name(batch_id),
        *(shard_name(batch_id, shard) for shard in shards),
        *newest_results(store, batch_folder(batch_id)),
        *(delivery_name(batch_id, clip_id) for clip_id, each in clips.items() if each.clip.deliveries),
    }


def _clip_ids(connection: Connection, batch_id: str) -> set[str]:
    return set(connection.scalars(select(BatchClipRow.clip_id).where(BatchClipRow.batch_id == batch_id)))
