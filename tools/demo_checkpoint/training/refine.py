"""What the refiner learns: the straight path from the enlarged, noised preview to the latents of the larger picture.

The refiner is told no time, so the direction to learn must be the same all along the path, and so it is here.
"""

from __future__ import annotations

from torch import Tensor

from magi2.models.refiner.context import RefinerContext
from magi2.models.refiner.model import RefinerModel
from magi2.sampling.refine import add_refiner_noise, upsample_latents


def refiner_loss(
    model: RefinerModel, context: RefinerContext, preview: Tensor, refined: Tensor, noise: Tensor, sigma: float
) -> Tensor:
    """Mean squared error of the velocity at `sigma` on the way from the refiner's start to `refined` [1, C, T, H, W].

    `preview` [1, C, (T + 1) / 2, h, w] is enlarged and mixed with `noise` (shaped as `refined`) as rendering does it.
    x = (1 - sigma) refined + sigma start, target start - refined, so that the sampler's x - sigma v is `refined`.
    """
    start = add_refiner_noise(upsample_latents(preview, (refined.shape[3], refined.shape[4])), noise)
    velocity: Tensor = model((1 - sigma) * refined + sigma * start, context)
    return (velocity - (start - refined)).square().mean()
