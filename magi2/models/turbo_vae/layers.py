"""Building blocks of the turbo decoder. Member names are those of the published checkpoint.

Nothing is causal: convolutions repeat the first and the last frame of the window. No norm has parameters.
Source: MAGI-2 preview inference code, turbo decoder.
"""

# Shapes: B clips, C channels, T frames, H rows, W columns

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from magi2.models.turbo_vae.config import TurboStage
from magi2.models.video_vae.layout import DoubleSpace, FrameConv, interleave_halves

NORM_EPS = 1e-8
# Frames normalised at once: bounds the fp32 copy to a fraction of the activation, which reaches 5 GB in bf16.
FRAMES_PER_BLOCK = 4

Activation = Callable[[Tensor], Tensor]


def normalise_channels(x: Tensor, eps: float = NORM_EPS, activation: Activation | None = None) -> Tensor:
    """`x / sqrt(mean_c(x^2) + eps)` over the channels of [B,C,T,H,W], then the activation, in the dtype of `x`.

    Statistics and quotient are fp32; only a few frames at a time exist in it.
    """

    def one_block(block: Tensor) -> Tensor:
        wide = block.float()
        normed = (wide * torch.rsqrt(wide.square().mean(dim=1, keepdim=True) + eps)).to(x.dtype)
        return normed if activation is None else activation(normed)

    return torch.cat([one_block(block) for block in torch.split(x, FRAMES_PER_BLOCK, dim=2)], dim=2)


def repeat_ends(x: Tensor, count: int) -> Tensor:
    """[B,C,T,H,W] with the first and the last frame repeated `count` times beyond the ends."""
    if count == 0:
        return x
    shape = (-1, -1, count, -1, -1)
    return torch.cat([x[:, :, :1].expand(shape), x, x[:, :, -1:].expand(shape)], dim=2)


class Conv(nn.Module):
    """A 3-D convolution that repeats frames at the ends of time and pads space with zeros."""

    def __init__(self, in_channels: int, out_channels: int, kernel: tuple[int, int, int]) -> None:
        super().__init__()
        time, height, width = kernel
        self.time_padding = (time - 1) // 2
        self.conv = nn.Conv3d(in_channels, out_channels, kernel, padding=(0, height // 2, width // 2))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.conv(repeat_ends(x, self.time_padding))
        return y


class SeparableConv(nn.Module):
    """A convolution per channel, padded like `Conv`, followed by one that mixes channels per voxel."""

    def __init__(self, in_channels: int, out_channels: int, size: int) -> None:
        super().__init__()
        half = size // 2
        self.time_padding = half
        self.depthwise_conv = nn.Conv3d(in_channels, in_channels, size, padding=(0, half, half), groups=in_channels)
        self.pointwise_conv = nn.Conv3d(in_channels, out_channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.pointwise_conv(self.depthwise_conv(repeat_ends(x, self.time_padding)))
        return y


class ResidualBlock(nn.Module):
    """Norm, `activation`, convolution, norm, SiLU, convolution; plus the input, normed and projected to a new width."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        activation: Activation,
        depthwise_kernel: int | None,
        shortcut_eps: float,
    ) -> None:
        super().__init__()
        self.activation, self.shortcut_eps = activation, shortcut_eps
        self.conv1 = _block_conv(in_channels, out_channels, depthwise_kernel)
        self.conv2 = _block_conv(out_channels, out_channels, depthwise_kernel)
        self.conv_shortcut = Conv(in_channels, out_channels, (1, 1, 1)) if in_channels != out_channels else None

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv1(normalise_channels(x, activation=self.activation))
        y = self.conv2(normalise_channels(y, activation=F.silu))
        if self.conv_shortcut is not None:
            x = self.conv_shortcut(normalise_channels(x, self.shortcut_eps))
        total: Tensor = x + y
        return total


def _block_conv(in_channels: int, out_channels: int, depthwise_kernel: int | None) -> nn.Module:
    if depthwise_kernel is None:
        return Conv(in_channels, out_channels, (3, 3, 3))
    return SeparableConv(in_channels, out_channels, depthwise_kernel)


class Upsampler(nn.Module):
    """Doubles (where asked) time, then space. In a first window the first frame after doubling time is dropped."""

    def __init__(self, channels: int, *, in_time: bool) -> None:
        super().__init__()
        self.time_conv = Conv(channels, 2 * channels, (3, 1, 1)) if in_time else None
        self.resample = nn.Sequential(DoubleSpace(), FrameConv(channels))

    def forward(self, x: Tensor, is_first_window: bool) -> Tensor:
        if self.time_conv is not None:
            x = interleave_halves(self.time_conv(x))[:, :, 1 if is_first_window else 0 :]
        y: Tensor = self.resample(x)
        return y


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

        def block(in_channels: int, activation: Activation) -> ResidualBlock:
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
