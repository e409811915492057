"""How far good clips and planted defects lie from the thresholds: `python -m demo_world.margins OUT.json`.

Good clips are exact targets of every motion, still ones and every sound among them. Defects are planted into clips of
which continuous motion and sound are expected: every kind, at the start, in the middle and at the end.
"""

from __future__ import annotations

import argparse
import json
import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

import torch

from demo_world.picture import draw_frames
from demo_world.planted import PLANTED, Decoded
from demo_world.scenes import MOTIONS, SOUNDS, Motion, Scene, Sound, draw_scene
from demo_world.sound import delivered_sound
from demo_world.takes import draw_take
from magi2.media.frames import to_uint8
from magi2.media.picture_measures import PictureMeasures
from magi2.media.sound_measures import sound_measures
from magi2.quality.defects import judge
from magi2.quality.measures import SLICES_PER_SECOND, Measures
from magi2.quality.picture import way
from magi2.quality.thresholds import USUAL
from magi2.types import Expect

CLIP_S = 10.0
FPS = 12.5
HEIGHT = 64
LASTING: tuple[Motion, ...] = ("bounce", "sway", "spin")
"""Motions that do not come to rest."""
HEARD: tuple[Sound, ...] = ("low", "mid", "high", "rise", "fall", "buzz")
CONTINUOUS = Expect("continuous", "continuous")
DEMO = Expect("rest", "any")
"""What the demo's profiles expect."""

Series = Callable[[Measures], Sequence[float]]


def draw_decoded(rng: random.Random, motions: Sequence[Motion], sounds: Sequence[Sound]) -> Decoded:
    """An exact clip with one of these motions and, unless it cannot be, one of these sounds."""
    while not (scene := _scene(rng, motions, sounds)).is_possible:
        pass
    take = draw_take(scene, rng)
    pixels = draw_frames(take, height=HEIGHT, width=2 * HEIGHT, fps=FPS, frame_count=round(CLIP_S * FPS))
    return Decoded(pixels, delivered_sound(take), FPS)


def measure(clip: Decoded) -> Measures:
    """What the decode stage would have measured of a clip."""
    seen = PictureMeasures(clip.fps)
    for window in clip.pixels.split(25, dim=2):
        seen.add(window, to_uint8(window))
    found = Measures.of({"picture": seen.report(), "sound": sound_measures(clip.samples)})
    assert found is not None
    return found


def places(seconds: float) -> Mapping[str, tuple[float, float]]:
    """Where a defect of so many seconds is planted."""
    return {"start": (0.0, seconds), "middle": (4.0, 4.0 + seconds), "end": (CLIP_S - seconds, CLIP_S)}


def _scene(rng: random.Random, motions: Sequence[Motion], sounds: Sequence[Sound]) -> Scene:
    return replace(draw_scene(rng), motion=rng.choice(motions), sound=rng.choice(sounds))


