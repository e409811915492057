"""How many clips there are, where they stand, and what their stages took: of a batch, or of one of its shards.

The catalog's rows and the documents that a report is made from are added up here alike, so that what `magi2 status`,
the report, the page Renders and the metrics say of one batch cannot differ.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from magi2.catalog.records import ClipState, RunState
from magi2.catalog.runs import SUCCEEDED
from magi2.catalog.states import UNFINISHED_CLIP
from magi2.types import StageName


@dataclass(frozen=True, kw_only=True)
class ClipCounts:
    """Clips by state. `reused` are those of `done` whose delivered file the batch found, whoever had made it."""

    total: int
    waiting: int
    running: int
    done: int
    failed: int
    skipped: int
    cancelled: int
    reused: int

    @classmethod
    def of(cls, states: Mapping[ClipState, int], *, reused: int) -> ClipCounts:
        """The counts from those by state; a state that is absent has no clips."""
        return cls(total=sum(states.values()), reused=reused, **{each.value: states.get(each, 0) for each in ClipState})

    @property
    def by_state(self) -> dict[ClipState, int]:
        """The number of clips in each state; every state is there."""
        return {state: getattr(self, state.value) for state in ClipState}

    @property
    def unfinished(self) -> int:
        """Clips that are still to come to an end."""
        return sum(self.by_state[state] for state in UNFINISHED_CLIP)


@dataclass(frozen=True, kw_only=True)
class StageCounts:
    """Where clips stand at one stage, and what it took.

    `total` clips have the stage in their profile. Of them `made` have a result that this batch made in any of its
    attempts, `reused` one that it found, `failed` failed here for good, `running` are worked on, and `left`, those
    that run included, have yet to pass. Seconds and peak memory are of all attempts together; `seconds_a_clip` is what
    a clip takes, by those that were made or else reused, None without any.
    """

    total: int
    made: int
    reused: int
    running: int
    failed: int
    left: int
    seconds: float
    accelerator_seconds: float
    peak_memory_bytes: int | None
    seconds_a_clip: float | None

    @property
    def done(self) -> int:
        """Clips that have passed the stage."""
        return self.made + self.reused


@dataclass(frozen=True, kw_only=True)
class BatchCounts:
    """A batch, or a shard of one: its clips, and its stages in their order.

    `found` of the clips that are done were finished before the batch was planned. `began` is the start of its first
    attempt at a stage.
    """

    clips: ClipCounts
    found: int
    refused_rows: int
    stages: Mapping[StageName, StageCounts]
    began: datetime | None

    @property
    def accelerator_seconds(self) -> float:
        """What all attempts took, all ranks together."""
        return sum(stage.accelerator_seconds for stage in self.stages.values())

    def seconds_left(self, at: datetime) -> float | None:
        """Seconds from `at` to the end if the batch goes on as it did, None while a stage that is left has no example.

        The work left, clip by clip and stage by stage, at the pace of all attempts since the first began.
        """
        stages = self.stages.values()
        work = [(stage.left, stage.seconds_a_clip) for stage in stages if stage.left]
        done = sum(stage.seconds for stage in stages)
        if self.began is None or done <= 0 or any(seconds is None for _, seconds in work):
            return None
        elapsed = max((at - self.began).total_seconds(), 0.0)
        return sum(count * (seconds or 0.0) for count, seconds in work) * elapsed / done


class Counting:
    """Adds clips and attempts at stages, one by one or in groups of equal ones, to the counts of a batch."""

    def __init__(self) -> None:
        self._clips: Counter[ClipState] = Counter()
        self._reused = self._found = 0
        self._stored: Counter[StageName] = Counter()
        self._at_stage: dict[StageName, Counter[ClipState]] = defaultdict(Counter)
        self._failed: Counter[str] = Counter()
        self._last: Counter[tuple[StageName, ClipState, RunState]] = Counter()
        self._attempts: Counter[tuple[StageName, RunState]] = Counter()
        self._seconds: defaultdict[tuple[StageName, RunState], float] = defaultdict(float)
        self._accelerator_seconds: defaultdict[StageName, float] = defaultdict(float)
        self._peaks: dict[StageName, int] = {}
        self._began: datetime | None = None

    def add_clips(
        self,
        state: ClipState,
        stages: Iterable[StageName],
        count: int = 1,
        *,
        failed_stage: str | None = None,
        is_reused: bool = False,
        is_found: bool = False,
        is_stored: bool = False,
    ) -> None:
        """Clips in one state that pass these stages; see `ClipCounts` and `BatchCounts` for the rest.

        Of those that are `is_stored` only deliver is left.
        """
        self._clips[state] += count
        self._reused += count if is_reused else 0
        self._found += count if is_found else 0
        for stage in stages:
            self._at_stage[stage][state] += count
            self._stored[stage] += count if is_stored and stage is not StageName.DELIVER else 0
        if state is ClipState.FAILED and failed_stage is not None:
            self._failed[failed_stage] += count

    def add_runs(
        self,
        stage: StageName,
        outcome: RunState,
        count: int = 1,
        *,
        clip_state: ClipState,
        is_last: bool = True,
        seconds: float = 0.0,
        accelerator_seconds: float = 0.0,
        peak_memory_bytes: int | None = None,
        began: datetime | None = None,
    ) -> None:
        """Attempts at a stage with one outcome, at clips of one state; seconds are their sums.

        `is_last` says whether they are their clips' last attempts at the stage.
        """
        if is_last:
            self._last[stage, clip_state, outcome] += count
        self._attempts[stage, outcome] += count
        self._seconds[stage, outcome] += seconds
        self._accelerator_seconds[stage] += accelerator_seconds
        if peak_memory_bytes:
            self._peaks[stage] = max(self._peaks.get(stage, 0), peak_memory_bytes)
        if began is not None:
            self._began = min(self._began or began, began)

    def result(self, *, refused_rows: int = 0) -> BatchCounts:
        """The counts of all that was added."""
        return BatchCounts(
            clips=ClipCounts.of(self._clips, reused=self._reused),
            found=self._found,
            refused_rows=refused_rows,
            stages={stage: self._stage(stage) for stage in StageName if stage in self._at_stage},
            began=self._began,
        )

    def _stage(self, stage: StageName) -> StageCounts:
        clips = self._at_stage[stage]
        done = ClipState.DONE
        unfinished = sum(clips[state] for state in UNFINISHED_CLIP) - self._stored[stage]
        made = self._last_came_to(stage, RunState.MADE, ClipState)
        # A clip that is done has passed every stage: what this batch did not make of it was there.
        found = clips[done] - self._last_came_to(stage, RunState.MADE, [done])
        reused = found + self._last_came_to(stage, RunState.REUSED, set(ClipState) - {done})
        return StageCounts(
            total=clips.total(),
            made=made,
            reused=reused,
            running=self._last_came_to(stage, RunState.RUNNING, UNFINISHED_CLIP),
            failed=self._failed[stage],
            left=unfinished - sum(self._last_came_to(stage, outcome, UNFINISHED_CLIP) for outcome in SUCCEEDED),
            seconds=sum(self._seconds[stage, outcome] for outcome in RunState),
            accelerator_seconds=self._accelerator_seconds[stage],
            peak_memory_bytes=self._peaks.get(stage),
            seconds_a_clip=self._seconds_a_clip(stage),
        )

    def _last_came_to(self, stage: StageName, outcome: RunState, clip_states: Iterable[ClipState]) -> int:
        """Clips of these states whose last attempt at the stage came to this."""
        return sum(self._last[stage, state, outcome] for state in clip_states)

    def _seconds_a_clip(self, stage: StageName) -> float | None:
        outcome = next((each for each in SUCCEEDED if self._attempts[stage, each]), None)
        return None if outcome is None else self._seconds[stage, outcome] / self._attempts[stage, outcome]
