"""What goes into the catalog and what comes out of it: plain frozen values, never a database's own objects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Generic, Self, TypeVar

from magi2.artifacts.manifest import Manifest
from magi2.batches.failure_limit import FailureCount, OnLimit
from magi2.recipes.result import measures_of
from magi2.types import Clip, StageName

T = TypeVar("T")


class BatchState(StrEnum):
    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


class ClipState(StrEnum):
    """What a user reads beside a clip. `DONE` means that its delivered file is in the artifact index."""

    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    SKIPPED = "skipped"
    CANCELLED = "cancelled"


class RunState(StrEnum):
    """What became of one clip in one attempt at one stage."""

    RUNNING = "running"
    MADE = "made"
    REUSED = "reused"
    FAILED = "failed"
    CANCELLED = "cancelled"


class Request(StrEnum):
    """What somebody wants of a running batch; whoever runs it obeys when it next asks."""

    PAUSE = "pause"
    CANCEL = "cancel"


class Action(StrEnum):
    """What somebody did to a batch."""

    PAUSE = "pause"
    RESUME = "resume"
    CANCEL = "cancel"
    SET_PRIORITY = "set_priority"
    SET_BUDGET = "set_budget"
    SET_LIMIT = "set_limit"
    RERUN = "rerun"


def now() -> datetime:
    """This moment, in UTC."""
    return datetime.now(UTC)


@dataclass(frozen=True)
class Actor:
    """Who did something, as Airflow's login knows them."""

    user_id: str
    name: str


@dataclass(frozen=True, kw_only=True)
class NewBatch:
    """A batch as planned. `clips_total` counts its distinct clips, those found finished included.

    Of two batches that wait, the one of higher `priority` starts its shards first. `budget` is what the batch may cost,
    in the deployment's currency. `on_limit` is an `OnLimit`, None of batches from before there was a choice;
    `failure_streak` equal failures in a row pause the batch, 0 never does.
    """

    batch_id: str
    name: str
    source: str
    clips_total: int
    created_at: datetime = field(default_factory=now)
    failure_limit: int = 0
    on_bad_rows: str = "refuse"
    dag_id: str | None = None
    run_id: str | None = None
    requested_by: str | None = None
    parent_batch_id: str | None = None
    priority: int = 0
    budget: float | None = None
    on_limit: str | None = None
    failure_streak: int = 0


@dataclass(frozen=True, kw_only=True)
class BatchRecord(NewBatch):
    """A batch as it stands."""

    state: BatchState
    requested: Request | None
    finished_at: datetime | None

    @property
    def is_paused(self) -> bool:
        """Whether it waits for somebody to resume it."""
        return self.requested is Request.PAUSE and self.state in (BatchState.WAITING, BatchState.RUNNING)

    def failures(self, failed: int) -> FailureCount:
        """So many failures, refused rows among them, beside their limit."""
        return FailureCount(failed, self.failure_limit, self.on_limit or OnLimit.CONTINUE)


@dataclass(frozen=True, kw_only=True)
class ActionRecord:
    """An entry of a batch's log of actions."""

    batch_id: str
    at: datetime
    by: Actor
    action: Action
    arguments: Mapping[str, Any]


@dataclass(frozen=True)
class PlannedClip:
    """A clip of a batch: the shard that renders or delivers it, the key of its file that is in the store.

    `is_delivered`: it was brought wherever it was to go.
    """

    clip: Clip
    shard: int | None = None
    artifact_key: str | None = None
    is_delivered: bool = False

    @property
    def is_done(self) -> bool:
        """Whether nothing of it is left to do."""
        return self.artifact_key is not None and (self.is_delivered or not self.clip.deliveries)


@dataclass(frozen=True, kw_only=True)
class ClipRecord:
    """A clip of a batch as it stands; `artifact_key` is that of its delivered file."""

    batch_id: str
    clip_id: str
    clip: Clip
    shard: int | None
    state: ClipState
    failed_stage: str | None
    reason: str | None
    artifact_key: str | None
    updated_at: datetime


@dataclass(frozen=True, kw_only=True)
class Run:
    """One clip in one attempt at one stage. `artifact_key` is history: the artifact may be gone since."""

    clip_id: str
    stage: StageName
    state: RunState
    attempt: int = 1
    shard: int | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None
    seconds: float | None = None
    accelerator_seconds: float | None = None
    peak_memory_bytes: int | None = None
    host: str | None = None
    error_code: str | None = None
    error: str | None = None
    flags: tuple[str, ...] = ()
    artifact_key: str | None = None


@dataclass(frozen=True, kw_only=True)
class ArtifactRecord:
    """What the index keeps of a manifest."""

    stage: str
    key: str
    size_bytes: int
    created_at: datetime
    device: str
    host: str
    flags: tuple[str, ...]
    make_seconds: float | None
    code_version: str
    measures: Mapping[str, Any] | None = None
    """Of a delivered clip: what was measured while it was decoded."""

    @classmethod
    def of(cls, manifest: Manifest) -> Self:
        return cls(
            stage=manifest.stage,
            key=manifest.key,
            size_bytes=manifest.size_bytes,
            created_at=manifest.created_at,
            device=manifest.device,
            host=manifest.host,
            flags=manifest.flags,
            make_seconds=manifest.timings.get("make_s"),
            code_version=manifest.code_version,
            measures=measures_of(manifest),
        )


@dataclass(frozen=True)
class Page(Generic[T]):
    """Some of `total` rows."""

    rows: Sequence[T]
    total: int


Profiles = Mapping[str, Mapping[str, Any]]
"""Resolved profiles by digest."""
