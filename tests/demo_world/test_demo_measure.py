"""Measuring a checkpoint over the whole path: which clips it takes, that none is made twice, and what it comes to."""

from __future__ import annotations

import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from demo_world.judge.form import measure_shape, measure_size
from demo_world.judge.looking import look
from demo_world.judge.verdict import Measured, Verdict
from demo_world.measure import __main__ as command
from demo_world.measure import judged as judging
from demo_world.measure.figures import all_figures, percentages, table, targets
from demo_world.measure.judged import Judged
from demo_world.measure.sheet import draw_sheet
from demo_world.measure.wanted import KINDS, Kind, Wanted, wanted_clips
from demo_world.reading import read_caption
from demo_world.vocabulary import FIGURE
from magi2.errors import MediaError
from tests.render_helpers import CONFIGS

PROMPT = "A red circle bounces slowly on the floor on a blue background, with a beep at every bounce."
RIGHT = {"colour": True, "background": True, "shape": True, "motion": True, "speed": True, "sound": True, "sync": True}
MEASURED = Measured("red", "blue", "circle", "small", "bounce", "slow", "beeps")


def pixels_of(image: Path) -> Tensor:
    """[1, H, W, 3] in [-1, 1]."""
    with Image.open(image) as opened:
        return torch.from_numpy(np.asarray(opened).copy())[None].float() / 127.5 - 1


