"""Operations on video tensors that the Wan and the turbo networks share.

Everything takes and returns video tensors [B,C,T,H,W] and works in any dtype.
"""

# Shapes: B clips, C channels, T frames, H rows, W columns

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def pack(pixels: Tensor) -> Tensor:
    """[B,C,T,2H,2W] -> [B,4C,T,H,W]: row q, column r of a 2x2 cell go to channel `4c + 2r + q` (columns slower)."""
    b, c, t, h, w = pixels.shape
    cells = pixels.reshape(b, c, t, h // 2, 2, w // 2, 2)
    return cells.permute(0, 1, 6, 4, 2, 3, 5).reshape(b, 4 * c, t, h // 2, w // 2)


def unpack(packed: Tensor) -> Tensor:
    """[B,4C,T,H,W] -> [B,C,T,2H,2W], the inverse of `pack`."""
    b, c, t, h, w = packed.shape
    cells = packed.reshape(b, c // 4, 2, 2, t, h, w)
    return cells.permute(0, 1, 4, 5, 3, 6, 2).reshape(b, c // 4, t, 2 * h, 2 * w)


def double_space(x: Tensor) -> Tensor:
    """[B,C,T,H,W] -> [B,C,T,2H,2W]: every pixel becomes a 2x2 cell; equals nearest-exact interpolation by 2."""
    b, c, t, h, w = x.shape
    return x[:, :, :, :, None, :, None].expand(b, c, t, h, 2, w, 2).reshape(b, c, t, 2 * h, 2 * w)


def interleave_halves(x: Tensor) -> Tensor:
    """[B,2C,T,H,W] -> [B,C,2T,H,W]: the first half of the channels becomes frame 2t, the second half frame 2t+1."""
    return torch.stack(x.chunk(2, dim=1), dim=3).flatten(2, 3)


class DoubleSpace(nn.Module):
    """`double_space` as a layer."""

    def forward(self, x: Tensor) -> Tensor:
        return double_space(x)


class FrameConv(nn.Module):
    """A 3x3 convolution of each frame with the parameters of an `nn.Conv2d`, width kept.

    It runs as a 3-D convolution, so that frames need not be moved into the batch and back.
    """

    def __init__(self, channels: int, *, stride: int = 1, padding: int = 1) -> None:
        super().__init__()
        like = nn.Conv2d(channels, channels, 3)
        self.weight, self.bias = like.weight, like.bias
        self.stride, self.padding = stride, padding

    def forward(self, x: Tensor) -> Tensor:
        stride, padding = (1, self.stride, self.stride), (0, self.padding, self.padding)
        return F.conv3d(x, self.weight.unsqueeze(2), self.bias, stride, padding)


def average_down(x: Tensor, out_channels: int, time_factor: int, space_factor: int) -> Tensor:
    """[B,C,T,H,W] -> [B,out_channels,T/ft,H/fs,W/fs]: cells gathered into channels, groups of channels averaged.

    Frames are completed to a multiple of ft with zeros in FRONT, so a lone first frame is averaged with black.
    """
    missing = -x.shape[2] % time_factor
    x = F.pad(x, (0, 0, 0, 0, missing, 0))
    b, c, t, h, w = x.shape
    ft, fs = time_factor, space_factor
    cells = x.reshape(b, c, t // ft, ft, h // fs, fs, w // fs, fs).permute(0, 1, 3, 5, 7, 2, 4, 6)
    return cells.reshape(b, out_channels, -1, t // ft, h // fs, w // fs).mean(dim=2)


def repeat_up(x: Tensor, out_channels: int, time_factor: int, space_factor: int, *, first_chunk: bool) -> Tensor:
    """[B,C,T,H,W] -> [B,out_channels,T*ft,H*fs,W*fs]: repeated channels spread over cells.

    In the first chunk of a clip the first `ft - 1` frames are dropped.
    """
    b, c, t, h, w = x.shape
    ft, fs = time_factor, space_factor
    repeats = out_channels * ft * fs * fs // c
    cells = x.unsqueeze(2).expand(b, c, repeats, t, h, w).reshape(b, out_channels, ft, fs, fs, t, h, w)
    spread = cells.permute(0, 1, 5, 2, 6, 3, 7, 4).reshape(b, out_channels, t * ft, h * fs, w * fs)
    return spread[:, :, ft - 1 :] if first_chunk else spread
