"""Video latents written down instead of learned: what one cell has to say about a flat moving shape.

A cell of 16 x 16 pixels and 4 frames has 48 channels: 36 squashed signed distances to the shape's edge (3 x 3 points in
each of 4 frames) and 12 colours (background, shape, and both again). Nothing depends on the picture's size: distances
are in cells. The latents are the normalised ones, which the transformer sees and the decoder is trained behind.
"""

# Shapes: T latents, h x w cells, S frame slots (4 T), Z channels

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from demo_world.picture import coverage, scene_colours
from demo_world.takes import Take, signed_distance
from magi2.errors import ContractError

FRAMES_PER_LATENT = 4
POINTS = 3
DISTANCE_CHANNELS = FRAMES_PER_LATENT * POINTS**2
CHANNELS = DISTANCE_CHANNELS + 12
SQUASH_CELLS = 1.5
"""Cells from the edge at which a distance becomes tanh(1)."""

DISTANCE_STATISTICS = (0.685, 0.329)
BACKGROUND_STATISTICS = (-0.059, 0.669)
SHAPE_STATISTICS = (0.104, 0.660)
"""Mean and deviation over drawn takes (4 x 8 cells), one pair per kind of channel."""


def video_latents(
    take: Take, *, height: int, width: int, count: int, fps: float, first: int = 0, colours: Tensor | None = None
) -> Tensor:
    """The normalised latents of a take: [1, 48, T, h, w] fp32.

    Over many takes they have mean 0 and variance 1 at the preview's 4 x 8 cells. `height` and `width` count cells;
    `count` latents cover 4 count - 3 frames at `fps`, and the first one says its single frame four times. `first`
    latents are left out before them. `colours` [2, 3] replace the scene's, see `picture.scene_colours`.
    Raises: ContractError unless the grid is twice as wide as high.
    """
    if width != 2 * height or count < 1:
        raise ContractError(f"{count} latents of {width}x{height} cells: want at least one, twice as wide as high")
    seconds = _slots(first + count)[FRAMES_PER_LATENT * first :] / fps
    return _describe(take, seconds, height, width, colours)


def image_latents(take: Take, *, height: int, width: int, seconds: float, colours: Tensor | None = None) -> Tensor:
    """The normalised latents of a single picture, taken `seconds` after the beginning: [1, 48, 1, h, w] fp32.

    `height`, `width` and `colours` are those of `video_latents`. Raises: ContractError unless twice as wide as high.
    """
    if width != 2 * height:
        raise ContractError(f"latents of {width}x{height} cells: want twice as wide as high")
    return _describe(take, torch.full((FRAMES_PER_LATENT,), seconds), height, width, colours)


def _describe(take: Take, seconds: Tensor, height: int, width: int, colours: Tensor | None) -> Tensor:
    """The latents [1, 48, T, h, w] whose 4 T slots show `seconds`."""
    count = len(seconds) // FRAMES_PER_LATENT
    x = (torch.arange(POINTS * width, dtype=torch.float32) + 0.5) / (POINTS * height)
    y = (torch.arange(POINTS * height, dtype=torch.float32) + 0.5) / (POINTS * height)
    squashed = torch.tanh(signed_distance(take, seconds, x, y) * (height / SQUASH_CELLS))
    distances = squashed.view(count, FRAMES_PER_LATENT, height, POINTS, width, POINTS)
    distances = distances.permute(1, 3, 5, 0, 2, 4).reshape(DISTANCE_CHANNELS, count, height, width)
    chosen = (scene_colours(take.scene) if colours is None else colours).flatten().repeat(2)
    raw = torch.cat([distances, chosen[:, None, None, None].expand(-1, count, height, width)])
    mean, deviation = _statistics()
    return ((raw - mean) / deviation)[None]


def draw_from_latents(latents: Tensor, *, height: int) -> Tensor:
    """The picture that latents [1, 48, T, h, w] describe, without a network: [1, 3, 4 T - 3, H, W] in [-1, 1].

    Distances are interpolated and thresholded, colours averaged: the yardstick for the transformer alone.
    """
    mean, deviation = _statistics()
    raw = latents[0].float() * deviation + mean
    _, count, cells_high, cells_wide = raw.shape
    size = (height, height * cells_wide // cells_high)
    points = raw[:DISTANCE_CHANNELS].view(FRAMES_PER_LATENT, POINTS, POINTS, count, cells_high, cells_wide)
    points = points.permute(3, 0, 4, 1, 5, 2).reshape(-1, 1, POINTS * cells_high, POINTS * cells_wide)
    in_pixels = torch.atanh(points.clamp(-0.999, 0.999)) * (SQUASH_CELLS * height / cells_high)
    share = coverage(functional.interpolate(in_pixels, size=size, mode="bicubic", align_corners=False))
    colours = (raw[DISTANCE_CHANNELS:-6] + raw[-6:]).transpose(0, 1) / 2
    colours = functional.interpolate(colours, size=size, mode="bilinear", align_corners=False)
    outside, inside = colours.repeat_interleave(FRAMES_PER_LATENT, dim=0).chunk(2, dim=1)
    pixels: Tensor = (outside + share * (inside - outside))[FRAMES_PER_LATENT - 1 :]
    return pixels.transpose(0, 1)[None]


def squashed_distances(latents: Tensor) -> Tensor:
    """What latents [B, 48, T, h, w] say about distances to the edge: [B, 36, T, h, w] in -1..1, 0 on the edge."""
    mean, deviation = DISTANCE_STATISTICS
    return latents[:, :DISTANCE_CHANNELS] * deviation + mean


def _slots(count: int) -> Tensor:
    """The frame that each of the 4 count slots describes."""
    first = torch.zeros(FRAMES_PER_LATENT)
    return torch.cat([first, torch.arange(1, FRAMES_PER_LATENT * (count - 1) + 1, dtype=torch.float32)])


def _statistics() -> tuple[Tensor, Tensor]:
    distance, background, shape = DISTANCE_STATISTICS, BACKGROUND_STATISTICS, SHAPE_STATISTICS
    pairs = [distance] * DISTANCE_CHANNELS + ([background] * 3 + [shape] * 3) * 2
    mean, deviation = torch.tensor(pairs).T[:, :, None, None, None]
    return mean, deviation
