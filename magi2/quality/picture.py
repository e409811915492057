"""Which parts of a picture are defective, by its measures and the thresholds."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import dist
from statistics import median

from magi2.quality.measures import LAG_S, Column, Measures
from magi2.quality.spans import Span, Track
from magi2.quality.thresholds import Thresholds

AROUND_S = 0.6
"""A change of the picture is compared with those so long before and after it."""
WINDOW_S = 0.8
"""Flicker and repeated frames are counted in windows of so long."""
PICTURE_GAP_S = 0.25
"""Gaps in a spoilt stretch that do not end it: single frames may escape."""


def still(measures: Measures, thresholds: Thresholds) -> Track:
    """Where nothing moves. A frame is still that is as all those around it within `LAG_S` are, before or after it."""
    lag = max(1, round(LAG_S * measures.rate))
    moved = measures.picture["moved"]
    rests = [False] * len(moved)
    for at in range(1, len(moved)):
        if moved[at] <= thresholds.still_moved and (at >= lag or max(moved[: at + 1]) <= thresholds.still_moved):
            start = max(0, at - lag)
            rests[start : at + 1] = [True] * (at + 1 - start)
    return Track(rests if len(moved) > 1 else [False] * len(moved), measures.rate)


def black(measures: Measures, thresholds: Thresholds) -> list[Span]:
    dark = [peak <= thresholds.black_peak for peak in measures.picture["peak"]]
    uniform = _uniform(measures, thresholds)
    return _blank([a and b for a, b in zip(dark, uniform, strict=True)], measures, thresholds)


def one_coloured(measures: Measures, thresholds: Thresholds) -> list[Span]:
    """White, grey, or of any one colour; black is told apart."""
    bright = [peak > thresholds.black_peak for peak in measures.picture["peak"]]
    uniform = _uniform(measures, thresholds)
    return _blank([a and b for a, b in zip(bright, uniform, strict=True)], measures, thresholds)


def noisy(measures: Measures, thresholds: Thresholds) -> list[Span]:
    noise = measures.picture["noise"]
    limit = min(max(thresholds.noise, thresholds.relative * _usual(noise)), thresholds.noise_anywhere)
    return _spoilt([value > limit for value in noise], measures, thresholds)


def blocky(measures: Measures, thresholds: Thresholds) -> list[Span]:
    blocks = measures.picture["blocks"]
    limit = max(thresholds.blocks, thresholds.relative * _usual(blocks))
    return _spoilt([value > limit for value in blocks], measures, thresholds)


def colourless(measures: Measures, thresholds: Thresholds) -> list[Span]:
    """Where the colour is gone that the clip has elsewhere."""
    colour = measures.picture["colour"]
    usual = sorted(colour)[int(0.9 * (len(colour) - 1))] if colour else 0.0
    if usual <= thresholds.colour_least:
        return []
    return _spoilt([value < thresholds.colour_left * usual for value in colour], measures, thresholds)


def flickering(measures: Measures, thresholds: Thresholds) -> list[Span]:
    level = measures.picture["level"]
    beside = zip(level, level[1:], level[2:], strict=False)
    jumps = [False, *(abs(b - (a + c) / 2) > thresholds.flicker for a, b, c in beside), False][: len(level)]
    return _frequent(jumps, measures, thresholds.flicker_share, thresholds)


def repeating(measures: Measures, thresholds: Thresholds) -> list[Span]:
    """Where frames come twice while the picture moves; where it rests all do, which is no judder."""
    steps = measures.picture["step"]
    repeats = [step <= thresholds.repeat_step for step in steps]
    is_alone = [
        has and (not all(repeats[max(0, at - 2) : at + 1]) or at < 2) and not all(repeats[at : at + 3])
        for at, has in enumerate(repeats)
    ]
    return _frequent(is_alone, measures, thresholds.repeat_share, thresholds)


def cuts(measures: Measures, thresholds: Thresholds) -> list[float]:
    """When the picture changes at once, or what it shows is elsewhere at once, in seconds."""
    changes = _leaps(measures.picture["change"], measures.rate, thresholds.cut_change, thresholds.cut_times)
    ways = _leaps(way(measures), measures.rate, thresholds.cut_way, thresholds.cut_times)
    return [at / measures.rate for at in sorted(changes | ways)]


def way(measures: Measures) -> Column:
    """How far the picture's centre and width went in each frame, in thousandths of the picture's width."""
    at = list(zip(*(measures.picture[name] for name in ("x", "y", "wide")), strict=True))
    return [0.0, *(dist(a, b) for a, b in pairwise(at))][: len(at)]


def flashes(at: Sequence[float], thresholds: Thresholds) -> list[Span]:
    """Pairs of cuts that enclose no more than a flash."""
    return [(a, b) for a, b in pairwise(at) if b - a <= thresholds.flash_s]


def lost(measures: Measures) -> list[Span]:
    """Where a value was not finite."""
    return Track([count > 0 for count in measures.picture["lost"]], measures.rate).spans


def _leaps(values: Column, rate: float, least: float, times: float) -> set[int]:
    """Where a value is so many times as large as is usual around it."""
    around, found = max(2, round(AROUND_S * rate)), set()
    for at in range(1, len(values)):
        if values[at] <= least:
            continue
        beside = values[max(1, at - around) : at] + values[at + 1 : at + 1 + around]
        if values[at] > times * (median(beside) if beside else 0.0):
            found.add(at)
    return found


def _uniform(measures: Measures, thresholds: Thresholds) -> list[bool]:
    return [spread <= thresholds.blank_spread for spread in measures.picture["spread"]]


def _blank(holds: list[bool], measures: Measures, thresholds: Thresholds) -> list[Span]:
    track = Track(holds, measures.rate)
    return track.spans if track.share >= thresholds.blank_share else track.at_least(thresholds.blank_s)


def _spoilt(holds: list[bool], measures: Measures, thresholds: Thresholds) -> list[Span]:
    return Track(holds, measures.rate).closed(PICTURE_GAP_S).at_least(thresholds.spoilt_s)


def _frequent(holds: list[bool], measures: Measures, share: float, thresholds: Thresholds) -> list[Span]:
    """Where so large a share of the frames of a window holds, from the first of them to the last."""
    width = max(2, round(WINDOW_S * measures.rate))
    dense = [False] * len(holds)
    for at in range(len(holds) - width + 1):
        inside = [at + offset for offset, has in enumerate(holds[at : at + width]) if has]
        if len(inside) >= share * width:
            dense[inside[0] : inside[-1] + 1] = [True] * (inside[-1] + 1 - inside[0])
    return Track(dense, measures.rate).at_least(thresholds.spoilt_s)


def _usual(values: Column) -> float:
    """What is common in a clip of which up to three quarters are spoilt."""
    return sorted(values)[len(values) // 4] if values else 0.0
