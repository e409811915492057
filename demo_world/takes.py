"""One take of a scene: the numbers that the prompt leaves open, and where the shape is at any moment.

Scene units: the picture is 2 wide and 1 high, y points down. Every time constant is a whole number of frames (at 12.5
and 25 per second) and of audio latents (25 per second), so that nothing in picture or sound falls between two of them.
"""

# Shapes: F moments

from __future__ import annotations

import math
import random
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from demo_world.scenes import MOTIONS, Scene, Size, Speed

WIDTH = 2.0
RADIUS: dict[Size, float] = {"small": 0.14, "large": 0.24}
"""Distance from a shape's centre that it fills, of the picture's height."""
CROSSING_S: dict[Speed, float] = {"slow": 10.0, "fast": 5.0}
"""Seconds from one side to the other; the shape then rests."""
CONTACT_PERIOD_S: dict[Speed, float] = {"slow": 2.4, "fast": 1.2}
TURN_S: dict[Speed, float] = {"slow": 8.0, "fast": 3.0}
MARGIN_X, MARGIN_Y = 0.06, 0.04
"""What stays free between a shape that has arrived and the picture's edge."""


@dataclass(frozen=True)
class Take:
    """A scene with its open numbers: resting place (each in -1..1), pitch (-1, 0 or 1 steps of 25 Hz) and loudness."""

    scene: Scene
    place_x: float = 0.0
    place_y: float = 0.0
    pitch_step: int = 0
    gain: float = 0.36

    @property
    def radius(self) -> float:
        """In scene units."""
        return RADIUS[self.scene.size]


@dataclass(frozen=True)
class Track:
    """Centre and angle (radians) of the shape at F moments, each [F]."""

    x: Tensor
    y: Tensor
    angle: Tensor


def draw_take(scene: Scene, rng: random.Random) -> Take:
    """A take of `scene` as training sees it."""
    place_x, place_y = rng.uniform(-1, 1), rng.uniform(-1, 1)
    return Take(scene, place_x, place_y, pitch_step=rng.choice((-1, 0, 1)), gain=rng.uniform(0.30, 0.42))


def draw_pictured(scene: Scene, rng: random.Random) -> Take:
    """A take that a reference image for `scene` may be from: its shape, size and colours in any motion, unheard."""
    motions = [motion for motion in MOTIONS if replace(scene, motion=motion, sound="silence").is_possible]
    return draw_take(replace(scene, motion=rng.choice(motions), sound="silence"), rng)


def track(take: Take, seconds: Tensor) -> Track:
    """Where the shape is at `seconds` [F] from the beginning; same dtype and device."""
    scene, left, top = take.scene, take.radius + MARGIN_X, take.radius + MARGIN_Y
    x = torch.full_like(seconds, WIDTH / 2 + 0.35 * take.place_x)
    y = torch.full_like(seconds, 0.5 + 0.6 * (0.5 - top) * take.place_y)
    angle = torch.zeros_like(seconds)
    way = (seconds / CROSSING_S[scene.speed]).clamp(max=1.0)
    contacts = seconds / CONTACT_PERIOD_S[scene.speed]
    if scene.motion == "bounce":
        y = (1 - top) - (1 - 2 * top) * torch.sin(math.pi * contacts).abs()
    elif scene.motion == "sway":
        x = left + (WIDTH - 2 * left) * (1 - (contacts % 2.0 - 1).abs())
    elif scene.motion == "spin":
        x, y = torch.full_like(seconds, WIDTH / 2 + 0.1 * take.place_x), torch.full_like(seconds, 0.5)
        angle = 2 * math.pi * seconds / TURN_S[scene.speed]
    directions = scene.motion.split("_")
    if "right" in directions or "left" in directions:
        x = left + (WIDTH - 2 * left) * (way if "right" in directions else 1 - way)
    if "down" in directions or "up" in directions:
        y = top + (1 - 2 * top) * (way if "down" in directions else 1 - way)
    return Track(x, y, angle)


def signed_distance(take: Take, seconds: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """How far each point of the grid `y` [H] by `x` [W] is from the shape's edge at `seconds` [F], negative inside.

    Returns [F, H, W] in scene units; outside a corner the square's and triangle's values are lower bounds.
    """
    at = track(take, seconds)
    dx, dy = x - at.x[:, None, None], y[:, None] - at.y[:, None, None]
    cos, sin = at.angle.cos()[:, None, None], at.angle.sin()[:, None, None]
    return edge_distance(take.scene.shape, cos * dx + sin * dy, cos * dy - sin * dx, take.radius)


def edge_distance(shape: str, x: Tensor, y: Tensor, radius: float) -> Tensor:
    """Signed distance of points, relative to an upright shape's centre, from its edge; a triangle points up."""
    if shape == "circle":
        return torch.hypot(x, y) - radius
    if shape == "square":
        return torch.maximum(x.abs(), y.abs()) - SQUARE_HALF_SIDE * radius
    slant = math.sqrt(3) / 2
    sides = torch.maximum(slant * x.abs() - 0.5 * y, y)
    return sides - TRIANGLE_INRADIUS * radius


SQUARE_HALF_SIDE = 0.88
TRIANGLE_INRADIUS = 0.62
AREA: dict[str, float] = {
    "circle": math.pi,
    "square": 4 * SQUARE_HALF_SIDE**2,
    "triangle": 3 * math.sqrt(3) * TRIANGLE_INRADIUS**2,
}
"""Area of each shape of radius 1."""
