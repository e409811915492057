"""What decoded sound is like, tenth of a second by tenth: numbers without a judgement, see `picture_measures`."""

# Shapes: n samples, s slices of k samples

from __future__ import annotations

import torch
from torch import Tensor

from magi2.media.delivery import SAMPLE_RATE_HZ
from magi2.media.picture_measures import as_text
from magi2.quality.measures import SLICES_PER_SECOND

FULL_SCALE = 0.999
"""A sample from here on is taken for a clipped one."""
FLOOR_DB = -120.0


def sound_measures(samples: Tensor) -> dict[str, str | float]:
    """The measures of samples [2, n] at 44.1 kHz, one number for each slice; a last part of a slice is left out.

    `left` and `right` are loudness in decibels of full scale, each slice's mean taken out; `offset` that mean, of the
    channel where it is larger, and `clipped` the share of samples at full scale, both in thousandths. `alike` is the
    correlation of the channels in hundredths, 0 where one is silent; `crossings` the share of samples that change
    sign, in hundredths. `lost` counts values that are not finite, which count as 0 in all else.
    """
    size = SAMPLE_RATE_HZ // SLICES_PER_SECOND
    count = samples.shape[-1] // size
    slices_2sk = samples[:, : count * size].float().reshape(2, count, size)
    lost = (~torch.isfinite(slices_2sk)).sum(dim=(0, 2))
    slices_2sk = slices_2sk.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)
    means = slices_2sk.mean(-1)
    waves = slices_2sk - means[..., None]
    loudness = (10 * waves.square().mean(-1).log10()).clamp(min=FLOOR_DB)
    power = waves.square().sum(-1).prod(0).sqrt()
    alike = torch.where(power > 0, 100 * waves.prod(0).sum(-1) / power.clamp(min=1e-30), 0.0)
    crossings = (waves[..., 1:] * waves[..., :-1] < 0).float().mean((0, 2))
    columns = {
        "left": loudness[0],
        "right": loudness[1],
        "offset": 1000 * means.abs().amax(0),
        "clipped": 1000 * (slices_2sk.abs() >= FULL_SCALE).float().mean(-1).amax(0),
        "alike": alike,
        "crossings": 100 * crossings,
        "lost": lost,
    }
    seconds = samples.shape[-1] / SAMPLE_RATE_HZ
    return {"seconds": round(seconds, 3), **{name: as_text(column.tolist()) for name, column in columns.items()}}
