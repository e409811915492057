"""8-bit conversion against golden vectors; flags for dead clips."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from magi2.errors import ContractError
from magi2.media.frames import FrameStatistics, to_uint8


def live_pixels(frames: int = 4) -> torch.Tensor:
    return torch.rand(1, 3, frames, 16, 24, generator=torch.Generator().manual_seed(1)) * 2 - 1


def statistics_of(pixels: torch.Tensor, samples: torch.Tensor | None) -> FrameStatistics:
    statistics = FrameStatistics()
    for window in pixels.split(3, dim=2):
        statistics.add_frames(window, to_uint8(window))
    if samples is not None:
        statistics.add_audio(samples)
    return statistics


SOUND = 0.1 * torch.sin(torch.arange(4410) / 10).repeat(2, 1)


def test_truncation_matches_golden_exactly(golden: Path, device: torch.device) -> None:
    tensors = load_file(golden / "output/postprocess.safetensors")
    assert torch.equal(to_uint8(tensors["decoded"].to(device), "truncate").cpu(), tensors["uint8"])


def test_rounding_is_within_one_level_of_golden_and_brighter(golden: Path) -> None:
    tensors = load_file(golden / "output/postprocess.safetensors")
    difference = to_uint8(tensors["decoded"]).int() - tensors["uint8"].int()
    assert set(difference.unique().tolist()) == {0, 1}


def test_values_out_of_range_are_clamped_and_nan_is_black() -> None:
    pixels = torch.tensor([-5.0, 5.0, float("nan"), float("inf"), float("-inf"), 0.0]).expand(1, 3, 1, 1, 6)
    assert to_uint8(pixels)[0, 0, :, 0].tolist() == [0, 255, 0, 255, 0, 128]


@pytest.mark.parametrize(
    "pixels", [torch.zeros(3, 1, 4, 4), torch.zeros(2, 3, 1, 4, 4), torch.zeros(1, 3, 1, 4, 4).int()]
)
def test_pixels_of_another_shape_are_refused(pixels: torch.Tensor) -> None:
    with pytest.raises(ContractError, match="decoded pixels"):
        to_uint8(pixels)


def test_a_live_clip_has_no_flag() -> None:
    statistics = statistics_of(live_pixels(7), SOUND)
    assert statistics.flags == ()
    assert statistics.frame_count == 7


def test_dead_clips_are_flagged() -> None:
    still = live_pixels(1).expand(-1, -1, 5, -1, -1)
    assert statistics_of(torch.full((1, 3, 5, 8, 8), -0.95), SOUND).flags == ("black", "frozen")
    assert statistics_of(still, SOUND).flags == ("frozen",)
    assert statistics_of(live_pixels(), torch.zeros(2, 4410)).flags == ("silent",)
    assert statistics_of(live_pixels(), torch.full((2, 4410), 0.4)).flags == ("silent",)
    assert statistics_of(live_pixels(), None).flags == ("silent",)
    assert FrameStatistics().flags == ("black", "silent")


def test_motion_of_one_small_object_is_not_frozen() -> None:
    pixels = torch.zeros(1, 3, 3, 64, 64)
    pixels[0, :, 2, 10:13, 10:13] = 0.5
    assert statistics_of(pixels, SOUND).flags == ()


def test_a_slow_fade_is_not_frozen() -> None:
    pixels = torch.linspace(0, 0.2, 100)[None, None, :, None, None].expand(1, 3, -1, 8, 8)
    assert statistics_of(pixels, SOUND).flags == ()


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_non_finite_pixels_and_samples_are_flagged(value: float) -> None:
    pixels = live_pixels()
    pixels[0, 1, 3, 2, 2] = value
    assert statistics_of(pixels, SOUND).flags == ("non_finite",)
    samples = SOUND.clone()
    samples[1, 7] = value
    assert "non_finite" in statistics_of(live_pixels(), samples).flags
