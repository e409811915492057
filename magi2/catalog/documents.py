"""What the store's documents say of batches: the plan and each shard's results.

batches/<id>/batch.json                        options, profiles, refused rows, how many shards and clips
batches/<id>/shards/<shard>.json               the clips that a shard renders
batches/<id>/cached.json                       the clips that were finished already, with the `key` of their file
batches/<id>/results/<shard>.<stage>.json      what the last attempt made of a shard's clips
batches/<id>/report.json                       written when the run ended; names also clips that no result speaks of
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from itertools import groupby
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import AwareDatetime, TypeAdapter, ValidationError

from magi2.artifacts.store import ArtifactStore
from magi2.catalog.records import ClipState, NewBatch, PlannedClip, Run, RunState
from magi2.errors import CorruptedArtifactError
from magi2.types import Clip, FigureImage, StageName

FOLDER = "batches"

T = TypeVar("T")


@dataclass(frozen=True)
class Failure:
    """Where and why a clip failed; or was skipped or cancelled, by its state."""

    stage: str | None
    reason: str | None
    state: ClipState = ClipState.FAILED


@dataclass(frozen=True)
class StoredBatch:
    """All that the store knows of a batch; clips by id, those found finished with the key of their file."""

    batch: NewBatch
    profiles: dict[str, dict[str, Any]]
    refused: dict[int, str]
    clips: dict[str, PlannedClip]
    runs: list[Run]
    failures: dict[str, Failure]


def batch_ids(store: ArtifactStore) -> Iterator[str]:
    """The batches in the store; one without `batch.json`, which is written last, is still being planned."""
    names = (name.split("/") for name in store.list_documents(FOLDER))
    for batch_id, parts in groupby((name for name in names if len(name) > 2), key=lambda name: name[1]):
        if any(name[2:] == ["batch.json"] for name in parts):
            yield batch_id


def is_stored(store: ArtifactStore, batch_id: str) -> bool:
    """Whether the batch was planned."""
    return store.get_document(f"{FOLDER}/{batch_id}/batch.json") is not None


def read_batch(store: ArtifactStore, batch_id: str) -> StoredBatch:
    """The batch as its documents tell it. Raises CorruptedArtifactError naming the one that is absent or wrong."""
    folder = f"{FOLDER}/{batch_id}"
    plan = _read(store, f"{folder}/batch.json", _Batch)
    clips: dict[str, PlannedClip] = {}
    for shard in range(plan.shards):
        name = f"{folder}/shards/{shard}.json"
        for item in _read(store, name, _Shard).clips:
            clips[item.clip_id] = PlannedClip(item.to_clip(name), shard)
    name = f"{folder}/cached.json"
    for item in _read(store, name, list[_Clip]):
        clips[item.clip_id] = PlannedClip(item.to_clip(name), None, item.key)
    if len(clips) != plan.clips:
        raise CorruptedArtifactError(f"{folder}: batch.json counts {plan.clips} clips, the others hold {len(clips)}")
    runs = _read_runs(store, folder, clips)
    return StoredBatch(
        batch=plan.to_batch(),
        profiles=plan.profiles,
        refused={row.row: row.reason for row in plan.refused},
        clips=clips,
        runs=runs,
        failures=_read_report(store, folder) | _failures(clips, runs),
    )


def _read_runs(store: ArtifactStore, folder: str, clips: dict[str, PlannedClip]) -> list[Run]:
    runs: dict[tuple[str, str, int], Run] = {}
    for name in store.list_documents(f"{folder}/results"):
        document = _read(store, name, _Results)
        for item in document.results:
            key = (item.clip_id, document.stage, document.attempt)
            planned = clips.get(item.clip_id)
            # Shards are numbered anew when a batch is planned anew; results of older ones are history.
            if planned is not None and (key not in runs or planned.shard == document.shard):
                runs[key] = item.to_run(document)
    return list(runs.values())


def _failures(clips: dict[str, PlannedClip], runs: list[Run]) -> dict[str, Failure]:
    """The failures in the clips' present shards."""
    failed = (run for run in runs if run.state is RunState.FAILED and run.shard == clips[run.clip_id].shard)
    return {run.clip_id: Failure(run.stage, run.error) for run in failed}


