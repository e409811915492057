"""The exact picture of a take at any size and rate: what a perfect model would show."""

# Shapes: F frames, H x W pixels

from __future__ import annotations

import torch
from torch import Tensor

from magi2.errors import ContractError
from tools.demo_checkpoint.scenes import PALETTE
from tools.demo_checkpoint.takes import Take, signed_distance


def draw_frames(take: Take, *, height: int, width: int, fps: float, frame_count: int) -> Tensor:
    """The frames as a decoder gives them: [1, 3, F, H, W] fp32 in [-1, 1], edges blended over one pixel.

    Raises: ContractError unless the picture is twice as wide as high.
    """
    if width != 2 * height or frame_count < 1:
        raise ContractError(
            f"{frame_count} frames of {width}x{height} pixels: want at least one, twice as wide as high"
        )
    seconds = torch.arange(frame_count, dtype=torch.float32) / fps
    x = (torch.arange(width, dtype=torch.float32) + 0.5) / height
    y = (torch.arange(height, dtype=torch.float32) + 0.5) / height
    share_FHW = coverage(signed_distance(take, seconds, x, y) * height)
    inside, outside = (colour_levels(name)[:, None, None, None] for name in (take.scene.colour, take.scene.background))
    return (outside + share_FHW * (inside - outside))[None]


def coverage(distance_in_pixels: Tensor) -> Tensor:
    """How much of a pixel lies inside an edge at this signed distance from its centre."""
    return (0.5 - distance_in_pixels).clamp(0.0, 1.0)


def colour_levels(name: str) -> Tensor:
    """A palette colour as decoders express it: [3] in [-1, 1]."""
    return torch.tensor(PALETTE[name], dtype=torch.float32) / 127.5 - 1.0
