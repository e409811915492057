"""What the lines of judged clips come to, and that a run goes on where it stopped."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from magi2.config.settings import Settings
from tools.tiers import AXES, Place, gpu_seconds, summed_up

LIKENESS = {"psnr_db": 40.0, "ssim": 0.99, "video_cosine": 0.999, "video_relative_l2": 0.02}


def line(name: str, tier: str, *, colour: bool = True, **likeness: float | None) -> dict[str, Any]:
    return {
        "steps": 20,
        "kind": "preview",
        "name": name,
        "tier": tier,
        "passed": {"colour": colour, "motion": True},
        "all_five": colour,
        "preview_s": 2.0,
        "likeness": {**LIKENESS, **likeness},
    }


def test_clips_that_lossless_gets_wrong_do_not_count() -> None:
    lines = [
        *(line(name, "lossless", colour=name != "c") for name in "abc"),
        *(line(name, "high", colour=name == "a", ssim=0.9 if name == "b" else 0.99) for name in "abc"),
    ]
    figures = summed_up(lines)
    high = next(row for row in figures["tiers"] if row["tier"] == "high")
    assert (high["clips"], high["right_by_lossless"], high["right_in_everything"], high["percent_right"]) == (
        3,
        2,
        1,
        50,
    )
    assert high["percent_by_measure"] == {"colour": 50, "motion": 100, "all_five": 50}
    assert high["against"]["ssim"] == {"mean": 0.96, "worst": 0.9}
    assert figures["wrong"] == [{"steps": 20, "name": "b", "tier": "high", "wrong": ["colour"]}]


def test_formats_are_held_against_bf16() -> None:
    lines = [line("a", value, colour=value != "fp8") for value in ("bf16", "fp8_experts", "fp8")]
    lines = [{"weights": each.pop("tier"), **each} for each in lines]
    figures = summed_up(lines, AXES["weights"])
    assert [(row["weights"], row["percent_right"]) for row in figures["formats"]] == [
        ("bf16", 100),
        ("fp8_experts", 100),
        ("fp8", 0),
    ]
    assert figures["wrong"] == [{"steps": 20, "name": "a", "weights": "fp8", "wrong": ["colour"]}]


def test_equal_frames_are_counted_and_have_no_psnr() -> None:
    (row, *_) = summed_up([line("a", "lossless", psnr_db=None), line("b", "lossless")])["tiers"]
    assert row["against_the_other_seed"]["equal_frames"] == 1
    assert row["against_the_other_seed"]["psnr_db"] == {"mean": 40.0, "worst": 40.0}


def test_a_line_that_was_cut_off_is_measured_again(tmp_path: Path) -> None:
    place = Place(replace(Settings(), store=str(tmp_path)), tmp_path)
    assert place.measured() == []
    place.write(line("a", "lossless"))
    place.write(line("b", "lossless"))
    place.lines.write_bytes(place.lines.read_bytes()[:-5])
    assert [each["name"] for each in place.measured()] == ["a"]


def test_the_published_profile_meets_its_gpu_seconds_when_a_branch_is_half_a_step() -> None:
    seconds = gpu_seconds(0.5)
    assert seconds["lossless"] == 933.0
    assert seconds["high"] <= 560 and seconds["draft"] <= 370
