"""Making the catalog again from what the store holds: manifests first, then the documents of batches.

Nothing is taken out that the catalog alone knows: priority, budget, actions, attempts, hosts, accelerator-seconds. A
catalog that was lost does not come back with them, nor with the knowledge that a batch was cancelled.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass

from sqlalchemy import Connection, delete, exists

from magi2.artifacts.store import ArtifactStore
from magi2.batches.documents import KnownManifests, batch_folder, batch_ids, is_planned
from magi2.catalog.artifacts import insert_artifacts
from magi2.catalog.batches import planned_ids
from magi2.catalog.compare import Pair, Problem, ProblemKind, pairs, stages_of
from magi2.catalog.documents import read_batch
from magi2.catalog.identity import require_complete, require_identity
from magi2.catalog.merge import merge_batch
from magi2.catalog.records import ArtifactRecord
from magi2.catalog.recount import recount
from magi2.catalog.repository import Catalog
from magi2.catalog.statements import chunks
from magi2.catalog.steps import Steps
from magi2.catalog.tables import BatchClipRow, ClipRow
from magi2.errors import CorruptedArtifactError, InfrastructureError

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class RebuildReport:
    """What there is now, what was taken away, and what of the store could not be read.

    `batches_unproven` are those that stay though the store has no documents of them.
    """

    artifacts: int
    artifacts_forgotten: int
    batches: int
    batches_unproven: int
    clips: int
    problems: tuple[Problem, ...]


def rebuild(store: ArtifactStore, catalog: Catalog, *, force: bool = False, goes_on: bool = False) -> RebuildReport:
    """Enter what the store holds and take out artifacts that it does not prove. The catalog may be in use meanwhile.

    A new clip that nothing proves finished or failed is waiting. Nothing is changed when the store is not the
    catalog's or not complete, see `magi2.catalog.identity`, unless `force` says that this is the store. One that
    `goes_on` leaves out what an earlier one of these, which did not come to its end, has done; its report too.
    Raises: IdentityError, InfrastructureError.
    """
    identity = require_complete(store, catalog, force=force)
    steps = Steps(catalog if goes_on else None, "rebuild")
    problems: list[Problem] = []
    known = KnownManifests(store)
    artifacts = forgotten = batches = clips = 0
    for stage in stages_of(catalog.artifacts):
        if not steps.is_done(stage):
            compared = pairs(store, catalog.artifacts, stage, known(stage))
            found, taken = _rebuild_artifacts(store, catalog, identity, compared, problems)
            artifacts, forgotten = artifacts + found, forgotten + taken
            steps.add(stage)
    for batch_id in batch_ids(store):
        if steps.is_done(batch_folder(batch_id)):
            continue
        entered = _rebuild_batch(store, catalog, batch_id, problems)
        batches, clips = batches + (entered is not None), clips + (entered or 0)
        steps.add(batch_folder(batch_id))
    unproven = sum(not is_planned(store, batch_id) for batch_id in catalog.database.read(planned_ids))
    catalog.database.write(_remove_clips_without_batch)
    recount(catalog.database)
    steps.clear()
    return RebuildReport(artifacts, forgotten, batches, unproven, clips, tuple(problems))


def _rebuild_batch(store: ArtifactStore, catalog: Catalog, batch_id: str, problems: list[Problem]) -> int | None:
    """How many clips of a batch are entered; None of one whose documents do not tell."""
    try:
        stored = read_batch(store, batch_id)
    except CorruptedArtifactError as error:
        problems.append(Problem(ProblemKind.DAMAGED, batch_folder(batch_id), str(error)))
        return None
    merge_batch(catalog.database, stored)
    logger.info("batch %s is entered with %d clips", batch_id, len(stored.clips))
    return len(stored.clips)


def _rebuild_artifacts(
    store: ArtifactStore, catalog: Catalog, identity: str, compared: Iterable[Pair], problems: list[Problem]
) -> tuple[int, int]:
    """How many artifacts of a stage are in the index now, and how many were taken out."""
    found, forgotten = 0, 0
    for chunk in chunks(compared):
        good = [pair for pair in chunk if pair.manifest is not None]
        bad = [pair.key for pair in chunk if pair.manifest is None and pair.record and not _is_proven(store, pair)]
        problems += [Problem(ProblemKind.DAMAGED, pair.place, pair.fault) for pair in chunk if pair.fault]
        if bad:
            require_identity(store, catalog, identity)  # a store that goes away now would prove nothing any more
            catalog.artifacts.forget(bad)
        catalog.database.write(insert_artifacts, _changed(good))
        found, forgotten = found + len(good), forgotten + len(bad)
    return found, forgotten


def _is_proven(store: ArtifactStore, pair: Pair) -> bool:
    """Whether there is a manifest by now: the pair may have been looked up minutes ago, before it was published.

    One that the disk does not read is there.
    """
    try:
        return store.find(pair.stage, pair.key) is not None
    except CorruptedArtifactError:
        return False
    except InfrastructureError as error:
        logger.warning("stays in the catalog: %s: %s", pair.place, error)
        return True


def _changed(found: Iterable[Pair]) -> list[ArtifactRecord]:
    records = [(ArtifactRecord.of(pair.manifest), pair.record) for pair in found if pair.manifest]
    return [new for new, old in records if new != old]


def _remove_clips_without_batch(connection: Connection) -> None:
    """Profiles stay: a plan may be about to use one."""
    connection.execute(delete(ClipRow).where(~exists().where(BatchClipRow.clip_id == ClipRow.clip_id)))