def _read_report(store: ArtifactStore, folder: str) -> dict[str, Failure]:
    name = f"{folder}/report.json"
    if store.get_document(name) is None:
        return {}
    report = _read(store, name, _Report)
    lists = {
        ClipState.FAILED: report.failed,
        ClipState.SKIPPED: report.over_budget,
        ClipState.CANCELLED: report.cancelled,
    }
    return {
        item.clip_id: Failure(item.stage, item.reason, state)
        for state, items in lists.items()
        for item in items
        if item.clip_id
    }


@dataclass(frozen=True)
class _Figure:
    number: int
    path: str
    sha256: str


@dataclass(frozen=True)
class _Clip:
    clip_id: str
    prompt: str
    seed: int
    profile_name: str
    profile_digest: str
    figures: list[_Figure]
    names: list[str]
    tags: list[str]
    priority: int
    key: str | None = None

    def to_clip(self, place: str) -> Clip:
        clip = Clip(
            prompt=self.prompt,
            seed=self.seed,
            profile_name=self.profile_name,
            profile_digest=self.profile_digest,
            figures=tuple(FigureImage(each.number, Path(each.path), each.sha256) for each in self.figures),
            names=tuple(self.names),
            tags=tuple(self.tags),
            priority=self.priority,
        )
        if clip.clip_id != self.clip_id:
            raise CorruptedArtifactError(f"{place}: clip {self.clip_id[:12]} has the content of {clip.short_id}")
        return clip


@dataclass(frozen=True)
class _Shard:
    shard: int
    clips: list[_Clip]


@dataclass(frozen=True)
class _Refused:
    row: int
    reason: str


@dataclass(frozen=True)
class _Options:
    failure_limit: int
    on_bad_rows: str
    priority: int = 0
    budget: float | None = None


@dataclass(frozen=True)
class _Batch:
    batch_id: str
    name: str
    source: str
    created_at: AwareDatetime
    options: _Options
    profiles: dict[str, dict[str, Any]]
    refused: list[_Refused]
    shards: int
    clips: int
    dag_id: str | None = None
    run_id: str | None = None
    requested_by: str | None = None
    parent_batch_id: str | None = None

    def to_batch(self) -> NewBatch:
        same = ("batch_id", "name", "source", "created_at", "dag_id", "run_id", "requested_by", "parent_batch_id")
        return NewBatch(
            **{name: getattr(self, name) for name in same},
            clips_total=self.clips,
            failure_limit=self.options.failure_limit,
            on_bad_rows=self.options.on_bad_rows,
            priority=self.options.priority,
            budget=self.options.budget,
        )


@dataclass(frozen=True)
class _Result:
    clip_id: str
    state: Literal["made", "reused", "failed", "cancelled"]
    key: str | None = None
    seconds: float | None = None
    flags: list[str] = field(default_factory=list)
    error_code: str | None = None
    error: str | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None
    accelerator_seconds: float | None = None
    peak_memory_bytes: int | None = None
    host: str | None = None

    def to_run(self, document: _Results) -> Run:
        same = ("clip_id", "seconds", "error_code", "error", "started_at", "finished_at")
        more = ("accelerator_seconds", "peak_memory_bytes", "host")
        return Run(
            **{name: getattr(self, name) for name in same + more},
            stage=document.stage,
            attempt=document.attempt,
            shard=document.shard,
            state=RunState(self.state),
            flags=tuple(self.flags),
            artifact_key=self.key,
        )


@dataclass(frozen=True)
class _Results:
    shard: int
    stage: StageName
    attempt: int
    results: list[_Result]


@dataclass(frozen=True)
class _ReportedFailure:
    clip_id: str | None
    stage: str | None
    reason: str | None


@dataclass(frozen=True)
class _Report:
    failed: list[_ReportedFailure]
    over_budget: list[_ReportedFailure] = field(default_factory=list)
    cancelled: list[_ReportedFailure] = field(default_factory=list)


def _read(store: ArtifactStore, name: str, kind: type[T]) -> T:
    content = store.get_document(name)
    if content is None:
        raise CorruptedArtifactError(f"{name}: document is missing")
    try:
        return TypeAdapter(kind).validate_json(content)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"]) or "the document"
        raise CorruptedArtifactError(f"{name}: {place}: {first['msg']}") from error
