"""How much accelerator time a plan still needs, from what the same stages took before in this store."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from magi2.artifacts.manifest import Manifest
from magi2.artifacts.store import ArtifactStore
from magi2.batches.plan import BatchPlan
from magi2.config.profile import PreviewSettings
from magi2.parallel.layout import ONE_RANK, ParallelLayout
from magi2.sampling.schedule import Schedule
from magi2.types import ACCELERATOR_STAGES, StageName

SAMPLES = 50
"""Artifacts looked at per stage: enough for a median, few enough for a store of millions."""


@dataclass(frozen=True)
class Estimate:
    """Accelerator-seconds, on those that made the samples; stages without a sample are named, not guessed."""

    total_s: float
    unmeasured: tuple[str, ...]


def estimate_seconds(plan: BatchPlan, store: ArtifactStore) -> Estimate:
    """The plan's missing stages times the median of earlier artifacts of the same stage and profile.

    Previews are compared by what a branch evaluation took, since their schedules may differ.
    """
    total, unmeasured = 0.0, []
    names = {profile.name for profile in plan.profiles.values()}
    for stage in ACCELERATOR_STAGES:
        counts = {digest: missing.get(stage.value, 0) for digest, missing in plan.missing_of.items()}
        if not any(counts.values()):
            continue
        samples = [manifest for manifest in _recent(store, stage) if manifest.report.get("profile") in names]
        if samples:
            total += sum(count * _seconds(samples, plan.profiles[digest].preview) for digest, count in counts.items())
        else:
            unmeasured.append(stage.value)
    return Estimate(total, tuple(unmeasured))


def _seconds(samples: Sequence[Manifest], preview: PreviewSettings) -> float:
    """What one more artifact will take, by the median of those that were made."""
    evaluations = preview.evaluated.evaluations(preview.steps)
    return median(_accelerator_seconds(each) * evaluations / (_evaluations(each) or evaluations) for each in samples)


def _evaluations(manifest: Manifest) -> int | None:
    """Branch evaluations of a preview that was made; None for other stages, and where its recipe does not say."""
    config = manifest.recipe.config
    if manifest.stage != StageName.PREVIEW or "steps" not in config:
        return None
    return Schedule.from_json(config.get("schedule")).evaluations(config["steps"])  # type: ignore[arg-type]


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
