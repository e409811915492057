"""A refiner of published shape with random weights."""

from __future__ import annotations

import torch

from magi2.models.refiner.config import RefinerConfig
from magi2.models.refiner.model import RefinerModel


def random_weights(device: torch.device, config: RefinerConfig, dtype: torch.dtype = torch.bfloat16) -> RefinerModel:
    """A refiner on `device` whose weights keep activations near one, in plain torch."""
    with torch.device(device):  # not on meta: its tables are no parameters
        model = RefinerModel(config, compute_dtype=dtype)
    model.to(device)  # its rotary bands are made on the CPU wherever the rest is
    for parameter in model.parameters():
        parameter.requires_grad_(False).normal_(std=parameter.shape[-1] ** -0.5 if parameter.dim() > 1 else 0.1)
    return model.eval()
