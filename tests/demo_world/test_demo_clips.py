"""The demonstration's clips: names that a person recognises, one picture of them all, what they show."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from demo_world.scenes import PALETTE
from magi2.artifacts.local import LocalStore
from magi2.report import build_report
from tests.report_samples import NO_REFINER, clip, rendered
from tools.demo_clips import ExportedClip, export_clips, judgement, safe_name, write_sheet

PROMPT = "A large red circle moves slowly from left to right on a blue background, with a low tone."


def test_files_are_called_by_row_and_stay_apart_when_rows_share_a_name(tmp_path: Path, exact: Path) -> None:
    store = LocalStore(tmp_path / "store")
    clips = [replace(clip(number, NO_REFINER), names=("Red ball, fast",)) for number in (1, 2)]
    plan = rendered(store, clips, contents={"clip.mp4": exact.read_bytes()})
    exported = export_clips(store, plan.batch_id, build_report(store, plan.batch_id).done, tmp_path / "out")
    assert {each.file.name for each in exported} == {f"Red-ball-fast-{each.clip_id[:8]}.mp4" for each in clips}
    assert {(each.name, each.prompt) for each in exported} == {("Red ball, fast", each.prompt) for each in clips}
    assert all(each.file.read_bytes() == exact.read_bytes() for each in exported)
    assert len(list((tmp_path / "out").iterdir())) == 2


@pytest.mark.parametrize(
    ("name", "safe"),
    [
        ("../../etc/passwd", "etc-passwd"),
        ("-rf *; $(id)\n", "rf-id"),
        ("..", "clip"),
        ("CON\0_a__b.mp4", "CON-a-b-mp4"),
        ("红色圆形，弹跳", "红色圆形-弹跳"),
        ("word " * 40, "-".join(["word"] * 9) + "-wor"),
    ],
)
def test_a_row_name_is_only_a_name_in_the_folder(name: str, safe: str) -> None:
    assert safe_name(name) == safe
    assert len(safe_name("🙂字" * 99).encode()) < 200


def test_the_sheet_shows_every_clip_from_its_start_to_its_end(tmp_path: Path, exact: Path) -> None:
    clips = [ExportedClip(exact, name, PROMPT) for name in ("one", "two")]
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
    said = judgement(ExportedClip(exact, "as asked", PROMPT))
    assert said is not None and said.startswith("as asked: colour red, background blue, shape circle")
    said = judgement(ExportedClip(exact, "other", PROMPT.replace("red", "green").replace("low tone", "high tone")))
    assert said is not None and said.startswith("NOT as asked in colour, sound: colour red")
    assert judgement(ExportedClip(exact, "elsewhere", "A lighthouse above a stormy sea.")) is None
