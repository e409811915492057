"""The exact picture of a take at any size and rate: what a perfect model would show."""

# Shapes: F frames, H x W pixels

from __future__ import annotations

import torch
from torch import Tensor

from demo_world.scenes import PALETTE, Scene
from demo_world.takes import Take, signed_distance
from magi2.errors import ContractError


def draw_frames(
    take: Take, *, height: int, width: int, fps: float, frame_count: int, first: int = 0, colours: Tensor | None = None
) -> Tensor:
    """The frames as a decoder gives them: [1, 3, F, H, W] fp32 in [-1, 1], edges blended over one pixel.

    `first` frames are left out before them. `colours` [2, 3] replace the scene's, see `scene_colours`.
    Raises: ContractError unless the picture is twice as wide as high.
    """
    if width != 2 * height or frame_count < 1:
        raise ContractError(
            f"{frame_count} frames of {width}x{height} pixels: want at least one, twice as wide as high"
        )
    seconds = (torch.arange(frame_count, dtype=torch.float32) + first) / fps
    x = (torch.arange(width, dtype=torch.float32) + 0.5) / height
    y = (torch.arange(height, dtype=torch.float32) + 0.5) / height
    share_FHW = coverage(signed_distance(take, seconds, x, y) * height)
    chosen = scene_colours(take.scene) if colours is None else colours
    outside, inside = chosen[:, :, None, None, None]
    pixels: Tensor = outside + share_FHW * (inside - outside)
    return pixels[None]


def coverage(distance_in_pixels: Tensor) -> Tensor:
    """How much of a pixel lies inside an edge at this signed distance from its centre."""
    return (0.5 - distance_in_pixels).clamp(0.0, 1.0)


def scene_colours(scene: Scene) -> Tensor:
    """Levels of the background and of the shape: [2, 3] in [-1, 1]."""
    return torch.stack([colour_levels(scene.background), colour_levels(scene.colour)])


def colour_levels(name: str) -> Tensor:
    """A palette colour as decoders express it: [3] in [-1, 1]."""
    return torch.tensor(PALETTE[name], dtype=torch.float32) / 127.5 - 1.0
