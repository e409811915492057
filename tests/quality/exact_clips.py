"""Small clips whose picture and sound never rest, and what is measured of them."""

from __future__ import annotations

import torch

from demo_world.planted import Decoded
from magi2.media.delivery import SAMPLE_RATE_HZ
from magi2.media.frames import to_uint8
from magi2.media.picture_measures import PictureMeasures
from magi2.media.sound_measures import sound_measures
from magi2.quality.measures import Measures

FPS = 12.5
SECONDS = 4.0


def lively(seconds: float = SECONDS) -> Decoded:
    """A coloured disc that goes round over a plain ground, with a tone."""
    time = torch.arange(round(seconds * FPS)) / FPS
    y, x = torch.meshgrid(torch.arange(32.0), torch.arange(64.0), indexing="ij")
    centre_x, centre_y = 32 + 16 * torch.cos(2 * time), 16 + 8 * torch.sin(2 * time)
    inside = torch.hypot(x - centre_x[:, None, None], y - centre_y[:, None, None]) < 6
    colours = torch.tensor([[-0.4, -0.2, 0.5], [0.8, 0.3, -0.7]])
    pixels = colours[inside.long()].permute(3, 0, 1, 2)[None]
    tone = 0.3 * torch.sin(2 * torch.pi * 440 * torch.arange(round(seconds * SAMPLE_RATE_HZ)) / SAMPLE_RATE_HZ)
    return Decoded(pixels, tone.repeat(2, 1), FPS)


def report_of(clip: Decoded) -> dict[str, object]:
    """What the decode stage writes down of a clip."""
    seen = PictureMeasures(clip.fps)
    for window in clip.pixels.split(20, dim=2):
        seen.add(window, to_uint8(window))
    return {"picture": seen.report(), "sound": sound_measures(clip.samples)}


def measured(clip: Decoded) -> Measures:
    """The measures of a clip, as they are read."""
    measures = Measures.of(report_of(clip))
    assert measures is not None
    return measures
