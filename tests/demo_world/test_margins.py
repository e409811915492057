"""How far good clips are from the thresholds, also where a number cannot be had of one."""

from __future__ import annotations

import pytest
import torch

from demo_world import margins
from demo_world.planted import Decoded


def test_a_clip_without_colour_says_nothing_of_lost_colour(monkeypatch: pytest.MonkeyPatch) -> None:
    grey = Decoded(torch.zeros(1, 3, 25, 32, 64), torch.zeros(2, 44_100 * 2), margins.FPS)
    monkeypatch.setattr(margins, "MOTIONS", ("still",))
    monkeypatch.setattr(margins, "draw_decoded", lambda *asked: grey)
    nearest = margins.good_clips(1, 1, lambda text: None)["nearest"]
    assert isinstance(nearest, dict) and "colourless" not in nearest and "noisy" in nearest
