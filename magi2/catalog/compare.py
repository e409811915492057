"""Walking through the store and the catalog side by side."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from magi2.artifacts.manifest import Manifest
from magi2.artifacts.progress import Progress
from magi2.artifacts.store import ArtifactStore, Known, Look
from magi2.batches.documents import fault_of
from magi2.catalog.artifacts import Artifacts
from magi2.catalog.records import ArtifactRecord
from magi2.catalog.statements import chunks
from magi2.errors import CorruptedArtifactError
from magi2.stages.contracts import check_payloads
from magi2.types import ARTIFACT_FOLDERS

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


def stages_of(artifacts: Artifacts) -> list[str]:
    """The folders of artifacts of either side, in the order in which they are compared.

    Those that only the catalog knows come first, so that a key which is also elsewhere is not lost by removing it.
    """
    return [*sorted(artifacts.totals().keys() - set(ARTIFACT_FOLDERS)), *ARTIFACT_FOLDERS]


def pairs(store: ArtifactStore, artifacts: Artifacts, stage: str, known: Known = ()) -> Iterator[Pair]:
    """Every artifact of a stage of either side, those of the store first; of each only its key stays in memory.

    `known` are manifests that need not be read again where the store's listing has the very same.
    """
    progress = Progress(f"{stage}: %s artifacts compared", artifacts.totals().get(stage, (0, 0))[0])
    seen: set[bytes] = set()
    for chunk in chunks(store.look(stage, known=known), _CHUNK):
        records = artifacts.of_keys(look.key for look in chunk)
        progress.add(len(chunk))
        for look in chunk:
            seen.add(bytes.fromhex(look.key))
            yield _pair(store, stage, look, records.get(look.key))
    rest = (record for record in artifacts.records(stage) if bytes.fromhex(record.key) not in seen)
    for alone in chunks(rest, _CHUNK):  # looked for each: it may have come since the store was listed
        found = {look.key: look for look in store.look(stage, [record.key for record in alone])}
        yield from (_pair(store, stage, found.get(record.key) or Look(record.key, None), record) for record in alone)


def _pair(store: ArtifactStore, stage: str, look: Look, record: ArtifactRecord | None) -> Pair:
    manifest, fault = look.manifest, look.fault
    try:
        if manifest is not None and not manifest.is_sealed:
            check_payloads(manifest)
    except CorruptedArtifactError as error:
        manifest, fault = None, error
    return Pair(stage, look.key, manifest, record, fault_of(store, fault) if fault else None)
