"""Clips of two batches that show the same: which are compared, and where people see them side by side."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from urllib.parse import urlencode

from magi2.artifacts.store import ArtifactStore
from magi2.batches.rerun import batch_clips
from magi2.report.build import build_report
from magi2.types import Clip


@dataclass(frozen=True)
class Delivered:
    """A clip of a batch, and the key of its delivered file."""

    batch_id: str
    clip: Clip
    key: str


@dataclass(frozen=True)
class Pair:
    """Two delivered clips of one prompt and one set of images, of one seed where both batches have that."""

    one: Delivered
    other: Delivered

    @property
    def name(self) -> str:
        """What people call the first."""
        return self.one.clip.names[0] if self.one.clip.names else self.one.clip.short_id

    def link(self, airflow_url: str | None) -> str:
        """The page that plays both side by side; a path where nobody has said at which address Airflow is."""
        other = f"{self.other.batch_id}:{self.other.clip.clip_id}"
        query = urlencode({"batch": self.one.batch_id, "clip": self.one.clip.clip_id, "other": other})
        return f"{(airflow_url or '').rstrip('/')}/plugin/renders?{query}"


def find_pairs(store: ArtifactStore, one: str, other: str) -> tuple[list[Pair], list[Delivered]]:
    """The pairs of two batches, and the delivered clips of either that have no counterpart.

    Raises: InputError for an unknown batch, CorruptedArtifactError for a damaged document.
    """
    left, right = list(_delivered(store, one)), list(_delivered(store, other))
    found: list[Pair] = []
    for identity in (_with_seed, _without_seed):
        left, right = _match(left, right, identity, found)
    return found, [*left, *right]


def _delivered(store: ArtifactStore, batch_id: str) -> Iterator[Delivered]:
    report = build_report(store, batch_id)
    keys = {clip.clip_id: clip.key for clip in (*report.done, *report.flagged)}
    for clip in batch_clips(store, batch_id):
        if key := keys.get(clip.clip_id):
            yield Delivered(batch_id, clip, key)


def _match(
    left: list[Delivered], right: list[Delivered], identity: Callable[[Clip], Hashable], found: list[Pair]
) -> tuple[list[Delivered], list[Delivered]]:
    """Adds to `found` what has an equal in order of the batches; what is left over of either."""
    waiting: dict[Hashable, list[Delivered]] = {}
    for each in right:
        waiting.setdefault(identity(each.clip), []).append(each)
    alone = []
    for each in left:
        if equals := waiting.get(identity(each.clip)):
            found.append(Pair(each, equals.pop(0)))
        else:
            alone.append(each)
    return alone, [each for equals in waiting.values() for each in equals]


def _with_seed(clip: Clip) -> Hashable:
    return clip.seed, _without_seed(clip)


def _without_seed(clip: Clip) -> Hashable:
    return clip.prompt, tuple((figure.number, figure.sha256) for figure in clip.figures)
