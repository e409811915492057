"""Stretches of a clip for which something holds, from one truth for each frame or slice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby

Span = tuple[float, float]
"""From and to, in seconds."""


@dataclass(frozen=True)
class Track:
    """For which of a clip's frames or slices, `rate` of which come in a second, something holds."""

    holds: Sequence[bool]
    rate: float

    @property
    def spans(self) -> list[Span]:
        """The stretches for which it holds, in order."""
        runs = [(holds, len(list(members))) for holds, members in groupby(self.holds)]
        ends = accumulate(length for _, length in runs)
        return [
            ((end - length) / self.rate, end / self.rate)
            for (holds, length), end in zip(runs, ends, strict=True)
            if holds
        ]

    @property
    def share(self) -> float:
        """The part of the clip for which it holds."""
        return sum(self.holds) / len(self.holds) if self.holds else 0.0

    @property
    def longest_s(self) -> float:
        return longest(self.spans)

    def closed(self, seconds: float) -> Track:
        """This track without the gaps that are no longer than that."""
        most, holds, at = round(seconds * self.rate), list(self.holds), 0
        for has, members in groupby(self.holds):
            length = len(list(members))
            if not has and length <= most and 0 < at < len(holds) - length:
                holds[at : at + length] = [True] * length
            at += length
        return Track(holds, self.rate)

    def at_least(self, seconds: float) -> list[Span]:
        """The stretches that are at least so long."""
        slack = 0.5 / self.rate
        return [(start, end) for start, end in self.spans if end - start >= seconds - slack]


def longest(spans: Sequence[Span]) -> float:
    """How long the longest is, 0 when there is none."""
    return max((end - start for start, end in spans), default=0.0)
