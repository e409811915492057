"""What a batch cost: accelerator-seconds, which count every rank's, at the deployment's price."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from magi2.config.price import Price
from magi2.types import StageName


@dataclass(frozen=True)
class BatchCost:
    """What a batch took so far, all attempts together: accelerator-seconds by clip id and by stage.

    The costs of clips, of stages and of the batch are None when the deployment has no price.
    """

    price: Price | None
    clip_seconds: Mapping[str, float]
    stage_seconds: Mapping[StageName, float]

    @classmethod
    def from_seconds(cls, seconds: Mapping[tuple[str, StageName], float], price: Price | None) -> Self:
        """The cost of a batch from its accelerator-seconds by clip id and stage (`Runs.accelerator_seconds`)."""
        clips: dict[str, float] = defaultdict(float)
        stages: dict[StageName, float] = defaultdict(float)
        for (clip_id, stage), taken in seconds.items():
            clips[clip_id] += taken
            stages[stage] += taken
        return cls(price, dict(clips), {stage: stages[stage] for stage in StageName if stage in stages})

    @property
    def accelerator_seconds(self) -> float:
        """What the batch took."""
        return sum(self.stage_seconds.values())

    @property
    def total(self) -> float | None:
        """What the batch cost."""
        return self._cost(self.accelerator_seconds)

    def of_clip(self, clip_id: str) -> float | None:
        """What a clip cost."""
        return self._cost(self.clip_seconds.get(clip_id, 0.0))

    def of_stage(self, stage: StageName) -> float | None:
        """What a stage cost."""
        return self._cost(self.stage_seconds.get(stage, 0.0))

    def _cost(self, accelerator_seconds: float) -> float | None:
        return None if self.price is None else self.price.cost(accelerator_seconds)
