"""A report's clips added up as the catalog adds up its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from magi2.batches.schema import ReportedClip
from magi2.catalog import ClipState, RunState
from magi2.catalog.counts import BatchCounts, Counting
from magi2.types import StageName

STATES = {
    "failed": ClipState.FAILED,
    "flagged": ClipState.DONE,
    "over_budget": ClipState.SKIPPED,
    "cancelled": ClipState.CANCELLED,
    "stopped": ClipState.SKIPPED,
    "done": ClipState.DONE,
}
"""What the catalog calls the clips of each list."""


def count_clips(
    lists: Mapping[str, Sequence[ReportedClip]],
    stages: Mapping[str, Sequence[StageName]],
    was_made: Callable[[str, StageName], bool],
) -> BatchCounts:
    """The counts of a report by its lists. `stages` are those that a clip id has to pass.

    Rows that were refused are no clips.
    """
    counting = Counting()
    for name, clips in lists.items():
        for clip in clips:
            if clip.clip_id is not None:
                _add(counting, clip, STATES[name], stages[clip.clip_id], was_made)
    return counting.result(refused_rows=sum(clip.clip_id is None for clip in lists["failed"]))


def _add(
    counting: Counting,
    clip: ReportedClip,
    state: ClipState,
    stages: Sequence[StageName],
    was_made: Callable[[str, StageName], bool],
) -> None:
    outcomes = {stage: RunState.MADE for stage in stages if was_made(clip.clip_id or "", stage)}
    outcomes |= {stage: RunState(clip.stages[stage].state) for stage in stages if stage in clip.stages}
    counting.add_clips(state, stages, failed_stage=clip.stage, is_reused=clip.reused)
    for stage, outcome in outcomes.items():
        seconds = clip.stages[stage].seconds if stage in clip.stages else 0.0
        counting.add_runs(stage, outcome, clip_state=state, seconds=seconds)
