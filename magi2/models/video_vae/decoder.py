"""Wan2.2 decoder: normalised latents to pixels, one latent frame at a time."""

# Shapes: B clips, T latent frames, h x w latent cells, H x W pixels; strides 4 in time and 16 in space as published

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from magi2.errors import ContractError
from magi2.models.video_vae.config import WanVaeConfig
from magi2.models.video_vae.layers import ChannelNorm, ChunkCache, Middle, UpLevel, causal_conv, run_causal
from magi2.models.video_vae.layout import unpack
from magi2.models.video_vae.statistics import denormalise


class DecoderNetwork(nn.Module):
    """One latent frame to packed pixels: one frame for the first of a clip, four for each later one."""

    def __init__(self, config: WanVaeConfig) -> None:
        super().__init__()
        levels = config.decoder_levels
        self.conv1 = causal_conv(config.latent_channels, levels[0].in_channels)
        self.middle = Middle(levels[0].in_channels)
        self.upsamples = nn.ModuleList(UpLevel(level, config.encoder_blocks + 1) for level in levels)
        width = levels[-1].out_channels
        self.head = nn.Sequential(ChannelNorm(width), nn.SiLU(), causal_conv(width, 12))

    def forward(self, latents: Tensor, cache: ChunkCache) -> Tensor:
        x = self.middle(self.conv1(cache.extend(self.conv1, latents, 2)), cache)
        for level in self.upsamples:
            x = level(x, cache)
        return run_causal(self.head, x, cache)


class WanDecoder(nn.Module):
    """The decoding half of the Wan2.2 video autoencoder, the slower and finer alternative to the turbo decoder.

    Parameters have the published names (`decoder.*`, `conv2.*`). It computes in the dtype of its parameters.
    Source: decoding procedure of the Wan2.2 release; MAGI-2 preview ships the weights without one.
    """

    def __init__(self, config: WanVaeConfig) -> None:
        super().__init__()
        self.config = config
        self.conv2 = nn.Conv3d(config.latent_channels, config.latent_channels, 1)
        self.decoder = DecoderNetwork(config)

    def decode(self, latents: Tensor) -> Iterator[Tensor]:
        """Yields RGB frame groups [B,3,f,H,W] of normalised `latents` [B,48,T,h,w]: f is 1, then 4, 4, ...

        4T - 3 frames in all, nominally in [-1,1] but NOT clamped, in the dtype of the parameters. Only the group in
        work and two frames per layer are in memory, so a clip's length does not matter. Gradients flow to
        parameters that ask for them. Raises: ContractError on another layout.
        """
        if latents.ndim != 5 or latents.shape[1] != self.config.latent_channels or latents.numel() == 0:
            channels = self.config.latent_channels
            raise ContractError(f"the video decoder takes latents [B,{channels},T,h,w], got {tuple(latents.shape)}")
        return self._stream(latents)

    def _stream(self, latents: Tensor) -> Iterator[Tensor]:
        weight, cache = self.conv2.weight, ChunkCache()
        for frame in torch.split(latents, 1, dim=2):
            chunk = self.conv2(denormalise(frame.to(weight.device)).to(weight.dtype))
            yield unpack(self.decoder(chunk, cache))
            cache.is_first_chunk = False
