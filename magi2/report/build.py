"""A batch's report from the store's documents; torch-free.

batches/<batch_id>/report.json, report.md
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from magi2.artifacts.store import ArtifactStore
from magi2.batches.failures import load_failure
from magi2.batches.plan import load_batch, read_document
from magi2.batches.results import read_results
from magi2.catalog.cost import BatchCost
from magi2.errors import MAX_PROMPT, MAX_REASON, BatchCancelledError, BudgetSpentError, CorruptedArtifactError, cut
from magi2.report.markdown import to_markdown
from magi2.report.records import LISTS, Report, ReportedClip, StageCount, StageOutcome
from magi2.types import StageName, profile_stages


def build_report(
    store: ArtifactStore, batch_id: str, *, started_at: datetime | None = None, cost: BatchCost | None = None
) -> Report:
    """The report of a planned batch; a clip without a result in one of its stages has failed there.

    `started_at` is when its run began, by default when it was planned; `cost` is what the catalog knows of it. Raises
    InputError for an unknown batch.
    """
    batch = load_batch(store, batch_id)
    now = datetime.now(UTC)
    results = {shard: _ShardResults(store, batch, shard) for shard in range(batch["shards"])}
    lists: dict[str, list[ReportedClip]] = {name: [] for name in LISTS}
    lists["failed"] += map(_refused, batch["refused"])
    for clip in (clip for shard in results.values() for clip in shard.clips()):
        lists[_list_of(clip)].append(clip)
    cached = read_document(store, f"batches/{batch_id}/cached.json")
    for clip in (_finished_before(store, clip) for clip in cached):
        lists["flagged" if clip.flags else "skipped"].append(clip)
    return Report(
        batch_id=batch_id,
        name=batch["name"],
        source=batch["source"],
        run_id=batch["run_id"],
        failure_limit=batch["options"]["failure_limit"],
        seconds=(now - (started_at or datetime.fromisoformat(batch["created_at"]))).total_seconds(),
        finished_at=now,
        **{name: tuple(_priced(clip, cost) for clip in clips) for name, clips in lists.items()},  # type: ignore[arg-type]
        stages=_stage_counts(results.values(), cost),
        reused_by_skipped=sum(len(profile_stages(batch["profiles"][clip["profile_digest"]])) for clip in cached),
        accelerator_seconds=cost.accelerator_seconds if cost else None,
        cost=cost.total if cost else None,
        budget=batch["options"].get("budget"),
        currency=cost.price.currency if cost and cost.price else None,
    )


def save_report(report: Report, store: ArtifactStore) -> str:
    """Write or replace the report's documents; the name of the JSON one."""
    folder = f"batches/{report.batch_id}"
    store.put_document(f"{folder}/report.md", to_markdown(report).encode())
    content = json.dumps(report.to_json(), ensure_ascii=False, sort_keys=True, indent=1)
    store.put_document(f"{folder}/report.json", content.encode())
    return f"{folder}/report.json"


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
        stages: dict[str, StageOutcome] = {}
        row: Mapping[str, Any] = {}
        for stage, rows in self.rows.items():
            row = rows.get(planned["clip_id"]) or self._unreached(stage)
            flags += row.get("flags") or []
            stages[stage.value] = StageOutcome(row["state"], row.get("seconds") or 0.0)
            if row["state"] not in ("made", "reused"):
                reason = cut(row.get("error") or row["state"], MAX_REASON)
                outcome = {"stage": stage.value, "error_code": row.get("error_code"), "reason": reason}
                return _reported(planned, flags=flags, stages=stages, **outcome)
        return _reported(planned, flags=flags, stages=stages, key=row.get("key"))

    def _unreached(self, stage: StageName) -> Mapping[str, Any]:
        """What stands for a clip's result in a stage that did not come to an end."""
        cause = load_failure(self._store, self._batch_id, self._shard, stage)
        return {"state": "failed", **(cause or {"error": "its task has not finished"})}


def _list_of(clip: ReportedClip) -> str:
    """Where a clip of a shard belongs."""
    if clip.stage is None:
        return "flagged" if clip.flags else "done"
    unrendered = {BudgetSpentError.code: "over_budget", BatchCancelledError.code: "cancelled"}
    return unrendered.get(clip.error_code or "", "failed")


def _priced(clip: ReportedClip, cost: BatchCost | None) -> ReportedClip:
    if cost is None or clip.clip_id is None:
        return clip
    seconds = cost.clip_seconds.get(clip.clip_id, 0.0)
    return replace(clip, accelerator_seconds=seconds, cost=cost.of_clip(clip.clip_id))


def _stage_counts(shards: Iterable[_ShardResults], cost: BatchCost | None) -> dict[str, StageCount]:
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
            accelerator_seconds=cost.stage_seconds.get(stage, 0.0) if cost else 0.0,
            cost=cost.of_stage(stage) if cost else None,
        )
        for stage in StageName
        if any(found is stage for found, _ in states)
    }


def _finished_before(store: ArtifactStore, clip: Mapping[str, Any]) -> ReportedClip:
    flags: list[str] = clip.get("flags", [])
    try:
        manifest = store.find(StageName.MUX, clip["key"])
        flags += manifest.flags if manifest else ("removed_since",)
    except CorruptedArtifactError:
        flags += ("damaged_since",)
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
