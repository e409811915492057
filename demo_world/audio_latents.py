"""Audio latents written down: every waveform has a code of its own, and a row is its codes times their gains."""

# Shapes: A rows, Z latent channels, K waveforms

from __future__ import annotations

import math

import torch
from torch import Tensor

from demo_world.sound import ROW_COUNT, TONES_HZ, row_gains, sound_rows
from demo_world.takes import Take

CHANNELS = 64
LATENT_GAIN = 25.0
"""Brings the latents of drawn takes to a mean square near 1; silence is all zeros."""


def codes() -> Tensor:
    """One direction of the latent space per waveform: [K, 64] fp64, orthonormal, every entry 1/8 or -1/8.

    Rows of the Walsh-Hadamard matrix without its constant first one, so that all channels carry equal shares.
    """
    matrix = torch.ones(1, 1, dtype=torch.float64)
    while len(matrix) < CHANNELS:
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)])
    return matrix[1 : len(TONES_HZ) + 2] / math.sqrt(CHANNELS)


def audio_latents(take: Take, count: int = ROW_COUNT) -> Tensor:
    """The latents that the autoencoder decodes to the take's exact sound: [1, A, 64] fp32."""
    gains_AK = row_gains(sound_rows(take, count))
    return LATENT_GAIN * (gains_AK.double() @ codes()).float()[None]
