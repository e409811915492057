"""Which shape it is, how large, and how fast it turns."""

# Shapes: F frames, H x W pixels

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from demo_world.judge.looking import Look, pixel_centres
from demo_world.picture import coverage
from demo_world.scenes import SHAPES, Shape, Size
from demo_world.takes import AREA, RADIUS, edge_distance

ANGLES_DEGREES: Mapping[Shape, range] = {"circle": range(1), "square": range(0, 90, 9), "triangle": range(0, 120, 10)}
"""Rotations that are tried; after the last one a shape looks the same again."""
SYMMETRY: Mapping[Shape, int] = {"square": 4, "triangle": 3}
CHECKED_FRAMES = 7
LEAST_OVERLAP = 0.5
"""Intersection over union with the best drawn template below which it is none of the shapes."""


def measure_shape(seen: Look) -> Shape | None:
    """The shape that overlaps best when drawn at the same place with the same area, in several frames."""
    if seen.is_empty:
        return None
    frames = torch.linspace(0, len(seen.x) - 1, CHECKED_FRAMES).round().int().tolist()
    overlap = {shape: sum(_best_overlap(seen, frame, shape) for frame in frames) / len(frames) for shape in SHAPES}
    best = max(SHAPES, key=lambda shape: overlap[shape])
    return best if overlap[best] >= LEAST_OVERLAP else None


def _best_overlap(seen: Look, frame: int, shape: Shape) -> float:
    share, (height, width) = seen.share[frame], seen.share.shape[1:]
    x, y = pixel_centres(height, width)
    dx, dy = (x - seen.x[frame])[None], (y - seen.y[frame])[:, None]
    radius = math.sqrt(seen.area[frame].item() / AREA[shape])
    best = 0.0
    for degrees in ANGLES_DEGREES[shape]:
        cos, sin = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
        drawn = coverage(edge_distance(shape, cos * dx + sin * dy, cos * dy - sin * dx, radius) * height)
        shared, either = torch.minimum(drawn, share).sum(), torch.maximum(drawn, share).sum()
        best = max(best, (shared / either.clamp(min=1e-3)).item())
    return best


def measure_size(seen: Look, shape: Shape | None) -> Size | None:
    """Whether the shape's radius is nearer to the small or to the large one."""
    if shape is None:
        return None
    radius = math.sqrt(seen.area.median().item() / AREA[shape])
    return "small" if radius < (RADIUS["small"] + RADIUS["large"]) / 2 else "large"


def turns_per_second(seen: Look, shape: Shape | None) -> float:
    """How fast the shape rotates, clockwise positive; 0 for a circle or nothing.

    The phase of the share's n-th moment about its centre turns n times as fast as a shape of n-fold symmetry.
    """
    if shape is None or shape not in SYMMETRY or len(seen.x) < 2:
        return 0.0
    order = SYMMETRY[shape]
    x, y = pixel_centres(*seen.share.shape[1:])
    dx, dy = x - seen.x[:, None, None], y[:, None] - seen.y[:, None, None]
    moment: Tensor = (seen.share * torch.complex(dx.expand_as(seen.share), dy.expand_as(seen.share)) ** order).sum(
        (1, 2)
    )
    steps = (moment[1:] * moment[:-1].conj()).angle()
    return steps.median().item() / order * seen.fps / (2 * math.pi)
