"""Filling a refiner: from the published folder, or with random values for a tiny checkpoint."""

from __future__ import annotations

from pathlib import Path

import torch

from magi2.models.checkpoint import SafetensorsFolder, load_module
from magi2.models.refiner.config import RefinerConfig
from magi2.models.refiner.model import RefinerModel, StackedNorm


def load_refiner(
    folder: Path,
    config: RefinerConfig,
    *,
    device: torch.device | str = "cpu",
    compute_dtype: torch.dtype = torch.bfloat16,
) -> RefinerModel:
    """The refiner with the weights of `folder`, in evaluation mode on `device`.

    Raises CheckpointError when a tensor is missing, unexpected or mis-shaped.
    """
    with torch.device("meta"):
        model = RefinerModel(config, compute_dtype=compute_dtype)
    load_module(model, SafetensorsFolder(folder), device=device)
    return model.eval()


@torch.no_grad()
def init_random_(model: RefinerModel, generator: torch.Generator) -> None:
    """Fill every parameter with values of the generator (a CPU one) that keep activations and output near one."""
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            is_matrix = name == "weight" and not isinstance(module, StackedNorm)
            scale = parameter.shape[1] ** -0.5 if is_matrix else 0.1
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * scale)
