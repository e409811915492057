"""What can be seen and heard in the demo's world, and which combinations training never sees."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

Shape = Literal["circle", "square", "triangle"]
Colour = Literal["red", "green", "blue", "yellow", "purple", "white"]
Background = Literal["black", "gray", "blue", "green", "orange", "white"]
Size = Literal["small", "large"]
Speed = Literal["slow", "fast"]
Motion = Literal[
    "right", "left", "up", "down", "down_right", "up_right", "down_left", "up_left", "bounce", "sway", "spin", "still"
]
Sound = Literal["low", "mid", "high", "rise", "fall", "beeps", "buzz", "silence"]

SHAPES: tuple[Shape, ...] = get_args(Shape)
COLOURS: tuple[Colour, ...] = get_args(Colour)
BACKGROUNDS: tuple[Background, ...] = get_args(Background)
SIZES: tuple[Size, ...] = get_args(Size)
SPEEDS: tuple[Speed, ...] = get_args(Speed)
MOTIONS: tuple[Motion, ...] = get_args(Motion)
SOUNDS: tuple[Sound, ...] = get_args(Sound)

TOUCHING: frozenset[Motion] = frozenset({"bounce", "sway"})
"""Motions with contacts, the only ones that beeps can go with."""

PALETTE: Mapping[str, tuple[int, int, int]] = {
    "red": (220, 40, 40),
    "green": (40, 170, 70),
    "blue": (45, 80, 220),
    "yellow": (240, 220, 50),
    "purple": (150, 50, 190),
    "white": (242, 242, 242),
    "black": (14, 14, 14),
    "gray": (128, 128, 128),
    "orange": (240, 135, 25),
}
"""8-bit RGB of every colour, far enough apart that a compressed clip still tells them."""

HELD_OUT_SHARE = 10
"""One combination of shape, colours and motion in this many is kept for measuring."""


@dataclass(frozen=True)
class Scene:
    """One shape that moves in one way over a plain background, and one sound."""

    shape: Shape
    colour: Colour
    background: Background
    size: Size
    speed: Speed
    motion: Motion
    sound: Sound

    @property
    def is_possible(self) -> bool:
        """Whether it can be told from its surroundings, seen to turn, and beeps only where something touches."""
        visible = self.colour != self.background
        turns = self.motion != "spin" or self.shape != "circle"
        return visible and turns and (self.sound != "beeps" or self.motion in TOUCHING)

    @property
    def is_held_out(self) -> bool:
        """Whether training leaves this combination of shape, colours and motion out."""
        key = "|".join((self.shape, self.colour, self.background, self.motion))
        return hashlib.sha256(key.encode()).digest()[0] % HELD_OUT_SHARE == 0


def draw_scene(rng: random.Random, *, held_out: bool | None = None) -> Scene:
    """A possible scene, of the held-out combinations or of the others when asked; half of all contacts beep."""
    while True:
        scene = Scene(
            shape=rng.choice(SHAPES),
            colour=rng.choice(COLOURS),
            background=rng.choice(BACKGROUNDS),
            size=rng.choice(SIZES),
            speed=rng.choice(SPEEDS),
            motion=(motion := rng.choice(MOTIONS)),
            sound="beeps" if motion in TOUCHING and rng.random() < 0.5 else rng.choice(SOUNDS),
        )
        if scene.is_possible and held_out in (None, scene.is_held_out):
            return scene
