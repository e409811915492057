"""Coordinates of the refiner's tokens: nine fp32 numbers each, (t, h, w), sizes (T, H, W), reference sizes.

Source: MAGI-2 preview inference code, refiner data proxy (coordinates v1, interpolation "extra").
"""

from __future__ import annotations

import torch
from torch import Tensor


def video_coords(size: tuple[int, int, int], order: Tensor) -> Tensor:
    """Coordinates [N, 9] of the video tokens whose raster indices are `order` [N]; references equal the sizes."""
    _, height, width = size
    places = torch.stack([order // (height * width), order // width % height, order % width], dim=1)
    sizes = torch.tensor([*size, *size], device=order.device)
    return torch.cat([places, sizes.expand(len(order), 6)], dim=1).float()


def audio_coords(count: int, device: torch.device) -> Tensor:
    """Coordinates [count, 9] of audio rows: eight of them pass in the time of one latent frame."""
    reference = (count - 1) // 8 + 1
    return _line(torch.arange(count, device=device), count, reference)


def text_coords(count: int, device: torch.device) -> Tensor:
    """Coordinates [count, 9] of text rows; a reference of 1 leaves them unrotated unless there is exactly one."""
    return _line(torch.arange(-count, 0, device=device), count, 1)


def _line(times: Tensor, count: int, reference: int) -> Tensor:
    rest = torch.tensor([0, 0, count, 1, 1, reference, 1, 1], device=times.device)
    return torch.cat([times[:, None], rest.expand(count, 8)], dim=1).float()