@dataclass(frozen=True)
class Margin:
    """A number that grows or falls towards a defect: of picture or sound, and the threshold's own value of it."""

    of: Series
    threshold: float
    grows: bool
    is_sound: bool = False

    def worst(self, values: Iterable[float]) -> float:
        """Of a good clip, what is nearest to the defect."""
        return max(values) if self.grows else min(values)

    def weakest(self, values: Iterable[float]) -> float:
        """Of a defect, what is nearest to a good clip, a fifth of it left out: its ends, and what the noise makes."""
        ordered = sorted(values, reverse=not self.grows)
        return ordered[len(ordered) // 5]


def _picture(name: str) -> Series:
    return lambda measures: measures.picture[name]


def _colour_left(measures: Measures) -> Sequence[float]:
    colour = measures.picture["colour"]
    usual = sorted(colour)[int(0.9 * (len(colour) - 1))]
    return [value / usual for value in colour] if usual > USUAL.colour_least else [1.0]


def _uneven(measures: Measures) -> Sequence[float]:
    level = measures.picture["level"]
    return [abs(b - (a + c) / 2) for a, b, c in zip(level, level[1:], level[2:], strict=False)]


def _leap(measures: Measures) -> Sequence[float]:
    """How many times larger than around it a change is, or the way of the centre, of those that could be a cut."""
    both = (measures.picture["change"], USUAL.cut_change), (way(measures), USUAL.cut_way)
    return [max(times) for times in zip(*(_times(values, least) for values, least in both), strict=True)]


def _times(values: Sequence[float], least: float) -> Sequence[float]:
    found, around = [0.0], 8
    for at in range(1, len(values)):
        beside = [*values[max(1, at - around) : at], *values[at + 1 : at + 1 + around]]
        found.append(values[at] / max(median(beside), 0.1) if values[at] > least else 0.0)
    return found


def _loudness(measures: Measures) -> Sequence[float]:
    return [max(both) for both in zip(measures.sound["left"], measures.sound["right"], strict=True)]


def _one_sided(measures: Measures) -> Sequence[float]:
    return [abs(left - right) for left, right in zip(measures.sound["left"], measures.sound["right"], strict=True)]


MARGINS: Mapping[str, Margin] = {
    "black": Margin(_picture("peak"), USUAL.black_peak, grows=False),
    "one_coloured": Margin(_picture("spread"), USUAL.blank_spread, grows=False),
    "frozen": Margin(_picture("moved"), USUAL.still_moved, grows=False),
    "noisy": Margin(_picture("noise"), USUAL.noise, grows=True),
    "blocky": Margin(_picture("blocks"), USUAL.blocks, grows=True),
    "colourless": Margin(_colour_left, USUAL.colour_left, grows=False),
    "flicker": Margin(_uneven, USUAL.flicker, grows=True),
    "repeated_frames": Margin(_picture("step"), USUAL.repeat_step, grows=False),
    "cut": Margin(_leap, USUAL.cut_times, grows=True),
    "silent": Margin(_loudness, USUAL.silent_db, grows=False, is_sound=True),
    "clipped": Margin(lambda m: m.sound["clipped"], USUAL.clipped, grows=True, is_sound=True),
    "dc_offset": Margin(lambda m: m.sound["offset"], USUAL.offset, grows=True, is_sound=True),
    "one_channel_dead": Margin(_one_sided, USUAL.dead_db, grows=True, is_sound=True),
    "channels_inverted": Margin(lambda m: m.sound["alike"], USUAL.inverted, grows=False, is_sound=True),
    "harsh_noise": Margin(lambda m: m.sound["crossings"], USUAL.harsh_crossings, grows=True, is_sound=True),
}
"""The number that tells a kind of defect. Of repeated frames every other one counts, of cuts the one frame."""


def good_clips(count: int, seed: int, tell: Callable[[str], None]) -> dict[str, object]:
    """Measure `count` exact clips of each motion: how many were flagged, and what came nearest to each threshold.

    What rests or is silent because it was asked for says nothing about thresholds of motion and sound, so only lasting
    ones count there.
    """
    rng, flagged, worst = random.Random(seed), Counter[str](), dict[str, float]()
    for motion in MOTIONS:
        for _ in range(count):
            measures = measure(draw_decoded(rng, (motion,), SOUNDS))
            flagged.update(judge(measures, DEMO, USUAL).flags)
            for name, margin in MARGINS.items():
                if name in ("frozen", "repeated_frames") and motion not in LASTING:
                    continue
                if name == "silent":
                    continue
                values = [*list(margin.of(measures))[1:], *([worst[name]] if name in worst else [])]
                if values:  # a white clip has no colour that it could lose
                    worst[name] = margin.worst(values)
        tell(f"{motion}: {dict(flagged) or 'no flag'}")
    return {"clips": count * len(MOTIONS), "of_each_motion": count, "flagged": dict(flagged), "nearest": worst}


def planted(count: int, seconds: Sequence[float], seed: int, tell: Callable[[str], None]) -> dict[str, object]:
    """Plant every defect into `count` exact clips at every place: which were missed, and which was told least."""
    rng, missed, tried, weakest = random.Random(seed), list[str](), 0, dict[str, float]()
    loudness = [min(_loudness(measure(draw_decoded(rng, LASTING, HEARD)))) for _ in range(count)]
    for _ in range(count):
        clip = draw_decoded(rng, LASTING, HEARD)
        for name, flag in PLANTED.items():
            for length in seconds:
                for place, (start, end) in places(length).items():
                    if name == "shorter" and place != "end":
                        continue
                    bad = clip.with_defect(name, start, end)
                    if not bad.differs_from(clip):
                        continue  # a white disc on black has no colour to lose
                    tried += 1
                    measures = measure(bad)
                    if flag not in judge(measures, CONTINUOUS, USUAL).flags:
                        missed.append(f"{name} of {length} s at the {place}")
                    value = _told(flag, measures, start, end)
                    if value is not None:
                        key = f"{flag} ({name})"
                        grows = MARGINS[flag].grows
                        weakest[key] = (min if grows else max)(value, weakest.get(key, value))
        tell(f"{tried} planted, {len(missed)} missed")
    return {"planted": tried, "missed": missed, "weakest": weakest, "quietest_sound_db": min(loudness, default=None)}


def _told(flag: str, measures: Measures, start: float, end: float) -> float | None:
    """The number that tells a planted defect, inside it."""
    margin = MARGINS.get(flag)
    if margin is None:
        return None
    rate = SLICES_PER_SECOND if margin.is_sound else measures.rate
    values = list(margin.of(measures))
    inside = values[round(start * rate) : round(end * rate)]
    if flag == "cut":
        edges = (round(each * rate) for each in (start, end))
        return max(values[at] for at in edges if at < len(values))
    if flag == "frozen":
        inside = inside[round(0.4 * rate) + 1 :]
    if flag == "repeated_frames":
        inside = sorted(inside)[: len(inside) // 3]
    return margin.weakest(inside) if inside else None


def main(arguments: list[str] | None = None) -> int:
    """Write the margins as JSON."""
    parser = argparse.ArgumentParser(prog="python -m demo_world.margins", description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--good", type=int, default=128, help="good clips of each motion")
    parser.add_argument("--bad", type=int, default=12, help="clips into which everything is planted")
    parser.add_argument("--seconds", type=float, nargs="+", default=[1.0, 2.5], help="lengths of what is planted")
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args(arguments)
    torch.set_num_threads(1)
    found = {
        "thresholds": {name: margin.threshold for name, margin in MARGINS.items()},
        "planted": planted(asked.bad, asked.seconds, asked.seed + 1, print),
        "good": good_clips(asked.good, asked.seed, print),
    }
    asked.out.write_text(json.dumps(found, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
