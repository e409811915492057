"""Which earlier batches were told of clips, so that what their results say need not be asked for anew."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from typing import TypeAlias

from magi2.artifacts.store import ArtifactStore, Known, nothing_known
from magi2.batches.documents import KnownManifests, newest_attempts, results_name
from magi2.types import Clip, StageName

Told: TypeAlias = Callable[[Sequence[Clip]], Callable[[str], Known]]
"""Gives manifests by stage, of clips, which may be out of date."""


def nothing_told(clips: Sequence[Clip], /) -> Callable[[str], Known]:
    """For clips of which nobody knows where they were rendered."""
    return nothing_known


def told_to(store: ArtifactStore, shards: Iterable[tuple[str, int]]) -> KnownManifests:
    """The manifests that the results of these shards of batches carry; nothing is asked before one is wanted."""
    return KnownManifests(store, _results_of(store, shards))


def _results_of(store: ArtifactStore, shards: Iterable[tuple[str, int]]) -> Iterator[str]:
    for batch_id, members in groupby(shards, key=lambda shard: shard[0]):
        names = (results_name(batch_id, number, stage) for _, number in members for stage in StageName)
        yield from newest_attempts(store, names)
