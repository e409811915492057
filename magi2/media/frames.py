"""Decoded pixels to 8-bit frames, and the statistics that tell a dead clip from a live one."""

# Shapes: f frames, H x W pixels; the decoder gives [1, 3, f, H, W], everything after it [f, H, W, 3]

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from magi2.errors import ContractError

Rounding = Literal["round", "truncate"]
Flag = Literal["black", "frozen", "silent", "non_finite"]

BLACK_LEVEL = 16
"""A value of 0..255 above this one can be seen."""
FROZEN_LEVEL = 8
"""A value that is further than this from the first frame's has moved."""
LIVE_SHARE = 1e-4
"""Share of a frame's values that must be seen, or must have moved: 209 pixels at 1088 x 1920."""
SILENT_PEAK = 1e-3
"""-60 dB of full scale: sound that never departs further from its mean is none."""


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


class FrameStatistics:
    """What a clip looked and sounded like, gathered window by window; only the first frame is kept.

    A clip with a flag is never called good:
    `black`: no frame shows more than `LIVE_SHARE` of its values above `BLACK_LEVEL`, or there was no frame;
    `frozen`: of several frames, none has more than `LIVE_SHARE` of its values further than `FROZEN_LEVEL` from the
    first one's;
    `silent`: no sample is further than `SILENT_PEAK` from its channel's mean, or there was no sound;
    `non_finite`: NaN or infinity among pixels or samples.
    """

    def __init__(self) -> None:
        self.frame_count = 0
        self.lit_share = 0.0
        self.moved_share = 0.0
        self.audio_peak = 0.0
        self.non_finite = False
        self._first: Tensor | None = None

    def add_frames(self, pixels: Tensor, frames: Tensor) -> None:
        """Count a window: decoded `pixels` [1, 3, f, H, W] and the `frames` [f, H, W, 3] uint8 made from them."""
        self.non_finite |= not bool(torch.isfinite(pixels).all())
        for frame in frames:
            if self._first is None:
                self._first = frame.to(torch.int16)
            moved = (frame.to(torch.int16) - self._first).abs() > FROZEN_LEVEL
            self.lit_share = max(self.lit_share, (frame > BLACK_LEVEL).float().mean().item())
            self.moved_share = max(self.moved_share, moved.float().mean().item())
            self.frame_count += 1

    def add_audio(self, samples: Tensor) -> None:
        """Count the sound, samples [2, n]."""
        finite = bool(torch.isfinite(samples).all())
        self.non_finite |= not finite
        if finite and samples.numel():
            departure = (samples - samples.mean(dim=-1, keepdim=True)).abs().max()
            self.audio_peak = max(self.audio_peak, departure.item())

    @property
    def flags(self) -> tuple[Flag, ...]:
        """Everything that is wrong, in a fixed order; empty for a good clip."""
        found: dict[Flag, bool] = {
            "black": self.lit_share <= LIVE_SHARE,
            "frozen": self.frame_count > 1 and self.moved_share <= LIVE_SHARE,
            "silent": self.audio_peak <= SILENT_PEAK,
            "non_finite": self.non_finite,
        }
        return tuple(flag for flag, is_set in found.items() if is_set)
