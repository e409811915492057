"""Building blocks of the Wan2.2 video autoencoder. Member names are those of the published checkpoint.

Time is causal: a clip passes in chunks, and each temporal layer sees the last frames of the chunk before, which a
`ChunkCache` carries. The first chunk sees zeros.
Source: Wan2.2 video VAE.
"""

# Shapes: B clips, C channels, T frames, H rows, W columns, P = H * W positions

from __future__ import annotations

import math
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from magi2.models.video_vae.config import WanLevel
from magi2.models.video_vae.layout import DoubleSpace, FrameConv, average_down, interleave_halves, repeat_up


class ChunkCache:
    """Frames that the temporal layers remember between the chunks of one clip."""

    def __init__(self) -> None:
        self.is_first_chunk = True
        self._past: dict[nn.Module, Tensor] = {}

    def extend(self, owner: nn.Module, x: Tensor, count: int) -> Tensor:
        """`x` [B,C,T,H,W] behind the `count` frames `owner` saw last (zeros before any); remembers the new ones."""
        b, c, _, h, w = x.shape
        past = self._past.get(owner)
        extended = torch.cat([x.new_zeros(b, c, count, h, w) if past is None else past, x], dim=2)
        # A copy: a view would keep the whole chunk alive.
        self._past[owner] = extended[:, :, -count:].clone()
        return extended


class ChannelNorm(nn.Module):
    """Each voxel's channel vector scaled to length sqrt(C), times `gamma`; no epsilon but a floor of 1e-12."""

    def __init__(self, channels: int, dims: int = 3) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(channels, *[1] * dims))

    def forward(self, x: Tensor) -> Tensor:
        return F.normalize(x, dim=1, eps=1e-12) * math.sqrt(x.shape[1]) * self.gamma


def causal_conv(in_channels: int, out_channels: int) -> nn.Conv3d:
    """A 3x3x3 convolution, zero-padded in space; `run_causal` puts the past in front."""
    return nn.Conv3d(in_channels, out_channels, 3, padding=(0, 1, 1))


def run_causal(layers: nn.Sequential, x: Tensor, cache: ChunkCache) -> Tensor:
    """`layers` applied in order, every convolution seeing two frames of its past."""
    for layer in layers:
        x = layer(cache.extend(layer, x, 2) if isinstance(layer, nn.Conv3d) else x)
    return x


class ResidualBlock(nn.Module):
    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.residual = nn.Sequential(
            ChannelNorm(in_channels),
            nn.SiLU(),
            causal_conv(in_channels, out_channels),
            ChannelNorm(out_channels),
            nn.SiLU(),
            nn.Identity(),  # dropout in training; it keeps the published index of the next layer
            causal_conv(out_channels, out_channels),
        )
        changes_width = in_channels != out_channels
        self.shortcut = nn.Conv3d(in_channels, out_channels, 1) if changes_width else nn.Identity()

    def forward(self, x: Tensor, cache: ChunkCache) -> Tensor:
        shortcut: Tensor = self.shortcut(x)
        return shortcut + run_causal(self.residual, x, cache)


class FrameAttention(nn.Module):
    """Single-head attention over the positions of each frame."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = ChannelNorm(channels, dims=2)
        self.to_qkv = nn.Conv2d(channels, 3 * channels, 1)
        self.proj = nn.Conv2d(channels, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        frames = x.transpose(1, 2).flatten(0, 1)
        positions_FPC = self.norm(frames).flatten(2).transpose(1, 2)
        # As a matrix product: its result has the channels innermost, which fused attention kernels want.
        qkv = F.linear(positions_FPC, self.to_qkv.weight.flatten(1), self.to_qkv.bias).unsqueeze(1)
        query_F1PC, key_F1PC, value_F1PC = qkv.chunk(3, dim=-1)
        mixed_F1PC = F.scaled_dot_product_attention(query_F1PC, key_F1PC, value_F1PC)
        mixed = self.proj(mixed_F1PC.squeeze(1).transpose(1, 2).reshape(frames.shape))
        y: Tensor = x + mixed.unflatten(0, (x.shape[0], -1)).transpose(1, 2)
        return y


class Middle(nn.ModuleList):
    """Residual block, attention, residual block, all of one width."""

    def __init__(self, channels: int) -> None:
        super().__init__(
            [ResidualBlock(channels, channels), FrameAttention(channels), ResidualBlock(channels, channels)]
        )

    def forward(self, x: Tensor, cache: ChunkCache) -> Tensor:
        before, attention, after = self
        y: Tensor = after(attention(before(x, cache)), cache)
        return y


class Downsampler(nn.Module):
    """Halves space, then (where asked) time; the first chunk's lone frame skips the temporal half."""

    def __init__(self, channels: int, *, in_time: bool) -> None:
        super().__init__()
        self.resample = nn.Sequential(nn.ZeroPad2d((0, 1, 0, 1)), FrameConv(channels, stride=2, padding=0))
        self.time_conv = nn.Conv3d(channels, channels, (3, 1, 1), stride=(2, 1, 1)) if in_time else None

    def forward(self, x: Tensor, cache: ChunkCache) -> Tensor:
        x = self.resample(x)
        if self.time_conv is None:
            return x
        extended = cache.extend(self.time_conv, x, 1)
        if not cache.is_first_chunk:
            x = self.time_conv(extended)
        return x


class Upsampler(nn.Module):
    """Doubles (where asked) time, then space; the first chunk's lone frame stays one frame and is not remembered."""

    def __init__(self, channels: int, *, in_time: bool) -> None:
        super().__init__()
        self.resample = nn.Sequential(DoubleSpace(), FrameConv(channels))
        self.time_conv = nn.Conv3d(channels, 2 * channels, (3, 1, 1)) if in_time else None

    def forward(self, x: Tensor, cache: ChunkCache) -> Tensor:
        if self.time_conv is not None and not cache.is_first_chunk:
            x = interleave_halves(self.time_conv(cache.extend(self.time_conv, x, 2)))
        y: Tensor = self.resample(x)
        return y


class DownLevel(nn.Module):
    """Residual blocks and a downsampler beside an averaging shortcut."""

    def __init__(self, level: WanLevel, blocks: int) -> None:
        super().__init__()
        self.level = level
        widths = [level.in_channels] + [level.out_channels] * blocks
        self.downsamples = nn.ModuleList(ResidualBlock(a, b) for a, b in pairwise(widths))
        if level.resamples_space:
            self.downsamples.append(Downsampler(level.out_channels, in_time=level.resamples_time))

    def forward(self, x: Tensor, cache: ChunkCache) -> Tensor:
        shortcut = average_down(x, self.level.out_channels, *self.level.factors)
        for layer in self.downsamples:
            x = layer(x, cache)
        return x + shortcut


class UpLevel(nn.Module):
    """Residual blocks and an upsampler beside a repeating shortcut; the finest level has blocks only."""

    def __init__(self, level: WanLevel, blocks: int) -> None:
        super().__init__()
        self.level = level
        widths = [level.in_channels] + [level.out_channels] * blocks
        self.upsamples = nn.ModuleList(ResidualBlock(a, b) for a, b in pairwise(widths))
        if level.resamples_space:
            self.upsamples.append(Upsampler(level.out_channels, in_time=level.resamples_time))

    def forward(self, x: Tensor, cache: ChunkCache) -> Tensor:
        y = x
        for layer in self.upsamples:
            y = layer(y, cache)
        if not self.level.resamples_space:
            return y
        first = cache.is_first_chunk
        return y + repeat_up(x, self.level.out_channels, *self.level.factors, first_chunk=first)
