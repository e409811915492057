"""The diffusion time as channels of a token.

Source: MAGI-2 preview inference code, sinusoidal embedding of the normalised time.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

_TRAIN_STEPS = 1000.0
_MAX_PERIOD = 10000.0


def time_frequencies(width: int) -> Tensor:
    """Angular frequencies [width // 2] fp32, computed on the CPU, whatever the device that they are moved to."""
    half = width // 2
    return torch.exp(-math.log(_MAX_PERIOD) * torch.arange(half, dtype=torch.float32) / max(half, 1))


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
