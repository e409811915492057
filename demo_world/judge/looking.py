"""What the frames of a clip show: background, colour, and where the shape is in each of them."""

# Shapes: F frames, H x W pixels

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from demo_world.picture import colour_levels
from demo_world.scenes import PALETTE
from magi2.errors import MediaError
from magi2.media.reading import open_media, read_frames, video_stream

MEASURED_HEIGHT = 128
"""Larger pictures are averaged down to this many rows: measures do not get better, but slower."""
COLOUR_REACH = 0.6
"""Furthest that a measured colour may be from the one it is called, in RGB of -1..1; the palette is 0.9 apart."""
SEEN_DISTANCE = 0.35
"""A pixel that differs from the background by less than this shows nothing."""
EDGE_SHARE = 0.3
"""Blends of shape and background below this share are compression's ringing."""


@dataclass(frozen=True)
class Look:
    """What is seen: colour names (None: nothing that has a name), and the shape's share of each pixel [F, H, W].

    `x`, `y` [F] are its centre in scene units (picture height 1), `area` [F] its area.
    """

    background: str | None
    colour: str | None
    fps: float
    share: Tensor
    x: Tensor
    y: Tensor
    area: Tensor

    @property
    def is_empty(self) -> bool:
        """Whether no shape was seen at all."""
        return not bool(self.share.any())


def look_at(path: Path) -> Look:
    """Measure the picture of a media file. Raises: MediaError when it cannot be read or holds no frame."""
    with open_media(path) as container:
        rate = video_stream(container).average_rate
    frames = list(_frames(path))
    if not frames or not rate:
        raise MediaError(f"{path}: holds no frame, or does not say its rate")
    return look(torch.stack(frames), fps=float(rate))


def _frames(path: Path) -> Iterator[Tensor]:
    """The frames as [H, W, 3] fp32 in [-1, 1]."""
    for frame in read_frames(path):
        height, width = frame.shape[:2]
        levels = frame.permute(2, 0, 1)[None].float() / 127.5 - 1.0
        if height > MEASURED_HEIGHT:
            size = (MEASURED_HEIGHT, round(MEASURED_HEIGHT * width / height))
            levels = functional.interpolate(levels, size=size, mode="area")
        yield levels[0].permute(1, 2, 0)


def look(pixels: Tensor, *, fps: float) -> Look:
    """Measure frames [F, H, W, 3] in [-1, 1]: the border's median is the background, what is far from it the shape."""
    border = torch.cat([pixels[:, 0], pixels[:, -1], pixels[:, :, 0], pixels[:, :, -1]], dim=1)
    background = border.reshape(-1, 3).median(0).values
    away = (pixels - background).norm(dim=-1)
    far = away > max(SEEN_DISTANCE, 0.6 * away.flatten()[::7].quantile(0.99).item())
    seen = bool(far.any())
    colour = pixels[far].median(0).values if seen else background
    across = colour - background
    share = ((pixels - background) @ across / across.square().sum().clamp(min=1e-4)).clamp(0.0, 1.0)
    share = torch.where(share < EDGE_SHARE, 0.0, share) if seen else torch.zeros_like(away)
    return Look(nearest_colour(background), nearest_colour(colour) if seen else None, fps, share, *_centres(share))


def nearest_colour(levels: Tensor) -> str | None:
    """The palette's name of a colour [3] in [-1, 1], None when none is near."""
    distances = {name: (colour_levels(name) - levels).norm().item() for name in PALETTE}
    name = min(distances, key=lambda name: distances[name])
    return name if distances[name] < COLOUR_REACH else None


def _centres(share: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    _, height, width = share.shape
    x, y = pixel_centres(height, width)
    mass = share.sum((1, 2)).clamp(min=1e-3)
    return (share.sum(1) @ x) / mass, (share.sum(2) @ y) / mass, mass / height**2


def pixel_centres(height: int, width: int) -> tuple[Tensor, Tensor]:
    """Columns [W] and rows [H] in scene units."""
    x, y = (torch.arange(count, dtype=torch.float32) for count in (width, height))
    return (x + 0.5) / height, (y + 0.5) / height
