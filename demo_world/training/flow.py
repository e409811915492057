"""Flow matching: the straight path from clean latents to noise, and the loss of a model that predicts its direction."""

# Shapes: B clips

from __future__ import annotations

import torch
from torch import Tensor

from demo_world.training.batches import Batch, predict
from magi2.models.preview.layout import ClipLayout
from magi2.models.preview.model import PreviewModel

SHIFTS = (5.0, 2.5)
"""Half of the clips are noised as a sampler of either shift would; both put most weight on the noisy end."""
SIGMA_RANGE = (1e-3, 0.9999)
AUDIO_WEIGHT = 0.5
TRAIN_STEPS = 1000


def draw_sigmas(count: int, generator: torch.Generator) -> Tensor:
    """Noise levels [count] fp32 of a batch: s u / (1 + (s - 1) u), u uniform, s one of the two shifts."""
    uniform, coin = torch.rand(2, count, generator=generator, device=generator.device)
    shift = torch.where(coin < 0.5, *SHIFTS)
    sigmas: Tensor = shift * uniform / (1 + (shift - 1) * uniform)
    return sigmas.clamp(*SIGMA_RANGE)


def flow_loss(
    model: PreviewModel, batch: Batch, sigmas: Tensor, noise: tuple[Tensor, Tensor], layout: ClipLayout
) -> tuple[Tensor, Tensor]:
    """Mean squared errors (video, audio) of the predicted velocity at `sigmas` [B]; `noise` is shaped as the latents.

    x = (1 - sigma) x0 + sigma eps, target eps - x0, so that the sampler's x0 is x - sigma v. The model is told
    floor(1000 sigma), since the sampler passes whole timesteps.
    """
    clean = batch.video, batch.audio
    levels = sigmas.view(-1, 1, 1, 1, 1), sigmas.view(-1, 1, 1)
    noisy = [(1 - level) * x0 + level * eps for level, x0, eps in zip(levels, clean, noise, strict=True)]
    velocity = predict(model, batch, noisy[0], noisy[1], torch.floor(sigmas * TRAIN_STEPS), layout)
    video, audio = ((v - (eps - x0)).square().mean() for v, eps, x0 in zip(velocity, noise, clean, strict=True))
    return video, audio
