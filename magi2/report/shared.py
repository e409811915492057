"""A batch's report with what a folder to share needs besides: whole prompts, files beside the page, costs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from magi2.artifacts.store import ArtifactStore
from magi2.cost import BatchCost
from magi2.plan import load_batch
from magi2.report.build import build_report
from magi2.report.records import LISTS, Report, ReportedClip
from magi2.rerun import batch_clips


@dataclass(frozen=True, kw_only=True)
class SharedClip:
    """A clip of the report: `state` is the list it is in, the prompt is whole.

    `video` and `poster` are addresses as seen from the page; `missing` says why there is none although it was made.
    Accelerator-seconds and cost are those of this batch, None where nobody knows them.
    """

    reported: ReportedClip
    state: str
    prompt: str
    tags: tuple[str, ...] = ()
    video: str | None = None
    poster: str | None = None
    missing: str | None = None
    accelerator_seconds: float | None = None
    cost: float | None = None

    @property
    def seconds(self) -> float:
        """What its stages took together."""
        return sum(outcome.seconds for outcome in self.reported.stages.values())

    def to_json(self) -> dict[str, Any]:
        """The clip as JSON values."""
        own = ("state", "prompt", "tags", "video", "poster", "missing", "seconds", "accelerator_seconds", "cost")
        return asdict(self.reported) | {name: getattr(self, name) for name in own}


@dataclass(frozen=True, kw_only=True)
class SharedReport:
    """A report and its clips, in the order of its lists. `is_final`: the batch's run has ended."""

    report: Report
    clips: tuple[SharedClip, ...]
    requested_by: str | None
    created_at: str
    is_final: bool
    costs: BatchCost | None = None

    def to_json(self) -> dict[str, Any]:
        """The report as JSON values."""
        shared = {"requested_by": self.requested_by, "created_at": self.created_at, "is_final": self.is_final}
        lists = {state: [clip.to_json() for clip in self.clips if clip.state == state] for state in LISTS}
        return self.report.to_json() | shared | _cost_values(self.costs) | lists


def share(store: ArtifactStore, batch_id: str, costs: BatchCost | None) -> SharedReport:
    """The batch as it stands, without files yet. Raises InputError for an unknown batch."""
    batch = load_batch(store, batch_id)
    stored = store.get_document(f"batches/{batch_id}/report.json")
    report = build_report(store, batch_id)
    if stored is not None:
        report = replace(report, seconds=json.loads(stored)["seconds"])  # of the run, not up to this moment
    whole = {clip.clip_id: clip for clip in batch_clips(store, batch_id)}
    clips = []
    for state in LISTS:
        for reported in getattr(report, state):
            clip = whole.get(reported.clip_id or "")
            prompt, tags = (clip.prompt, clip.tags) if clip else (reported.prompt, ())
            shared = SharedClip(reported=reported, state=state, prompt=prompt, tags=tags)
            clips.append(_priced(shared, costs))
    return SharedReport(
        report=report,
        clips=tuple(clips),
        requested_by=batch["requested_by"],
        created_at=batch["created_at"],
        is_final=stored is not None,
        costs=costs,
    )


def stage_rows(shared: SharedReport) -> list[dict[str, Any]]:
    """A row for each stage: clips by outcome, seconds, and what it took and cost where that is known."""
    rows: list[dict[str, Any]] = []
    for stage, count in shared.report.stages.items():
        rows.append({"stage": stage, **asdict(count), **_stage_cost(shared.costs, stage)})
    return rows


def _priced(clip: SharedClip, costs: BatchCost | None) -> SharedClip:
    clip_id = clip.reported.clip_id
    if costs is None or clip_id is None:
        return clip
    return replace(clip, accelerator_seconds=costs.clip_seconds.get(clip_id, 0.0), cost=costs.of_clip(clip_id))


def _stage_cost(costs: BatchCost | None, stage: str) -> Mapping[str, float | None]:
    if costs is None:
        return {"accelerator_seconds": None, "cost": None}
    by_name = {each.value: each for each in costs.stage_seconds}
    seconds = costs.stage_seconds[by_name[stage]] if stage in by_name else 0.0
    return {"accelerator_seconds": seconds, "cost": costs.of_stage(by_name[stage]) if stage in by_name else None}


def _cost_values(costs: BatchCost | None) -> dict[str, Any]:
    if costs is None:
        return {}
    currency = costs.price.currency if costs.price else None
    return {"accelerator_seconds": costs.accelerator_seconds, "cost": costs.total, "currency": currency}


STAGE_COLUMNS: Sequence[str] = ("stage", "computed", "reused", "failed", "seconds", "accelerator_seconds", "cost")
