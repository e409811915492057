"""A batch's report with what a folder to share needs besides: whole prompts, and files beside the page."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from magi2.artifacts.store import ArtifactStore
from magi2.batches.documents import load_batch, load_report
from magi2.batches.rerun import batch_clips
from magi2.batches.schema import ReportDocument, ReportedClip
from magi2.catalog.cost import BatchCost
from magi2.quality.thresholds import USUAL, Thresholds
from magi2.report.build import LISTS, build_report
from magi2.types import StageName


@dataclass(frozen=True, kw_only=True)
class SharedClip:
    """A clip of the report: `state` is the list it is in, the prompt is whole.

    `video` and `poster` are addresses as seen from the page; `missing` says why there is none although it was made.
    """

    reported: ReportedClip
    state: str
    prompt: str
    tags: tuple[str, ...] = ()
    video: str | None = None
    poster: str | None = None
    missing: str | None = None

    @property
    def seconds(self) -> float:
        """What its stages took together."""
        return sum(outcome.seconds for outcome in self.reported.stages.values())

    def to_json(self) -> dict[str, Any]:
        """The clip as JSON values."""
        own = ("state", "prompt", "tags", "video", "poster", "missing", "seconds")
        return self.reported.model_dump(mode="json") | {name: getattr(self, name) for name in own}


@dataclass(frozen=True, kw_only=True)
class SharedReport:
    """A report and its clips, in the order of its lists. `is_final`: the batch's run has ended."""

    report: ReportDocument
    clips: tuple[SharedClip, ...]
    requested_by: str | None
    created_at: str
    is_final: bool

    def to_json(self) -> dict[str, Any]:
        """The report as JSON values."""
        shared = {"requested_by": self.requested_by, "created_at": self.created_at, "is_final": self.is_final}
        lists = {state: [clip.to_json() for clip in self.clips if clip.state == state] for state in LISTS}
        return self.report.model_dump(mode="json") | shared | lists


def share(
    store: ArtifactStore,
    batch_id: str,
    cost: BatchCost | None,
    made: Collection[tuple[str, StageName]] = (),
    thresholds: Thresholds = USUAL,
    failure_limit: int | None = None,
) -> SharedReport:
    """The batch as it stands, without files yet; the rest is as in `build_report`, which says what it raises."""
    batch, stored = load_batch(store, batch_id), load_report(store, batch_id)
    report = build_report(store, batch_id, cost=cost, made=made, thresholds=thresholds, failure_limit=failure_limit)
    if stored is not None:
        report = report.model_copy(update={"seconds": stored.seconds})  # of the run, not up to this moment
    whole = {clip.clip_id: clip for clip in batch_clips(store, batch_id)}
    clips = []
    for state in LISTS:
        for reported in getattr(report, state):
            clip = whole.get(reported.clip_id or "")
            prompt, tags = (clip.prompt, clip.tags) if clip else (reported.prompt, ())
            clips.append(SharedClip(reported=reported, state=state, prompt=prompt, tags=tags))
    return SharedReport(
        report=report,
        clips=tuple(clips),
        requested_by=batch.requested_by,
        created_at=batch.created_at.isoformat(),
        is_final=stored is not None,
    )
