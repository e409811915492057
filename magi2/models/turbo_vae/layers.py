"""Building blocks of the turbo decoder. Member names are those of the published checkpoint.

Nothing is causal: convolutions repeat the first and the last frame of the window. No norm has parameters.
Source: MAGI-2 preview inference code, turbo decoder.
"""

# Shapes: B clips, C channels, T frames, H rows, W columns

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from magi2.models.turbo_vae.config import TurboStage
from magi2.models.turbo_vae.frames import FrameMap, convolve, frame_blocks, new_frames
from magi2.models.video_vae.layout import FrameConv

NORM_EPS = 1e-8


def normalise_channels(x: Tensor, eps: float = NORM_EPS, activation: FrameMap | None = None) -> Tensor:
    """`x / sqrt(mean_c(x^2) + eps)` over the channels of [B,C,T,H,W], then the activation, in the dtype of `x`.

    Statistics and quotient are fp32: `convolve` asks for a few frames at a time, so that few exist in it.
    """
    scale = torch.rsqrt(x.float().square().mean(dim=1, keepdim=True) + eps)
    normed = (x * scale).to(x.dtype)
    return normed if activation is None else activation(normed)


class Conv(nn.Module):
    """A 3-D convolution that pads space with zeros and time not at all: `convolve` repeats the ends."""

    def __init__(self, in_channels: int, out_channels: int, kernel: tuple[int, int, int]) -> None:
        super().__init__()
        time, height, width = kernel
        self.reach, self.out_channels = (time - 1) // 2, out_channels
        self.conv = nn.Conv3d(in_channels, out_channels, kernel, padding=(0, height // 2, width // 2))

    def forward(self, frames: Tensor) -> Tensor:
        y: Tensor = self.conv(frames)
        return y


class SeparableConv(nn.Module):
    """A convolution per channel, padded like `Conv`, followed by one that mixes channels per voxel."""

    def __init__(self, in_channels: int, out_channels: int, size: int) -> None:
        super().__init__()
        self.reach, self.out_channels = size // 2, out_channels
        padding = (0, size // 2, size // 2)
        self.depthwise_conv = nn.Conv3d(in_channels, in_channels, size, padding=padding, groups=in_channels)
        self.pointwise_conv = nn.Conv3d(in_channels, out_channels, 1)

    def forward(self, frames: Tensor) -> Tensor:
        y: Tensor = self.pointwise_conv(self.depthwise_conv(frames))
        return y


class ResidualBlock(nn.Module):
    """Norm, `activation`, convolution, norm, SiLU, convolution; plus the input, normed and projected to a new width."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        activation: FrameMap,
        depthwise_kernel: int | None,
        shortcut_eps: float,
    ) -> None:
        super().__init__()
        self.activation, self.shortcut_eps = activation, shortcut_eps
        self.conv1 = _block_conv(in_channels, out_channels, depthwise_kernel)
        self.conv2 = _block_conv(out_channels, out_channels, depthwise_kernel)
        self.conv_shortcut = (
            _block_conv(in_channels, out_channels, depthwise_kernel, size=1) if in_channels != out_channels else None
        )

    def forward(self, x: Tensor) -> Tensor:
        y = convolve(self.conv1, x, prepare=partial(normalise_channels, activation=self.activation))
        prepare = partial(normalise_channels, activation=F.silu)
        return convolve(self.conv2, y, prepare=prepare, shortcut=(x, self._shortcut), overwrite=True)

    def _shortcut(self, frames: Tensor) -> Tensor:
        if self.conv_shortcut is None:
            return frames
        projected: Tensor = self.conv_shortcut(normalise_channels(frames, self.shortcut_eps))
        return projected


def _block_conv(
    in_channels: int, out_channels: int, depthwise_kernel: int | None, size: int | None = None
) -> Conv | SeparableConv:
    """A convolution of `size` cubed, by default of the size of its kind, in one piece or separable."""
    if depthwise_kernel is not None:
        return SeparableConv(in_channels, out_channels, size or depthwise_kernel)
    size = size or 3
    return Conv(in_channels, out_channels, (size, size, size))


def double_rows_and_columns(x: Tensor) -> Tensor:
    """[B,C,T,H,W] -> [B,C,T,2H,2W], channels last: every pixel becomes a 2x2 cell, as nearest-exact doubling does."""
    b, c, t, h, w = x.shape
    cells = x.permute(0, 2, 3, 4, 1)[:, :, :, None, :, None].expand(b, t, h, 2, w, 2, c)
    return cells.reshape(b, t, 2 * h, 2 * w, c).permute(0, 4, 1, 2, 3)


class Upsampler(nn.Module):
    """Doubles (where asked) time, then space. In a first window the first frame after doubling time is dropped."""

    def __init__(self, channels: int, *, in_time: bool) -> None:
        super().__init__()
        self.channels = channels
        self.time_conv = Conv(channels, 2 * channels, (3, 1, 1)) if in_time else None
        # The first of the two has no parameters; its place keeps the published name of the second.
        self.resample = nn.Sequential(nn.Identity(), FrameConv(channels))

    def forward(self, x: Tensor, is_first_window: bool) -> Tensor:
        if self.time_conv is not None:
            x = self._double_time(x, self.time_conv)[:, :, 1 if is_first_window else 0 :]
        out = new_frames(x, self.channels, x.shape[2], scale=2)
        for start, stop in frame_blocks(out):
            out[:, :, start:stop] = self.resample(double_rows_and_columns(x[:, :, start:stop]))
        return out

    def _double_time(self, x: Tensor, time_conv: Conv) -> Tensor:
        """[B,C,2T,H,W]: the first half of the convolution's channels is frame 2t, the second frame 2t+1."""
        halves = convolve(time_conv, x)
        out = new_frames(x, self.channels, 2 * x.shape[2])
        out[:, :, 0::2], out[:, :, 1::2] = halves.chunk(2, dim=1)
        return out


class Blocks(nn.Module):
    """The middle of the network: residual blocks of one width."""

    def __init__(self, channels: int, count: int, *, depthwise_kernel: int | None, shortcut_eps: float) -> None:
        super().__init__()
        self.resnets = nn.ModuleList(
            ResidualBlock(
                channels,
                channels,
                activation=F.silu,
                depthwise_kernel=depthwise_kernel,
                shortcut_eps=shortcut_eps,
            )
            for _ in range(count)
        )

    def forward(self, x: Tensor) -> Tensor:
        for block in self.resnets:
            x = block(x)
        return x


class Stage(nn.Module):
    """Width change, upsampling, residual blocks; these have ReLU in a stage that upsamples, else SiLU."""

    def __init__(self, stage: TurboStage, *, shortcut_eps: float) -> None:
        super().__init__()

        def block(in_channels: int, activation: FrameMap) -> ResidualBlock:
            return ResidualBlock(
                in_channels,
                stage.out_channels,
                activation=activation,
                depthwise_kernel=stage.depthwise_kernel,
                shortcut_eps=shortcut_eps,
            )

        changes_width = stage.in_channels != stage.out_channels
        self.conv_in = block(stage.in_channels, F.silu) if changes_width else None
        self.upsamplers = nn.ModuleList(
            [Upsampler(stage.out_channels, in_time=stage.doubles_time)] if stage.doubles_space else []
        )
        activation = F.relu if stage.doubles_space else F.silu
        self.resnets = nn.ModuleList(block(stage.out_channels, activation) for _ in range(stage.blocks))

    def forward(self, x: Tensor, is_first_window: bool) -> Tensor:
        if self.conv_in is not None:
            x = self.conv_in(x)
        for upsampler in self.upsamplers:
            x = upsampler(x, is_first_window)
        for block in self.resnets:
            x = block(x)
        return x
