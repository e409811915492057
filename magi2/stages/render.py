"""A stage run on a rank, and what comes of clips in all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from magi2 import platform
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
from magi2.types import Clip, StageName

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
