"""What became of a batch: every clip that failed by name, stage and reason; torch-free, from the store's documents.

batches/<batch_id>/failures/<shard>.<stage>.json    why a stage of a shard as a whole ended without results
batches/<batch_id>/report.json, report.md           the report
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any

from magi2.artifacts.store import ArtifactStore
from magi2.errors import CorruptedArtifactError, Magi2Error
from magi2.plan import load_batch, read_document
from magi2.runtime.events import cut, quotes_users
from magi2.runtime.results import read_results
from magi2.types import StageName

MAX_PROMPT = 200
MAX_REASON = 500


@dataclass(frozen=True, kw_only=True)
class ReportedClip:
    """A clip, or a refused row, which has no clip id. `stage` is where it failed, `key` that of its delivered file."""

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


@dataclass(frozen=True)
class StageCount:
    """Clips of one stage, and the seconds that they took together."""

    computed: int = 0
    reused: int = 0
    failed: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Report:
    """Every clip is in exactly one list. `skipped` were finished before this run; `flagged` are finished, not good."""

    batch_id: str
    name: str
    source: str
    run_id: str | None
    failure_limit: int
    seconds: float
    """From the start of the run to this report."""
    done: tuple[ReportedClip, ...] = ()
    flagged: tuple[ReportedClip, ...] = ()
    failed: tuple[ReportedClip, ...] = ()
    skipped: tuple[ReportedClip, ...] = ()
    stages: Mapping[str, StageCount] = field(default_factory=dict)
    reused_by_skipped: int = 0
    """Stages that the skipped clips did not need to run."""

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
            "stages_computed": sum(stage.computed for stage in self.stages.values()),
            "stages_reused": sum(stage.reused for stage in self.stages.values()) + self.reused_by_skipped,
            "seconds": round(self.seconds, 1),
        }

    def to_json(self) -> dict[str, Any]:
        """The report as JSON values."""
        lists = {name: [asdict(clip) for clip in getattr(self, name)] for name in _LISTS}
        return {
            **{name: getattr(self, name) for name in ("batch_id", "name", "source", "run_id", "failure_limit")},
            "is_within_limit": self.is_within_limit,
            **self.counts,
            "stages": {stage: asdict(count) for stage, count in self.stages.items()},
            **lists,
        }

    def to_markdown(self) -> str:
        """The report for people."""
        return "\n".join(_markdown(self)) + "\n"


_LISTS = ("failed", "flagged", "done", "skipped")


def build_report(store: ArtifactStore, batch_id: str, *, started_at: datetime | None = None) -> Report:
    """The report of a planned batch; a clip without a result in one of its stages has failed there.

    `started_at` is when its run began, by default when it was planned. Raises InputError for an unknown batch.
    """
    batch = load_batch(store, batch_id)
    began = started_at or datetime.fromisoformat(batch["created_at"])
    results = {shard: _ShardResults(store, batch, shard) for shard in range(batch["shards"])}
    failed = [_refused(row) for row in batch["refused"]]
    flagged: list[ReportedClip] = []
    done: list[ReportedClip] = []
    for clip in (clip for shard in results.values() for clip in shard.clips()):
        (failed if clip.stage else flagged if clip.flags else done).append(clip)
    cached = read_document(store, f"batches/{batch_id}/cached.json")
    finished = [_finished_before(store, clip) for clip in cached]
    return Report(
        batch_id=batch_id,
        name=batch["name"],
        source=batch["source"],
        run_id=batch["run_id"],
        failure_limit=batch["options"]["failure_limit"],
        seconds=(datetime.now(UTC) - began).total_seconds(),
        done=tuple(done),
        flagged=(*flagged, *(clip for clip in finished if clip.flags)),
        failed=tuple(failed),
        skipped=tuple(clip for clip in finished if not clip.flags),
        stages=_stage_counts(results.values()),
        reused_by_skipped=sum(len(profile_stages(batch["profiles"][clip["profile_digest"]])) for clip in cached),
    )


def save_report(report: Report, store: ArtifactStore) -> str:
    """Write or replace the report's documents; the name of the JSON one."""
    folder = f"batches/{report.batch_id}"
    store.put_document(f"{folder}/report.md", report.to_markdown().encode())
    content = json.dumps(report.to_json(), ensure_ascii=False, sort_keys=True, indent=1)
    store.put_document(f"{folder}/report.json", content.encode())
    return f"{folder}/report.json"


def save_failure(store: ArtifactStore, batch_id: str, shard: int, stage: StageName, error: Magi2Error) -> None:
    """Write down why a stage of a shard ended without results, for the report."""
    content = {"error_code": error.code, "error": reason_of(error)}
    store.put_document(_failure_name(batch_id, shard, stage), json.dumps(content, ensure_ascii=False).encode())


def reason_of(error: Magi2Error) -> str:
    """The error in one line that quotes nobody at length."""
    line = str(error).partition("\n")[0]
    return cut(line, MAX_PROMPT if quotes_users(error.code) else MAX_REASON)


def profile_stages(profile: Mapping[str, Any]) -> list[StageName]:
    """The stages of a resolved profile as documents hold it, in order."""
    left_out = {StageName.NEGATIVE} | (set() if profile.get("refiner") is not None else {StageName.REFINE})
    return [stage for stage in StageName if stage not in left_out]


