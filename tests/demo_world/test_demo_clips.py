"""The demonstration's clips: names that a person recognises, one picture of them all, what they show."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from demo_world.scenes import PALETTE
from tools.demo_clips import DeliveredClip, judgement, write_sheet

PROMPT = "A large red circle moves slowly from left to right on a blue background, with a low tone."


def test_the_sheet_shows_every_clip_from_its_start_to_its_end(tmp_path: Path, exact: Path) -> None:
    clips = [DeliveredClip(exact, name, PROMPT) for name in ("one", "two")]
    write_sheet(clips, tmp_path / "sheet.png")
    with Image.open(tmp_path / "sheet.png") as sheet:
        pixels = np.asarray(sheet.convert("RGB")).astype(int)
    strips = np.split(pixels, 2)
    assert not np.array_equal(strips[0], strips[1])  # the names differ
    red = np.abs(strips[0] - PALETTE["red"]).sum(axis=2) < 60
    cells = np.array_split(red, 6, axis=1)
    centres = [float(np.nonzero(cell)[1].mean()) for cell in cells]
    assert centres == sorted(centres) and centres[-1] > 2 * centres[0]


def test_a_clip_is_held_against_its_prompt_and_other_prompts_are_left_alone(exact: Path) -> None:
    said = judgement(DeliveredClip(exact, "as asked", PROMPT))
    assert said is not None and said.startswith("as asked: colour red, background blue, shape circle")
    said = judgement(DeliveredClip(exact, "other", PROMPT.replace("red", "green").replace("low tone", "high tone")))
    assert said is not None and said.startswith("NOT as asked in colour, sound: colour red")
    assert judgement(DeliveredClip(exact, "elsewhere", "A lighthouse above a stormy sea.")) is None
