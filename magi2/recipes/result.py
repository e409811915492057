"""What became of a clip in a stage."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from magi2.errors import Magi2Error
from magi2.types import Clip, StageName


@dataclass(frozen=True)
class StageResult:
    """What became of one clip in one stage. `flags` name fallbacks and defects; a flagged clip is not called good."""

    stage: StageName
    clip: Clip
    state: Literal["made", "reused", "failed"]
    seconds: float
    key: str | None = None
    flags: tuple[str, ...] = ()
    error: Magi2Error | None = None