def test_nothing_to_do_is_no_request(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command.main(["--processes", "0"])
    assert "argument --processes: 0 is below 1" in capsys.readouterr().err


def test_wanted_clips_are_the_same_every_time_and_refined_ones_are_the_previews(tmp_path: Path) -> None:
    wanted = [wanted_clips(6, seeds_per_prompt=2, seed=3, kinds=KINDS, images=tmp_path) for _ in range(2)]
    assert wanted[0] == wanted[1] and len({one.name for one in wanted[0]}) == 36
    by_kind = {kind: [(one.prompt, one.seed) for one in wanted[0] if one.kind == kind] for kind in KINDS}
    assert by_kind["refined"] == by_kind["preview"] and len(set(by_kind["image"])) == 12
    assert {one.row["profile"] for one in wanted[0] if one.kind == "refined"} == {"demo-refined"}


def test_reference_image_shows_what_its_prompt_does_not_say(tmp_path: Path) -> None:
    wanted = wanted_clips(12, seeds_per_prompt=1, seed=4, kinds=["image"], images=tmp_path)
    for one in wanted:
        assert FIGURE in one.prompt and one.image is not None and one.row["image"] == str(one.image)
        assert read_caption(one.prompt).colour is None
        seen = look(pixels_of(one.image), fps=25.0)
        shape = measure_shape(seen)
        found = (seen.colour, seen.background, shape, measure_size(seen, shape))
        assert found == (one.asked.colour, one.asked.background, one.asked.shape, one.asked.size)


@pytest.fixture
def configs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Profiles of the demo's names, for random weights and at the size of a stamp."""
    folder = tmp_path / "configs"
    shutil.copytree(CONFIGS, folder)
    small = "extends: tiny\npreview: {width: 64, height: 32, steps: 2}\nrefiner: null\n"
    (folder / "profiles" / "demo.yaml").write_text(f"{small}text: {{use_negative_prompt: false}}\n")
    refined = "extends: demo\nrefiner: {width: 80, height: 32, steps: 1}\n"
    (folder / "profiles" / "demo-refined.yaml").write_text(refined)
    monkeypatch.setenv("MAGI2_CONFIGS", str(folder))
    monkeypatch.setattr(command, "ProcessPoolExecutor", lambda processes, context: ThreadPoolExecutor(processes))
    return folder


@pytest.mark.demo_world
def test_command_makes_every_clip_once_and_judges_it_once(
    configs: Path, tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    out = tmp_path / "figures.json"
    arguments = ["--checkpoint", tiny_checkpoint, "--work", tmp_path / "work", "--out", out, "--prompts", 1]
    arguments += ["--seeds", 1, "--processes", 1]
    assert command.main([str(argument) for argument in arguments]) == 1, "random weights meet no target"
    first, said = json.loads(out.read_text()), capsys.readouterr()
    assert {first["percent"][name] for name in ("clips", "refined_clips", "i2v_clips")} == {1}
    assert set(first["seconds_per_clip"]["refined"]) == {
        *("enhance", "encode", "preview", "refine", "decode", "mux", "whole")
    }
    assert {wrong["name"] for wrong in first["wrong"]} == {"preview-000-0", "refined-000-0", "image-000-0"}
    assert "3/3" in said.err and "all_five" in said.out and (tmp_path / "work" / "wrong.png").is_file()
    previews = list((tmp_path / "work" / "store" / "artifacts" / "preview").rglob("manifest.json"))
    assert len(previews) == 2, "the refined clip has its preview from the store"

    def refuse(*_: object) -> None:
        raise MediaError("judged twice")

    monkeypatch.setattr(judging, "judge_clip", refuse)
    assert command.main([str(argument) for argument in arguments]) == 1
    assert json.loads(out.read_text()) == first


def test_missing_weights_are_named_before_anything_is_made(
    configs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    arguments = ["--checkpoint", str(tmp_path / "empty"), "--work", str(tmp_path / "work"), "--prompts", "1"]
    assert command.main(arguments) == 2
    assert "is missing" in capsys.readouterr().err
    assert not (tmp_path / "work" / "store").exists()


def judged_clip(kind: Kind, passed: dict[str, bool], *, error: str | None = None) -> Judged:
    wanted = Wanted(kind, f"{kind}-000-0", PROMPT, 0, read_caption(PROMPT))
    verdict = None if error else Verdict(passed, MEASURED, (0.04,))
    return Judged(wanted, verdict, error, {"preview": 2.0, "mux": 1.0})


def test_figures_tell_kinds_apart_and_name_what_is_missed_wrong_and_failed() -> None:
    wrong = {**RIGHT, "motion": False}
    found = all_figures(
        [
            judged_clip("preview", RIGHT),
            judged_clip("refined", wrong),
            judged_clip("image", {**RIGHT, "shape": False}),
            judged_clip("image", {}, error="decode: out of memory"),
        ]
    )
    percent = found["percent"]
    assert (percent["all_five"], percent["refined_all_five"], percent["i2v_shape"]) == (100.0, 0.0, 0.0)
    missed = {target["measure"] for target in found["targets"] if target["is_missed"]}
    assert missed == {"refined_all_five", "i2v_shape"}
    assert [clip["wrong"] for clip in found["wrong"]] == [("motion",), ("shape",)]
    assert found["failed"] == {"image-000-0": "decode: out of memory"}
    assert found["seconds_per_clip"]["preview"] == {"preview": 2.0, "mux": 1.0, "whole": 3.0}
    assert "0 (< 100)" in table(percent)


def test_what_was_not_made_is_no_target_missed() -> None:
    percent = percentages([judged_clip("preview", RIGHT)])
    assert not any(target.is_missed for target in targets(percent))
    assert {target.measured for target in targets(percent) if "_" in target.measure} == {100.0, None}


def test_without_wrong_clips_no_picture_is_left(tmp_path: Path) -> None:
    sheet, contact_sheet = tmp_path / "wrong.png", tmp_path / "clip.jpg"
    Image.new("RGB", (64, 32), "red").save(contact_sheet)
    wrong = replace(judged_clip("preview", {**RIGHT, "sync": False}), contact_sheet=contact_sheet)
    assert draw_sheet([wrong], sheet) == 1 and sheet.is_file()
    assert draw_sheet([judged_clip("preview", RIGHT)], sheet) == 0 and not sheet.exists()