class _ShardResults:
    """What the documents say of one shard."""

    def __init__(self, store: ArtifactStore, batch: Mapping[str, Any], shard: int) -> None:
        self._store, self._batch_id, self._shard = store, batch["batch_id"], shard
        document = read_document(store, f"batches/{self._batch_id}/shards/{shard}.json")
        self._planned: list[dict[str, Any]] = document["clips"]
        ids = {clip["clip_id"] for clip in self._planned}
        # Shards are numbered anew when a batch is planned anew; rows of other clips are history.
        self.rows = {
            stage: {row["clip_id"]: row for row in self._results(stage) if row["clip_id"] in ids}
            for stage in profile_stages(batch["profiles"][document["profile_digest"]])
        }

    def clips(self) -> Iterator[ReportedClip]:
        """Every clip of the shard with its outcome."""
        for planned in self._planned:
            yield self._clip(planned)

    def _results(self, stage: StageName) -> list[dict[str, Any]]:
        return read_results(self._store, self._batch_id, self._shard, stage)

    def _clip(self, planned: Mapping[str, Any]) -> ReportedClip:
        flags: list[str] = []
        row: Mapping[str, Any] = {}
        for stage, rows in self.rows.items():
            row = rows.get(planned["clip_id"]) or self._unreached(stage)
            flags += row.get("flags") or []
            if row["state"] not in ("made", "reused"):
                reason = cut(row.get("error") or row["state"], MAX_REASON)
                code = row.get("error_code")
                return _reported(planned, stage=stage.value, error_code=code, reason=reason, flags=flags)
        return _reported(planned, flags=flags, key=row.get("key"))

    def _unreached(self, stage: StageName) -> Mapping[str, Any]:
        """What stands for a clip's result in a stage that did not come to an end."""
        content = self._store.get_document(_failure_name(self._batch_id, self._shard, stage))
        cause: dict[str, Any] = json.loads(content) if content else {"error": "its task has not finished"}
        return {"state": "failed", **cause}


def _stage_counts(shards: Iterable[_ShardResults]) -> dict[str, StageCount]:
    states: Counter[tuple[StageName, str]] = Counter()
    seconds: dict[StageName, float] = defaultdict(float)
    for shard in shards:
        for stage, rows in shard.rows.items():
            for row in rows.values():
                states[stage, row["state"]] += 1
                seconds[stage] += row.get("seconds") or 0.0
    return {
        stage.value: StageCount(
            computed=states[stage, "made"],
            reused=states[stage, "reused"],
            failed=states[stage, "failed"],
            seconds=round(seconds[stage], 3),
        )
        for stage in StageName
        if any(found is stage for found, _ in states)
    }


def _finished_before(store: ArtifactStore, clip: Mapping[str, Any]) -> ReportedClip:
    try:
        manifest = store.find(StageName.MUX, clip["key"])
        flags = manifest.flags if manifest else ("removed_since",)
    except CorruptedArtifactError:
        flags = ("damaged_since",)
    return _reported(clip, key=clip["key"], flags=flags)


def _reported(planned: Mapping[str, Any], *, flags: Sequence[str] = (), **outcome: Any) -> ReportedClip:
    return ReportedClip(
        clip_id=planned["clip_id"],
        names=tuple(planned["names"]),
        prompt=cut(planned["prompt"], MAX_PROMPT),
        profile=planned["profile_name"],
        seed=planned["seed"],
        flags=tuple(dict.fromkeys(flags)),
        **outcome,
    )


def _refused(row: Mapping[str, Any]) -> ReportedClip:
    reason = cut(row["reason"], MAX_PROMPT)
    return ReportedClip(row=row["row"], names=(f"row {row['row']}",), stage="plan", error_code="input", reason=reason)


def _failure_name(batch_id: str, shard: int, stage: StageName) -> str:
    return f"batches/{batch_id}/failures/{shard}.{stage.value}.json"


def _markdown(report: Report) -> Iterator[str]:
    counts = report.counts
    verdict = "within" if report.is_within_limit else "over"
    yield f"# Batch {_cell(report.name)}"
    yield ""
    yield f"Batch `{report.batch_id}`, run `{report.run_id or 'by hand'}`, {counts['seconds']} s."
    yield ""
    yield f"- {counts['clips_done']} clips done, {counts['clips_skipped']} were finished before"
    yield f"- {counts['clips_failed']} clips failed, {verdict} the limit of {report.failure_limit}"
    yield f"- {counts['clips_flagged']} clips flagged: finished, but not to be called good"
    yield f"- {counts['stages_computed']} stages computed, {counts['stages_reused']} reused"
    yield from _table("Failed", ("clip", "name", "stage", "reason", "prompt"), map(_failed_cells, report.failed))
    yield from _table("Flagged", ("clip", "name", "flags", "prompt"), map(_flagged_cells, report.flagged))
    rows = ([stage, n.computed, n.reused, n.failed, f"{n.seconds:.1f}"] for stage, n in report.stages.items())
    yield from _table("Stages", ("stage", "computed", "reused", "failed", "seconds"), rows)


def _failed_cells(clip: ReportedClip) -> list[object]:
    return [(clip.clip_id or "")[:12], ", ".join(clip.names), clip.stage, clip.reason, clip.prompt]


def _flagged_cells(clip: ReportedClip) -> list[object]:
    return [(clip.clip_id or "")[:12], ", ".join(clip.names), ", ".join(clip.flags), clip.prompt]


def _table(title: str, header: Sequence[str], rows: Iterable[Sequence[object]]) -> Iterator[str]:
    lines = [f"| {' | '.join(_cell(value) for value in row)} |" for row in rows]
    if lines:
        yield from ("", f"## {title}", "", f"| {' | '.join(header)} |", "|" + " --- |" * len(header), *lines)


def _cell(value: object) -> str:
    """Text that stays in its cell of a Markdown table and is no markup."""
    text = " ".join(str(value).split())
    return "".join(f"\\{char}" if char in "\\`*[]<>|" else char for char in text)
