"""The diffusion time as channels of a token.

Source: MAGI-2 preview inference code, sinusoidal embedding of the normalised time.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

_TRAIN_STEPS = 1000.0
_MAX_PERIOD = 10000.0
# The published vectors hold each exponential rounded to the nearest fp32 number, except that of this one: it lies 0.479
# ulp above the nearest number and was rounded up.
_ROUNDED_UP = torch.tensor(-0.86346942, dtype=torch.float32)


def time_frequencies(width: int) -> Tensor:
    """Angular frequencies [width // 2] fp32 on the CPU, the same bits on every host; the published ones for width 64.

    Processors round fp32 exponentials differently, and angles reach 1000 rad, where one ulp of a frequency makes 6e-5
    of a channel. So the exponentials are computed in float64 and rounded once.
    """
    half = width // 2
    exponents = -math.log(_MAX_PERIOD) * torch.arange(half, dtype=torch.float32, device="cpu") / max(half, 1)
    nearest = exponents.double().exp().float()
    return torch.where(exponents == _ROUNDED_UP, nearest.nextafter(torch.ones_like(nearest)), nearest)


def time_channels(time: Tensor, frequencies: Tensor, width: int) -> Tensor:
    """Embedding [..., width] fp32 of normalised times in [0, 1]: cosines, sines, and a zero where the width is odd.

    A width of 1 is the time itself, 0 gives no channel.
    """
    time_f32 = time.float().unsqueeze(-1)
    if width <= 1:
        return time_f32[..., :width]
    angles = time_f32 * _TRAIN_STEPS * frequencies
    return torch.nn.functional.pad(torch.cat([angles.cos(), angles.sin()], dim=-1), (0, width % 2))


def normalised_time(timestep: Tensor) -> Tensor:
    """Timestep 0..1000 as fp32 fraction. Dividing here and multiplying back above is not an identity in fp32."""
    time = timestep.float()
    # By a tensor: accelerators turn a division by a number into a product with its reciprocal, which rounds otherwise.
    return time / torch.full_like(time, _TRAIN_STEPS)
