"""How like two clips look, frame by frame: PSNR and SSIM."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from magi2.errors import MediaError
from magi2.media.reading import read_frames

_PEAK = 255.0
_WINDOW, _STRIDE = 8, 4
_LUMA = (0.299, 0.587, 0.114)
_C1, _C2 = (0.01 * _PEAK) ** 2, (0.03 * _PEAK) ** 2


@dataclass(frozen=True)
class Likeness:
    """`psnr_db` over all values of all frames, None where every one is equal; `ssim` is the mean of the frames."""

    psnr_db: float | None
    ssim: float


def picture_likeness(one: Path, other: Path) -> Likeness:
    """Of two video files. Raises: MediaError when they differ in size or number of frames, or cannot be read."""
    squared, values, similar, frames = 0.0, 0, 0.0, 0
    pairs = zip(read_frames(one), read_frames(other), strict=True)
    try:
        for mine, theirs in pairs:
            if mine.shape != theirs.shape:
                sizes = " and ".join(f"{frame.shape[1]}x{frame.shape[0]}" for frame in (mine, theirs))
                raise MediaError(f"{one} and {other}: pictures of {sizes} are not compared")
            squared += float((mine.float() - theirs.float()).square().sum())
            values += mine.numel()
            similar += ssim(mine, theirs)
            frames += 1
    except ValueError as error:
        raise MediaError(f"{one} and {other}: after {frames} frames one of them ends") from error
    if not frames:
        raise MediaError(f"{one} and {other}: hold no frames")
    psnr = 10 * float(torch.log10(torch.tensor(_PEAK**2 * values / squared))) if squared else None
    return Likeness(psnr, similar / frames)


def ssim(one: Tensor, other: Tensor) -> float:
    """Structural similarity of two frames, uint8 [H, W, 3]: the mean over windows of 8 x 8 pixels of their luma."""
    x, y = ((frame.double() @ torch.tensor(_LUMA, dtype=torch.float64))[None, None] for frame in (one, other))

    def means(plane: Tensor) -> Tensor:
        return F.avg_pool2d(plane, _WINDOW, _STRIDE)

    mean_x, mean_y = means(x), means(y)
    var_x, var_y = means(x * x) - mean_x**2, means(y * y) - mean_y**2
    covariance = means(x * y) - mean_x * mean_y
    similar = (2 * mean_x * mean_y + _C1) * (2 * covariance + _C2)
    return float((similar / ((mean_x**2 + mean_y**2 + _C1) * (var_x + var_y + _C2))).mean())
