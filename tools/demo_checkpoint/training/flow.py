"""Flow matching: the straight path from clean latents to noise, and the loss of a model that predicts its direction."""

# Shapes: B clips

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from magi2.models.preview.model import PreviewModel
from tools.demo_checkpoint.training.batches import Example, lay_out_batch, predict

SHIFTS = (5.0, 2.5)
"""Half of the clips are noised as a sampler of either shift would; both put most weight on the noisy end."""
SIGMA_RANGE = (1e-3, 0.9999)
AUDIO_WEIGHT = 0.5
TRAIN_STEPS = 1000


def draw_sigmas(count: int, generator: torch.Generator) -> Tensor:
    """Noise levels [count] fp32 of a batch: s u / (1 + (s - 1) u), u uniform, s one of the two shifts."""
    uniform = torch.rand(count, generator=generator)
    second = torch.rand(count, generator=generator) < 0.5
    shift = torch.where(second, SHIFTS[1], SHIFTS[0])
    return (shift * uniform / (1 + (shift - 1) * uniform)).clamp(*SIGMA_RANGE)


def flow_loss(
    model: PreviewModel,
    examples: Sequence[Example],
    sigmas: Tensor,
    noise: Sequence[tuple[Tensor, Tensor]],
) -> tuple[Tensor, Tensor]:
    """Mean squared errors (video, audio) of the predicted velocity; `noise` holds each clip's, shaped as its latents.

    x = (1 - sigma) x0 + sigma eps, target eps - x0, so that the sampler's x0 is x - sigma v. The model is told
    floor(1000 sigma), since the sampler passes whole timesteps.
    """
    layout = lay_out_batch(model, examples)
    video, audio, video_targets, audio_targets = [], [], [], []
    for example, sigma, (video_noise, audio_noise) in zip(examples, sigmas, noise, strict=True):
        video.append((1 - sigma) * example.video + sigma * video_noise)
        audio.append((1 - sigma) * example.audio + sigma * audio_noise)
        video_targets.append(video_noise - example.video)
        audio_targets.append(audio_noise - example.audio)
    velocity = predict(model, video, audio, torch.floor(sigmas * TRAIN_STEPS), layout)
    video_loss = (velocity[0] - torch.cat(video_targets)).square().mean()
    audio_loss = (velocity[1] - torch.cat(audio_targets)).square().mean()
    return video_loss, audio_loss
