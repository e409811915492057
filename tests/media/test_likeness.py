"""PSNR and SSIM of two files: what is equal is equal, and less alike is less."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from magi2.errors import MediaError
from magi2.media.ffmpeg import find_ffmpeg
from magi2.media.likeness import picture_likeness, ssim
from tests.media.media_clips import write_lossless

pytestmark = pytest.mark.slow  # it writes and reads videos
FRAMES = torch.randint(40, 200, (3, 32, 48, 3), generator=torch.Generator().manual_seed(1), dtype=torch.uint8)


def write(path: Path, frames: Tensor) -> Path:
    return write_lossless(path, frames, program=find_ffmpeg())


def test_equal_pictures_have_no_psnr_and_others_that_of_their_difference(tmp_path: Path) -> None:
    one, moved = write(tmp_path / "a.mkv", FRAMES), write(tmp_path / "b.mkv", FRAMES + 10)
    same = picture_likeness(one, one)
    assert same.psnr_db is None and same.ssim == pytest.approx(1.0)
    found = picture_likeness(one, moved)
    assert found.psnr_db == pytest.approx(28.13, abs=0.01)  # 10 log10(255^2 / 10^2)
    assert 0.9 < found.ssim < 1


def test_noise_costs_more_likeness_than_brightness() -> None:
    frame = FRAMES[0]
    noisy = (frame.int() + torch.randint(-10, 11, frame.shape, generator=torch.Generator().manual_seed(2))).byte()
    assert ssim(frame, frame.flip(0)) < ssim(frame, noisy) < ssim(frame, frame + 10) < 1


@pytest.mark.parametrize(
    ("other", "reason"),
    [(FRAMES[:2], "after 2 frames one of them ends"), (FRAMES[:, :, :32], "48x32 and 32x32 are not compared")],
)
def test_files_of_other_size_or_length_are_refused(other: Tensor, reason: str, tmp_path: Path) -> None:
    with pytest.raises(MediaError, match=reason):
        picture_likeness(write(tmp_path / "a.mkv", FRAMES), write(tmp_path / "b.mkv", other))
