"""Random weights for toy checkpoints of the convolutional autoencoders."""

from __future__ import annotations

import math

import torch
from torch import nn


@torch.no_grad()
def init_random_(module: nn.Module, generator: torch.Generator) -> None:
    """Fills `module` in place: each kernel keeps the variance of its input, norms scale by 1, biases are small.

    Drawn on the generator's device in the order of `named_parameters`, so one seed means one set of weights wherever
    the module is. Latents ~ N(0,1) then decode to pixels of deviation about a half, neither flat nor saturated.
    """
    for name, parameter in module.named_parameters():
        if name.endswith("gamma"):
            parameter.fill_(1.0)
            continue
        is_kernel = parameter.ndim > 1
        deviation = 1 / math.sqrt(parameter[0].numel()) if is_kernel else 0.05
        drawn = torch.randn(parameter.shape, generator=generator, device=generator.device) * deviation
        parameter.copy_(drawn)
