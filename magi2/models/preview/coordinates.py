"""Positions of tokens: nine fp32 numbers each, position, own grid size and reference grid size, each as (t, y, x).

Source: MAGI-2 preview inference code. The rotary table stretches a position from its own to the reference grid, so
audio spans the latent frames of the video and all text tokens (unless there is just one) fall on position 0.
"""

from __future__ import annotations

import torch
from torch import Tensor

Size = tuple[int, int, int]

_INTERPOLATED_SIDE = 32  # reference height and width in the "inter" mode
_AUDIO_PER_LATENT = 8
_IMAGE_TIME_GAP = 2  # reference image k sits at latent time T + 2 + k


def video_coords(size: Size, *, interpolation: str) -> Tensor:
    """[T*h*w, 9], w fastest."""
    inter = (size[0], _INTERPOLATED_SIDE, _INTERPOLATED_SIDE)
    return _rows(_grid(size), size, size if interpolation == "extra" else inter)


def audio_coords(length: int) -> Tensor:
    """[A, 9]: stretched to the latent frames that the audio accompanies."""
    return _rows(_line(0, length), (length, 1, 1), ((length - 1) // _AUDIO_PER_LATENT + 1, 1, 1))


def text_coords(length: int) -> Tensor:
    """[L, 9]: positions -L to -1 before stretching."""
    return _rows(_line(-length, 0), (length, 1, 1), (1, 1, 1))


def figure_coords(index: int, size: tuple[int, int], latent_frames: int) -> Tensor:
    """[1, 9]: the figure token of reference image `index`, beside the image's first cell."""
    position = torch.tensor([[latent_frames + _IMAGE_TIME_GAP + index, -1, -1]], dtype=torch.float32)
    return _rows(position, (1, *size), (1, *size))


def image_coords(index: int, size: tuple[int, int], latent_frames: int) -> Tensor:
    """[h*w, 9]: the cells of reference image `index`, later than all video."""
    offset = torch.tensor([latent_frames + _IMAGE_TIME_GAP + index, 0, 0], dtype=torch.float32)
    return _rows(_grid((1, *size)) + offset, (1, *size), (1, *size))


def padding_coords(length: int) -> Tensor:
    """[p, 9]: own and reference grid are the same, a line."""
    return _rows(_line(0, length), (length, 1, 1), (length, 1, 1))


def _rows(position: Tensor, size: Size, reference: Size) -> Tensor:
    sizes = torch.tensor([*size, *reference], dtype=torch.float32)
    return torch.cat([position, sizes.expand(len(position), -1)], dim=1)


def _grid(size: Size) -> Tensor:
    axes = torch.meshgrid(*(torch.arange(length, dtype=torch.float32) for length in size), indexing="ij")
    return torch.stack(axes, dim=-1).reshape(-1, 3)


def _line(start: int, stop: int) -> Tensor:
    steps = torch.arange(start, stop, dtype=torch.float32)
    return torch.nn.functional.pad(steps.unsqueeze(1), (0, 2))
