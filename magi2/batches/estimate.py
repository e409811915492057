"""How much accelerator time a plan still needs, from what the same stages took before in this store."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from math import prod
from statistics import median
from typing import Any

from magi2.artifacts.manifest import Manifest
from magi2.artifacts.store import ArtifactStore
from magi2.batches.plan import BatchPlan
from magi2.config.profile import Profile
from magi2.models.preview.config import BF16
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

    Of a profile without any, those count that one of the plan's others has, else those of the same network. Previews
    are compared by what a branch evaluation took, since their schedules may differ, and what has other sizes by pixels.
    """
    total, unmeasured = 0.0, []
    for stage in ACCELERATOR_STAGES:
        counts = {digest: missing.get(stage.value, 0) for digest, missing in plan.missing_of.items()}
        if not any(counts.values()):
            continue
        recent = list(_recent(store, stage))
        seconds = {
            digest: _seconds(stage, _alike(recent, stage, plan, plan.profiles[digest]), plan.profiles[digest])
            for digest, count in counts.items()
            if count
        }
        total += sum(counts[digest] * each for digest, each in seconds.items() if each is not None)
        unmeasured += [stage.value] if None in seconds.values() else []
    return Estimate(total, tuple(unmeasured))


def _alike(recent: Sequence[Manifest], stage: StageName, plan: BatchPlan, profile: Profile) -> list[Manifest]:
    """The samples to go by: the profile's own, else those of the plan's other profiles, else of the same network; of
    previews those alone whose weights had the profile's format.
    """
    if stage == StageName.PREVIEW:
        recent = [each for each in recent if each.recipe.config.get("weights", BF16) == profile.compute.weights]
    names = {each.name for each in plan.profiles.values()}
    shapes = profile.architectures
    networks: dict[StageName, Any] = {StageName.PREVIEW: shapes.preview, StageName.REFINE: shapes.refiner}
    network = json.loads(json.dumps(asdict(networks[stage]))) if stage in networks else None
    for wanted in ({profile.name}, names):
        if found := [manifest for manifest in recent if manifest.report.get("profile") in wanted]:
            return found
    return [manifest for manifest in recent if network and manifest.recipe.config.get("architecture") == network]


def _seconds(stage: StageName, samples: Sequence[Manifest], profile: Profile) -> float | None:
    """What one more artifact will take, by the median of those that were made; None without any."""
    preview = profile.preview
    evaluations, pixels = preview.evaluated.evaluations(preview.steps), _pixels(stage, profile)
    return (
        median(
            _accelerator_seconds(each)
            * (evaluations / (_evaluations(each) or evaluations))
            * (pixels / (_sample_pixels(each) or pixels))
            for each in samples
        )
        if samples
        else None
    )


def _pixels(stage: StageName, profile: Profile) -> int:
    """Pixels of a frame that the stage makes."""
    return profile.preview.width * profile.preview.height if stage == StageName.PREVIEW else prod(profile.decoded_size)


def _sample_pixels(manifest: Manifest) -> int | None:
    """Pixels of a frame of what was made; None where its recipe does not say."""
    sides = [manifest.recipe.config.get(name) for name in ("width", "height")]
    if manifest.stage not in (StageName.PREVIEW, StageName.REFINE):
        return None
    return prod(sides) if all(isinstance(side, int) for side in sides) else None  # type: ignore[arg-type]


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
