"""The defects of a clip: what its measures say under the thresholds, and what its row or profile expects of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from magi2.quality import picture, sound
from magi2.quality.measures import Measures
from magi2.quality.spans import Span, Track, longest
from magi2.quality.thresholds import Thresholds
from magi2.types import Expect, Rest

DEFECTS = (
    *("black", "one_coloured", "frozen", "noisy", "blocky", "colourless", "flicker", "repeated_frames", "flash", "cut"),
    *("silent", "clipped", "dc_offset", "one_channel_dead", "channels_inverted", "harsh_noise", "sound_short"),
    "non_finite",
)
"""Every kind, by the name of its flag."""


@dataclass(frozen=True)
class Defect:
    """A kind of defect and where it is, in seconds of the clip."""

    kind: str
    spans: tuple[Span, ...]

    def to_json(self) -> dict[str, Any]:
        """The defect as JSON values."""
        return {"kind": self.kind, "spans": [[round(start, 2), round(end, 2)] for start, end in self.spans]}


@dataclass(frozen=True)
class Judgement:
    """The defects of a clip of so many seconds; and its longest still and silent stretches, expected or not."""

    defects: tuple[Defect, ...]
    seconds: float
    still_s: float
    still_share: float
    silent_s: float
    silent_share: float

    @property
    def flags(self) -> tuple[str, ...]:
        """The kinds of the defects; empty for a good clip."""
        return tuple(defect.kind for defect in self.defects)

    def to_json(self) -> dict[str, Any]:
        """The judgement as JSON values."""
        names = ("seconds", "still_s", "still_share", "silent_s", "silent_share")
        return {
            "defects": [defect.to_json() for defect in self.defects],
            **{name: round(getattr(self, name), 3) for name in names},
        }


def judge(measures: Measures, expect: Expect, thresholds: Thresholds) -> Judgement:
    """The judgement of a clip of which this is expected."""
    rests, quiet = picture.still(measures, thresholds), sound.silent(measures, thresholds)
    cuts = picture.cuts(measures, thresholds)
    found: dict[str, Sequence[Span]] = {
        "black": picture.black(measures, thresholds),
        "one_coloured": picture.one_coloured(measures, thresholds),
        "frozen": _unasked(rests, thresholds.still_s, expect.motion),
        "noisy": picture.noisy(measures, thresholds),
        "blocky": picture.blocky(measures, thresholds),
        "colourless": picture.colourless(measures, thresholds),
        "flicker": picture.flickering(measures, thresholds),
        "repeated_frames": picture.repeating(measures, thresholds),
        "flash": picture.flashes(cuts, thresholds),
        "cut": [(at, at + 1 / measures.rate) for at in cuts] if expect.motion == "continuous" else [],
        "silent": _unasked(quiet, thresholds.silent_s, expect.sound),
        "clipped": sound.clipped(measures, thresholds),
        "dc_offset": sound.off_middle(measures, thresholds),
        "one_channel_dead": sound.one_sided(measures, thresholds),
        "channels_inverted": sound.inverted(measures, thresholds),
        "harsh_noise": sound.harsh(measures, thresholds),
        "sound_short": sound.missing_end(measures, thresholds),
        "non_finite": picture.lost(measures) + sound.lost(measures),
    }
    return Judgement(
        tuple(Defect(kind, tuple(found[kind])) for kind in DEFECTS if found[kind]),
        max(measures.seconds, measures.sound_s),
        *(longest(rests.spans), rests.share, longest(quiet.spans), quiet.share),
    )


def _unasked(track: Track, seconds: float, allowed: Rest) -> list[Span]:
    """The stretches of rest that nobody asked for: with `rest`, those after which something comes again."""
    spans = track.at_least(seconds)
    if allowed == "any":
        return []
    end = len(track.holds) / track.rate
    return [span for span in spans if span[1] < end] if allowed == "rest" else spans
