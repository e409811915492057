"""The measures of a clip as manifests hold them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

MEASURES = "measures"
"""Entry of a manifest's report: what was measured while the clip was decoded."""
LAG_S = 0.4
"""`moved` compares a frame with the one so long before."""
SLICES_PER_SECOND = 10
"""Sound is measured in slices."""
NAMES_OF_PICTURE = (
    "level",
    "peak",
    "spread",
    "colour",
    "noise",
    "blocks",
    "change",
    "step",
    "moved",
    "x",
    "y",
    "wide",
    "lost",
)
NAMES_OF_SOUND = ("left", "right", "offset", "clipped", "alike", "crossings", "lost")

Column = list[float]


@dataclass(frozen=True)
class Measures:
    """One number for each frame and measure of the picture, see `magi2.media.picture_measures`; sound likewise.

    `rate` is that of the frames; `sound_s` how long the sound is.
    """

    rate: float
    picture: Mapping[str, Column]
    sound: Mapping[str, Column]
    sound_s: float

    @property
    def frame_count(self) -> int:
        return len(self.picture["level"])

    @property
    def seconds(self) -> float:
        """How long the picture is."""
        return self.frame_count / self.rate

    @classmethod
    def of(cls, content: object) -> Measures | None:
        """Those that a manifest's report holds; None for what are none, as where an older version made the clip."""
        match content:
            case {"picture": dict() as picture, "sound": dict() as sound}:
                return _read(picture, sound)
        return None


def _read(picture: Mapping[Any, Any], sound: Mapping[Any, Any]) -> Measures | None:
    try:
        frames = {name: _column(picture[name]) for name in NAMES_OF_PICTURE}
        slices = {name: _column(sound[name]) for name in NAMES_OF_SOUND}
        rate, sound_s = float(picture["fps"]), float(sound["seconds"])
    except (KeyError, ValueError, AttributeError, TypeError, OverflowError):
        return None
    are_even = all(len({len(column) for column in columns.values()}) == 1 for columns in (frames, slices))
    is_timed = 0 < rate < math.inf and 0 <= sound_s < math.inf
    return Measures(rate, frames, slices, sound_s) if are_even and is_timed else None


def _column(text: str) -> Column:
    return [float(number) for number in text.split()]
