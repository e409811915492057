"""Decoding a 1088x1920 clip: windows of the turbo decoder, and the sound of ten seconds."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import nn

from benchmarks.measure import timed
from magi2.models.audio_vae.config import AudioVaeConfig, OobleckConfig
from magi2.models.audio_vae.init import init_random_
from magi2.models.audio_vae.model import AudioDecoder
from magi2.models.turbo_vae.config import PUBLISHED_TURBO_DECODER
from magi2.models.turbo_vae.decoder import TurboDecoder
from magi2.models.turbo_vae.frames import convolution_layout

LATENTS = (1, 48, 63, 68, 120)
AUDIO_LATENTS = 250


@torch.no_grad()
def run(device: torch.device) -> list[str]:
    """A line for each decoder: milliseconds and the peak of memory, weights included."""
    return [_turbo(device), _audio(device)]


def _turbo(device: torch.device) -> str:
    with torch.device(device):
        decoder = TurboDecoder(PUBLISHED_TURBO_DECODER)
    for parameter in decoder.parameters():
        scale = parameter[0].numel() ** -0.5 if parameter.dim() > 1 else 0.1
        parameter.requires_grad_(False).normal_(std=scale)
    for conv in (module for module in decoder.modules() if isinstance(module, nn.Conv3d)):
        conv.to(memory_format=convolution_layout(device))  # type: ignore[call-overload]
    latents = torch.randn(LATENTS, device=device)
    windows = decoder.plan(LATENTS[2])
    torch.cuda.reset_peak_memory_stats(device)
    first = timed(lambda: decoder.decode_window(latents, windows[0]), 2)
    middle = timed(lambda: decoder.decode_window(latents, windows[3]), 2)
    whole = timed(lambda: [frames.shape for frames in decoder.decode(latents)], 1, warm_up=0)
    peak = torch.cuda.max_memory_allocated(device) / 2**30
    return (
        f"turbo decoder, 249 frames of 1088x1920 in {len(windows)} windows: first {first:.0f} ms, "
        f"middle {middle:.0f} ms, clip {whole / 1e3:.2f} s, peak {peak:.1f} GiB"
    )


def _audio(device: torch.device) -> str:
    encoder = OobleckConfig(2, channels=128, c_mults=(1, 2, 4, 8, 16), strides=(2, 4, 4, 8, 8), latent_dim=128)
    decoder = AudioDecoder(AudioVaeConfig(encoder, replace(encoder, latent_dim=64))).to(device)
    init_random_(decoder, torch.Generator(device).manual_seed(0))
    latents = torch.randn(1, AUDIO_LATENTS, 64, device=device)
    torch.cuda.reset_peak_memory_stats(device)
    base = torch.cuda.memory_allocated(device)
    span = timed(lambda: decoder.decode(latents), 3)
    peak = (torch.cuda.max_memory_allocated(device) - base) / 2**30
    return f"audio decoder, 10 s in fp32: {span:.0f} ms, {peak:.1f} GiB besides the weights"
