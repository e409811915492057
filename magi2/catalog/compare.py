"""Walking through the store and the catalog side by side."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import StrEnum

from magi2.artifacts.manifest import Manifest
from magi2.artifacts.store import ArtifactStore
from magi2.batches.documents import fault_of
from magi2.catalog.artifacts import Artifacts
from magi2.catalog.records import ArtifactRecord
from magi2.catalog.statements import chunks
from magi2.errors import CorruptedArtifactError, InfrastructureError
from magi2.stages.contracts import check_payloads
from magi2.types import ARTIFACT_FOLDERS

_THREADS = 8  # manifests asked for at once: a remote store answers each after milliseconds
_CHUNK = 256


class ProblemKind(StrEnum):
    DAMAGED = "damaged"
    """A manifest or document cannot be read, or a payload is missing or not what its manifest says."""
    ORPHAN = "orphan"
    """A file belongs to no manifest."""
    NOT_INDEXED = "not_indexed"
    """The store has it and the catalog does not."""
    UNPROVEN = "unproven"
    """The catalog has it and the store does not."""
    STALE = "stale"
    """Both have it and they differ."""
    MISCOUNTED = "miscounted"
    """The numbers that the catalog keeps of its rows are not theirs."""
    FOREIGN = "foreign"
    """The store does not seem to be the one that the catalog speaks of."""


@dataclass(frozen=True)
class Problem:
    """Something that is not as it should be, and where."""

    kind: ProblemKind
    place: str
    message: str


@dataclass(frozen=True)
class Pair:
    """An artifact in the store, in the catalog, or in both; `fault` says why its manifest proves nothing."""

    stage: str
    key: str
    manifest: Manifest | None
    record: ArtifactRecord | None
    fault: str | None = None

    @property
    def place(self) -> str:
        return f"{self.stage}/{self.key}"


def pairs(store: ArtifactStore, artifacts: Artifacts) -> Iterator[Pair]:
    """Every artifact of either side, by stage and key; nothing is held in memory but a few hundred.

    Stages that only the catalog knows come first, so that a key which is also elsewhere is not lost by removing it.
    """
    unknown = sorted(artifacts.totals().keys() - set(ARTIFACT_FOLDERS))
    for stage in (*unknown, *ARTIFACT_FOLDERS):
        with ThreadPoolExecutor(_THREADS) as pool:
            for chunk in chunks(_merged(store.keys(stage), artifacts.records(stage)), _CHUNK):
                yield from pool.map(lambda item, stage=stage: _pair(store, stage, *item), chunk)


def _pair(store: ArtifactStore, stage: str, key: str, record: ArtifactRecord | None) -> Pair:
    try:
        manifest = store.find(stage, key)
        if manifest is not None and not manifest.is_sealed:
            check_payloads(manifest)
        return Pair(stage, key, manifest, record)
    except (CorruptedArtifactError, InfrastructureError) as error:
        return Pair(stage, key, None, record, fault_of(store, error))


def _merged(keys: Iterator[str], records: Iterator[ArtifactRecord]) -> Iterator[tuple[str, ArtifactRecord | None]]:
    """The union of two sequences in order of keys."""
    record = next(records, None)
    for key in keys:
        while record is not None and record.key < key:
            yield record.key, record
            record = next(records, None)
        if record is not None and record.key == key:
            yield key, record
            record = next(records, None)
        else:
            yield key, None
    while record is not None:
        yield record.key, record
        record = next(records, None)
