"""Which parts of a sound are defective, by its measures and the thresholds."""

from __future__ import annotations

from magi2.quality.measures import SLICES_PER_SECOND, Measures
from magi2.quality.spans import Span, Track
from magi2.quality.thresholds import Thresholds

SOUND_GAP_S = 0.2
"""Gaps in a spoilt stretch that do not end it."""


def silent(measures: Measures, thresholds: Thresholds) -> Track:
    """Where neither channel is heard; what the sound is shorter than the picture by counts too."""
    quiet = [max(both) <= thresholds.silent_db for both in _loudness(measures)]
    missing = round((measures.seconds - measures.sound_s) * SLICES_PER_SECOND)
    return Track(quiet + [True] * max(0, missing), SLICES_PER_SECOND)


def clipped(measures: Measures, thresholds: Thresholds) -> list[Span]:
    return _spoilt([share > thresholds.clipped for share in measures.sound["clipped"]], thresholds)


def off_middle(measures: Measures, thresholds: Thresholds) -> list[Span]:
    return _spoilt([offset > thresholds.offset for offset in measures.sound["offset"]], thresholds)


def one_sided(measures: Measures, thresholds: Thresholds) -> list[Span]:
    """Where one channel is dead and the other is heard."""
    return _spoilt(
        [
            min(both) <= thresholds.silent_db and max(both) >= min(both) + thresholds.dead_db
            for both in _loudness(measures)
        ],
        thresholds,
    )


def inverted(measures: Measures, thresholds: Thresholds) -> list[Span]:
    """Where the channels cancel each other, so that a single loudspeaker plays nothing."""
    heard = [min(both) > thresholds.silent_db for both in _loudness(measures)]
    against = [alike <= thresholds.inverted for alike in measures.sound["alike"]]
    return _spoilt([a and b for a, b in zip(heard, against, strict=True)], thresholds)


def harsh(measures: Measures, thresholds: Thresholds) -> list[Span]:
    """Where there is loud noise and nothing else."""
    loud = [max(both) >= thresholds.harsh_db for both in _loudness(measures)]
    noise = [crossings >= thresholds.harsh_crossings for crossings in measures.sound["crossings"]]
    return _spoilt([a and b for a, b in zip(loud, noise, strict=True)], thresholds)


def missing_end(measures: Measures, thresholds: Thresholds) -> list[Span]:
    """What the picture goes on without sound."""
    is_short = measures.seconds - measures.sound_s >= thresholds.short_s
    return [(measures.sound_s, measures.seconds)] if is_short else []


def lost(measures: Measures) -> list[Span]:
    """Where a sample was not finite."""
    return Track([count > 0 for count in measures.sound["lost"]], SLICES_PER_SECOND).spans


def _loudness(measures: Measures) -> list[tuple[float, float]]:
    return list(zip(measures.sound["left"], measures.sound["right"], strict=True))


def _spoilt(holds: list[bool], thresholds: Thresholds) -> list[Span]:
    return Track(holds, SLICES_PER_SECOND).closed(SOUND_GAP_S).at_least(thresholds.spoilt_s)
