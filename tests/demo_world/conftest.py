"""A clip that is exactly as asked."""

from __future__ import annotations

import random
from fractions import Fraction
from pathlib import Path

import pytest

from demo_world.scenes import Scene
from demo_world.sound import delivered_sound
from demo_world.takes import draw_take
from magi2.media.delivery import DeliverySpec
from tests.demo_world.clip_files import preview_picture, write_clip


@pytest.fixture(scope="session")
def exact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A delivered clip of a large red circle that moves slowly to the right on blue, with a low tone."""
    take = draw_take(Scene("circle", "red", "blue", "large", "slow", "right", "low"), random.Random(3))
    folder = tmp_path_factory.mktemp("clip")
    return write_clip(folder, preview_picture(take), delivered_sound(take), fps=Fraction(25, 2), spec=DeliverySpec())
