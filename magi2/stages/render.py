"""A stage run on a rank, and what comes of clips in all of them."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from magi2 import platform
from magi2.artifacts.store import ArtifactStore
from magi2.errors import InputError
from magi2.files import disk_errors, partial_file
from magi2.recipes.captions import fetch_or_condemn
from magi2.recipes.result import StageResult
from magi2.stages.base import Stage
from magi2.stages.context import StageContext
from magi2.stages.decode import DecodeStage
from magi2.stages.encode import EncodeStage
from magi2.stages.enhance import EnhanceStage
from magi2.stages.mux import MuxStage
from magi2.stages.preview import PreviewStage
from magi2.stages.refine import RefineStage
from magi2.stages.teamwork import TeamStage
from magi2.types import CLIP, CONTACT_SHEET, POSTER, Clip, StageName

STAGES: dict[StageName, type[Stage[Any]]] = {
    stage.name: stage for stage in (EnhanceStage, EncodeStage, PreviewStage, RefineStage, DecodeStage, MuxStage)
}


@dataclass
class Outcome:
    """What became of a clip: one result per stage that was reached."""

    clip: Clip
    results: list[StageResult] = field(default_factory=list)

    @property
    def failure(self) -> StageResult | None:
        """The stage that failed, if one did."""
        return next((result for result in self.results if result.state == "failed"), None)

    @property
    def flags(self) -> tuple[str, ...]:
        """Fallbacks and defects of all stages, each once; a clip that has any is not called good."""
        return tuple(dict.fromkeys(flag for result in self.results for flag in result.flags))


def run_stage(context: StageContext, name: StageName, clips: Sequence[Clip]) -> list[StageResult]:
    """One stage of every clip; its models are gone from memory afterwards."""
    results = STAGES[name](context).run(clips)
    platform.empty_cache(accelerator=context.accelerator)
    return results


def follow_stage(context: StageContext, name: StageName) -> None:
    """One stage on a rank that does not lead: nothing when the stage is for one rank, else what rank 0 says."""
    stage = STAGES[name](context)
    if isinstance(stage, TeamStage):
        stage.follow()


def export(store: ArtifactStore, outcome: Outcome, folder: Path) -> dict[str, Path]:
    """Copies of a finished clip's files in `folder`, named by the clip's id; existing ones are replaced whole.

    Only for outcomes without failure. Raises: CorruptedArtifactError when a stored file is damaged, InputError when
    `folder` cannot be written to.
    """
    with disk_errors(folder, InputError):
        folder.mkdir(parents=True, exist_ok=True)
    key = outcome.results[-1].key or ""
    short_id = outcome.clip.short_id
    targets = {
        CLIP: folder / f"{short_id}.mp4",
        POSTER: folder / f"{short_id}.jpg",
        CONTACT_SHEET: folder / f"{short_id}.contact_sheet.jpg",
    }
    for name, target in targets.items():
        stored = fetch_or_condemn(store, StageName.MUX, key, name)
        with partial_file(target, InputError) as partial:
            shutil.copyfile(stored, partial)
    return targets
