"""Wan2.2 encoder: pixels to normalised latents, used for the conditioning image."""

# Shapes: B clips, F pixel frames, T latent frames, H x W pixels; strides 4 in time and 16 in space as published

from __future__ import annotations

import torch
from torch import Tensor, nn

from magi2.errors import ContractError, InputError
from magi2.models.video_vae.config import WanVaeConfig
from magi2.models.video_vae.layers import ChannelNorm, ChunkCache, DownLevel, Middle, causal_conv, run_causal
from magi2.models.video_vae.layout import pack
from magi2.models.video_vae.statistics import normalise


class EncoderNetwork(nn.Module):
    """Packed pixels of one chunk to the two halves (mean, log-variance) of its latent frames."""

    def __init__(self, config: WanVaeConfig) -> None:
        super().__init__()
        levels = config.encoder_levels
        self.conv1 = causal_conv(12, levels[0].in_channels)
        self.downsamples = nn.ModuleList(DownLevel(level, config.encoder_blocks) for level in levels)
        width = levels[-1].out_channels
        self.middle = Middle(width)
        self.head = nn.Sequential(ChannelNorm(width), nn.SiLU(), causal_conv(width, 2 * config.latent_channels))

    def forward(self, packed: Tensor, cache: ChunkCache) -> Tensor:
        x = self.conv1(cache.extend(self.conv1, packed, 2))
        for level in self.downsamples:
            x = level(x, cache)
        return run_causal(self.head, self.middle(x, cache), cache)


class WanEncoder(nn.Module):
    """The encoding half of the Wan2.2 video autoencoder.

    Parameters have the published names (`encoder.*`, `conv1.*`). It computes in the dtype of its parameters: fp32 as
    published. On NVIDIA hardware torch runs fp32 convolutions in TF32 unless told otherwise.
    Source: Wan2.2 video VAE, as used by MAGI-2 preview.
    """

    def __init__(self, config: WanVaeConfig) -> None:
        super().__init__()
        self.config = config
        self.encoder = EncoderNetwork(config)
        self.conv1 = nn.Conv3d(2 * config.latent_channels, 2 * config.latent_channels, 1)

    def encode(self, pixels: Tensor) -> Tensor:
        """Normalised latent means, fp32 [B,48,T,H/16,W/16], of RGB `pixels` [B,3,F,H,W] in [-1,1]; nothing is sampled.

        T is `1 + (F - 1) / 4`: frame 0 alone, then groups of four. A lone image is not a still clip: its temporal
        shortcut averages with a black frame. Gradients flow to parameters that ask for them.
        Raises: InputError when F is not 1 more than a multiple of 4 or a side is not a multiple of 16; ContractError
        on another layout.
        """
        self._check(pixels)
        weight = self.conv1.weight
        packed = pack(pixels.to(device=weight.device, dtype=weight.dtype))
        groups = (packed.shape[2] - 1) // self.config.temporal_stride
        cache, encoded = ChunkCache(), []
        for chunk in torch.split(packed, [1] + [self.config.temporal_stride] * groups, dim=2):
            encoded.append(self.encoder(chunk, cache))
            cache.is_first_chunk = False
        means = self.conv1(torch.cat(encoded, dim=2))[:, : self.config.latent_channels]
        return normalise(means)

    def _check(self, pixels: Tensor) -> None:
        if pixels.ndim != 5 or pixels.shape[1] != 3 or pixels.numel() == 0:
            raise ContractError(f"the video encoder takes pixels [B,3,F,H,W], got {tuple(pixels.shape)}")
        frames, height, width = pixels.shape[2:]
        in_time, in_space = self.config.temporal_stride, self.config.spatial_stride
        if frames % in_time != 1 % in_time:
            raise InputError(
                f"cannot encode {frames} frames: the count must be one more than a multiple of {in_time}",
                hint=f"use {frames - (frames - 1) % in_time} frames; the rest would not fill a latent frame",
            )
        if height % in_space or width % in_space:
            raise InputError(f"cannot encode {width}x{height} pixels: both sides must be multiples of {in_space}")
