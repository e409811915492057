"""What a report holds: every clip of a batch in exactly one list, and what its stages took."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any

LISTS = ("failed", "flagged", "over_budget", "cancelled", "done", "skipped")
"""The lists of a report, in the order in which people want them."""


@dataclass(frozen=True)
class StageOutcome:
    """What a stage made of one clip (`made`, `reused` or `failed`), and in how many seconds."""

    state: str
    seconds: float


@dataclass(frozen=True, kw_only=True)
class ReportedClip:
    """A clip, or a refused row, which has no clip id. `stage` is where it failed, `key` that of its delivered file.

    Accelerator-seconds and cost are of all attempts in this batch; the cost is None where no price is set.
    """

    clip_id: str | None = None
    row: int | None = None
    names: tuple[str, ...] = ()
    prompt: str = ""
    profile: str = ""
    seed: int | None = None
    stage: str | None = None
    error_code: str | None = None
    reason: str | None = None
    flags: tuple[str, ...] = ()
    key: str | None = None
    accelerator_seconds: float = 0.0
    cost: float | None = None
    stages: Mapping[str, StageOutcome] = field(default_factory=dict)
    """The stages that this run has taken it through, in order."""


@dataclass(frozen=True)
class StageCount:
    """Clips of one stage, the seconds that they took together, and what all attempts at them cost."""

    computed: int = 0
    reused: int = 0
    failed: int = 0
    seconds: float = 0.0
    accelerator_seconds: float = 0.0
    cost: float | None = None


@dataclass(frozen=True, kw_only=True)
class Report:
    """Every clip is in exactly one list.

    `skipped` were finished before this run, `flagged` are finished, not good. `over_budget` and `cancelled` were not
    rendered because the budget was spent or somebody cancelled the batch; they do not count as failed.
    """

    batch_id: str
    name: str
    source: str
    run_id: str | None
    failure_limit: int
    seconds: float
    """From the start of the run to this report."""
    finished_at: datetime
    """When the report was made."""
    done: tuple[ReportedClip, ...] = ()
    flagged: tuple[ReportedClip, ...] = ()
    failed: tuple[ReportedClip, ...] = ()
    skipped: tuple[ReportedClip, ...] = ()
    over_budget: tuple[ReportedClip, ...] = ()
    cancelled: tuple[ReportedClip, ...] = ()
    stages: Mapping[str, StageCount] = field(default_factory=dict)
    reused_by_skipped: int = 0
    """Stages that the skipped clips did not need to run."""
    accelerator_seconds: float | None = None
    """What all attempts took; None when the catalog did not say."""
    cost: float | None = None
    budget: float | None = None
    currency: str | None = None
    """That of costs and budget; None where no price is set."""

    @property
    def is_within_limit(self) -> bool:
        """Whether no more clips failed than the batch allows."""
        return len(self.failed) <= self.failure_limit

    @property
    def counts(self) -> dict[str, int | float]:
        """The numbers that people and scripts ask for first."""
        return {
            "clips_done": len(self.done),
            "clips_flagged": len(self.flagged),
            "clips_failed": len(self.failed),
            "clips_skipped": len(self.skipped),
            "clips_over_budget": len(self.over_budget),
            "clips_cancelled": len(self.cancelled),
            "stages_computed": sum(stage.computed for stage in self.stages.values()),
            "stages_reused": sum(stage.reused for stage in self.stages.values()) + self.reused_by_skipped,
            "seconds": round(self.seconds, 1),
        }

    def to_json(self) -> dict[str, Any]:
        """The report as JSON values."""
        lists = {name: [asdict(clip) for clip in getattr(self, name)] for name in LISTS}
        return {
            **{name: getattr(self, name) for name in ("batch_id", "name", "source", "run_id", "failure_limit")},
            "is_within_limit": self.is_within_limit,
            **self.counts,
            "finished_at": self.finished_at.isoformat(),
            **{name: getattr(self, name) for name in ("accelerator_seconds", "cost", "budget", "currency")},
            "stages": {stage: asdict(count) for stage, count in self.stages.items()},
            **lists,
        }
