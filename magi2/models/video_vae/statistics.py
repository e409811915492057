"""Mean and deviation of the 48 latent channels: the one place that turns latents into what the transformers see.

Source: Wan2.2 video VAE, as shipped with MAGI-2 preview.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # configurations read `LATENT_CHANNELS` where there may be no torch
    import torch
    from torch import Tensor

# fmt: off
LATENT_MEAN: tuple[float, ...] = (
    -0.2289, -0.0052, -0.1323, -0.2339, -0.2799,  0.0174,  0.1838,  0.1557,
    -0.1382,  0.0542,  0.2813,  0.0891,  0.1570, -0.0098,  0.0375, -0.1825,
    -0.2246, -0.1207, -0.0698,  0.5109,  0.2665, -0.2108, -0.2158,  0.2502,
    -0.2055, -0.0322,  0.1109,  0.1567, -0.0729,  0.0899, -0.2799, -0.1230,
    -0.0313, -0.1649,  0.0117,  0.0723, -0.2839, -0.2083, -0.0520,  0.3748,
     0.0152,  0.1957,  0.1433, -0.2944,  0.3573, -0.0548, -0.1681, -0.0667,
)
LATENT_STD: tuple[float, ...] = (
    0.4765, 1.0364, 0.4514, 1.1677, 0.5313, 0.4990, 0.4818, 0.5013,
    0.8158, 1.0344, 0.5894, 1.0901, 0.6885, 0.6165, 0.8454, 0.4978,
    0.5759, 0.3523, 0.7135, 0.6804, 0.5833, 1.4146, 0.8986, 0.5659,
    0.7069, 0.5338, 0.4889, 0.4917, 0.4069, 0.4999, 0.6866, 0.4093,
    0.5709, 0.6065, 0.6415, 0.4944, 0.5726, 1.2042, 0.5458, 1.6887,
    0.3971, 1.0600, 0.3943, 0.5537, 0.5444, 0.4089, 0.7468, 0.7744,
)
# fmt: on
LATENT_CHANNELS = len(LATENT_MEAN)


def normalise(latents: Tensor) -> Tensor:
    """`(latents - mean) / std` per channel of [B,48,T,H,W], in fp32 whatever comes in."""
    mean, inverse_std = _columns(latents.device)
    return (latents.float() - mean) * inverse_std


def denormalise(latents: Tensor) -> Tensor:
    """`latents * std + mean` per channel of [B,48,T,H,W], in fp32 whatever comes in."""
    mean, inverse_std = _columns(latents.device)
    return latents.float() / inverse_std + mean


def _columns(device: torch.device) -> tuple[Tensor, Tensor]:
    import torch

    mean = torch.tensor(LATENT_MEAN, device=device).view(1, -1, 1, 1, 1)
    std = torch.tensor(LATENT_STD, device=device).view(1, -1, 1, 1, 1)
    # The published networks keep 1/std in fp32 and divide by it; going through it keeps the last bit equal.
    return mean, 1.0 / std
