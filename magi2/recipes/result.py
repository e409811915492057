"""What became of a clip in a stage."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal

from magi2.artifacts.manifest import Manifest
from magi2.errors import Magi2Error
from magi2.quality.measures import MEASURES
from magi2.types import Clip, StageName


@dataclass(frozen=True)
class StageResult:
    """What became of one clip in one stage. `flags` name fallbacks; a flagged clip is not called good.

    `measures` are what tells the defects of a delivered clip, see `magi2.quality`; `manifest` is the artifact's, where
    whoever tells has it.
    """

    stage: StageName
    clip: Clip
    state: Literal["made", "reused", "failed"]
    seconds: float
    key: str | None = None
    flags: tuple[str, ...] = ()
    error: Magi2Error | None = None
    measures: dict[str, Any] | None = None
    manifest: Manifest | None = None


def without_manifests(results: Iterable[StageResult]) -> list[StageResult]:
    """The same for whoever keeps many results for long, once they are written down."""
    return [replace(result, manifest=None) for result in results]


def measures_of(manifest: Manifest) -> dict[str, Any] | None:
    """What the manifest of a delivered clip says that was measured; None of others, and where nothing was."""
    found = manifest.report.get(MEASURES) if manifest.stage == StageName.MUX else None
    return found if isinstance(found, dict) else None
