"""Filling a refiner: from the published folder, or with random values for a tiny checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import overload

import torch

from magi2.models.checkpoint import SafetensorsFolder, load_module
from magi2.models.refiner.config import RefinerConfig
from magi2.models.refiner.context import Refiner
from magi2.models.refiner.model import RefinerModel, StackedNorm
from magi2.models.refiner.parallelize import ParallelRefiner
from magi2.parallel.mesh import Mesh


@overload
def load_refiner(
    folder: Path,
    config: RefinerConfig,
    *,
    device: torch.device | str = "cpu",
    compute_dtype: torch.dtype = torch.bfloat16,
    mesh: None = None,
) -> RefinerModel: ...


@overload
def load_refiner(
    folder: Path,
    config: RefinerConfig,
    *,
    device: torch.device | str = "cpu",
    compute_dtype: torch.dtype = torch.bfloat16,
    mesh: Mesh | None,
) -> Refiner: ...


def load_refiner(
    folder: Path,
    config: RefinerConfig,
    *,
    device: torch.device | str = "cpu",
    compute_dtype: torch.dtype = torch.bfloat16,
    mesh: Mesh | None = None,
) -> Refiner:
    """The refiner with the weights of `folder`, in evaluation mode on `device`; spread over the ranks of a `mesh`.

    Every rank holds all weights (13.5 GB as published) and reads them in one order, file by file, so that the ranks of
    a node share one read of the disk; one tensor at a time is in host memory. On an accelerator it
    computes with kernels.
    Raises CheckpointError when a tensor is missing, unexpected or mis-shaped.
    """
    with torch.device("meta"):
        model = RefinerModel(config, compute_dtype=compute_dtype)
    load_module(model, SafetensorsFolder(folder), device=device)
    model.eval()
    if model.device.type not in ("cpu", "meta"):  # on meta, names and shapes are checked and nothing computes
        # Here: a CPU machine need not have Triton.
        from magi2.models.refiner.fast_ops import use_fast_ops

        use_fast_ops(model)
    return model if mesh is None or mesh.layout.num_ranks == 1 else ParallelRefiner(model, mesh)


@torch.no_grad()
def init_random_(model: RefinerModel, generator: torch.Generator) -> None:
    """Fill every parameter with values of the generator (a CPU one) that keep activations and output near one."""
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            is_matrix = name == "weight" and not isinstance(module, StackedNorm)
            scale = parameter.shape[1] ** -0.5 if is_matrix else 0.1
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * scale)
