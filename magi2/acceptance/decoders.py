"""Decoders of the published shapes with random weights."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import nn

from magi2.models.audio_vae.config import AudioVaeConfig, OobleckConfig
from magi2.models.audio_vae.init import init_random_
from magi2.models.audio_vae.model import AudioDecoder
from magi2.models.turbo_vae.config import PUBLISHED_TURBO_DECODER
from magi2.models.turbo_vae.decoder import TurboDecoder
from magi2.models.turbo_vae.frames import convolution_layout


def random_turbo_decoder(device: torch.device, dtype: torch.dtype = torch.bfloat16) -> TurboDecoder:
    """The picture's, laid out as loading does."""
    torch.manual_seed(1)
    with torch.device(device):
        decoder = TurboDecoder(PUBLISHED_TURBO_DECODER, compute_dtype=dtype)
    for parameter in decoder.parameters():
        scale = parameter[0].numel() ** -0.5 if parameter.dim() > 1 else 0.1
        parameter.requires_grad_(False).normal_(std=scale)
    for conv in (module for module in decoder.modules() if isinstance(module, nn.Conv3d)):
        conv.to(memory_format=convolution_layout(device))  # type: ignore[call-overload]
    return decoder


def random_audio_decoder(device: torch.device) -> AudioDecoder:
    """The sound's, in fp32."""
    encoder = OobleckConfig(2, channels=128, c_mults=(1, 2, 4, 8, 16), strides=(2, 4, 4, 8, 8), latent_dim=128)
    decoder = AudioDecoder(AudioVaeConfig(encoder, replace(encoder, latent_dim=64))).to(device)
    init_random_(decoder, torch.Generator(device).manual_seed(0))
    return decoder
