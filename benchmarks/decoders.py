"""Decoding a 1088x1920 clip: windows of the turbo decoder, and the sound of ten seconds."""

from __future__ import annotations

import torch

from magi2.acceptance.decoders import random_audio_decoder, random_turbo_decoder
from magi2.acceptance.measure import GIB, timed

LATENTS = (1, 48, 63, 68, 120)
AUDIO_LATENTS = 250


@torch.no_grad()
def run(device: torch.device) -> list[str]:
    """A line for each decoder: milliseconds and the peak of memory, weights included."""
    return [_turbo(device), _audio(device)]


def _turbo(device: torch.device) -> str:
    decoder = random_turbo_decoder(device)
    latents = torch.randn(LATENTS, device=device)
    windows = decoder.plan(LATENTS[2])
    torch.cuda.reset_peak_memory_stats(device)
    first = timed(lambda: decoder.decode_window(latents, windows[0]), 2)
    middle = timed(lambda: decoder.decode_window(latents, windows[3]), 2)
    whole = timed(lambda: [frames.shape for frames in decoder.decode(latents)], 1, warm_up=0)
    peak = torch.cuda.max_memory_allocated(device) / GIB
    return (
        f"turbo decoder, 249 frames of 1088x1920 in {len(windows)} windows: first {first:.0f} ms, "
        f"middle {middle:.0f} ms, clip {whole / 1e3:.2f} s, peak {peak:.1f} GiB"
    )


def _audio(device: torch.device) -> str:
    decoder = random_audio_decoder(device)
    latents = torch.randn(1, AUDIO_LATENTS, 64, device=device)
    torch.cuda.reset_peak_memory_stats(device)
    base = torch.cuda.memory_allocated(device)
    span = timed(lambda: decoder.decode(latents), 3)
    peak = (torch.cuda.max_memory_allocated(device) - base) / GIB
    return f"audio decoder, 10 s in fp32: {span:.0f} ms, {peak:.1f} GiB besides the weights"
