"""How much accelerator time a plan still needs, from what the same stages took before in this store."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median

from magi2.artifacts.manifest import Manifest
from magi2.artifacts.store import ArtifactStore
from magi2.batches.plan import BatchPlan
from magi2.parallel.layout import ONE_RANK, ParallelLayout
from magi2.types import ACCELERATOR_STAGES, StageName

SAMPLES = 50
"""Artifacts looked at per stage: enough for a median, few enough for a store of millions."""


@dataclass(frozen=True)
class Estimate:
    """Accelerator-seconds, on those that made the samples; stages without a sample are named, not guessed."""

    total_s: float
    unmeasured: tuple[str, ...]


def estimate_seconds(plan: BatchPlan, store: ArtifactStore) -> Estimate:
    """The plan's missing stages times the median of earlier artifacts of the same stage and profile."""
    total, unmeasured = 0.0, []
    profiles = {profile.name for profile in plan.profiles.values()}
    for stage in ACCELERATOR_STAGES:
        count = plan.missing.get(stage.value, 0)
        if not count:
            continue
        seconds = [_accelerator_seconds(m) for m in _recent(store, stage) if m.report.get("profile") in profiles]
        if seconds:
            total += count * median(seconds)
        else:
            unmeasured.append(stage.value)
    return Estimate(total, tuple(unmeasured))


def _accelerator_seconds(manifest: Manifest) -> float:
    """What making the artifact took, all ranks together."""
    layout = str(manifest.report.get("layout", ONE_RANK))
    return manifest.timings["make_s"] * ParallelLayout.parse(layout).num_ranks


def _recent(store: ArtifactStore, stage: StageName) -> Iterator[Manifest]:
    for number, key in enumerate(store.keys(stage)):
        if number == SAMPLES:
            return
        if manifest := store.find(stage, key):
            yield manifest
