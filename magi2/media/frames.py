"""Decoded pixels to 8-bit frames."""

# Shapes: f frames, H x W pixels; the decoder gives [1, 3, f, H, W], everything after it [f, H, W, 3]

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from magi2.errors import ContractError

Rounding = Literal["round", "truncate"]


def to_uint8(pixels: Tensor, rounding: Rounding = "round") -> Tensor:
    """Frames [f, H, W, 3] uint8 of decoded pixels [1, 3, f, H, W], float of any kind in [-1, 1], clamped.

    "truncate" is what upstream does and darkens by half a level on average; "round" is ours. NaN becomes 0.
    Stays on the device of `pixels`. Raises: ContractError for another shape.
    """
    if pixels.dim() != 5 or pixels.shape[:2] != (1, 3) or not pixels.is_floating_point():
        raise ContractError(f"decoded pixels: {pixels.dtype} {tuple(pixels.shape)}, want float [1, 3, f, H, W]")
    levels = 255.0 * (0.5 * pixels[0].float() + 0.5).clamp(0.0, 1.0).nan_to_num(nan=0.0)
    levels = levels.round() if rounding == "round" else levels.floor()
    return levels.to(torch.uint8).permute(1, 2, 3, 0).contiguous()
