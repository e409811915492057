"""Reading the published preview checkpoint, and random weights for a tiny one."""

from __future__ import annotations

import logging
from pathlib import Path

import torch
from torch import Tensor

from magi2.errors import CheckpointError
from magi2.models.checkpoint import SafetensorsFolder, TensorSource, load_module
from magi2.models.preview.config import BF16, PreviewConfig, Weights, stored_weights, weights_objection
from magi2.models.preview.expert_rows import RankSource
from magi2.models.preview.expert_share import ExpertShare
from magi2.models.preview.mlp import MultiHeadMoe, Router, RouterBias
from magi2.models.preview.model import PreviewModel
from magi2.models.preview.parallelize import ParallelPreview
from magi2.models.preview.quantised_source import CHANNEL, SCALES_KEY, QuantisedSource, check_scales, quantised_names
from magi2.parallel.mesh import Mesh

logger = logging.getLogger(__name__)

MODEL_PREFIXES = ("pre_adapter.", "block.", "post_adapter.")


def load_preview(
    folder: Path,
    config: PreviewConfig,
    *,
    device: torch.device | str = "cpu",
    compute_dtype: torch.dtype = torch.bfloat16,
    weights: Weights = BF16,
    router_bias: RouterBias = "ema",
    mesh: Mesh | None = None,
) -> PreviewModel:
    """The preview transformer with the weights of `folder`, read one tensor at a time, straight to `device`.

    On a `mesh` of several ranks, which all call this, it is spread over them; of the routed experts each rank reads its
    own alone. The ranks go through the files in step, so that what one has read the others find in the page cache.
    With `weights` other than bf16 large weights become e4m3 on `device` as they arrive, where they are not stored so.

    Tensors outside the model's own prefixes are skipped and logged. `router_bias` says which stored bias selects
    experts: the moving average, as published, or the trained one. Raises: CheckpointError naming file and tensor
    when one is missing, unexpected, mis-shaped or unreadable, or when the files hold another format.
    """
    files = SafetensorsFolder(folder)
    _check_format(files, weights)
    source: TensorSource = files
    with torch.device("meta"):
        if mesh is not None and mesh.layout.num_ranks > 1:
            model: PreviewModel = ParallelPreview(config, mesh, compute_dtype=compute_dtype, weights=weights)
            source = RankSource(files, _share_of(model), config.moe_config.num_heads, mesh)
        else:
            model = PreviewModel(config, compute_dtype=compute_dtype, weights=weights)
    if weights != BF16:
        source = QuantisedSource(source, quantised_names(model), device)
    report = load_module(model, source, device=device, rename=_own_name)
    if report.skipped:
        logger.info("%s: skipped %d tensors, first %s", folder, len(report.skipped), report.skipped[0])
    for module in model.modules():
        if isinstance(module, Router):
            module.source = router_bias
    return model.eval()


def _check_format(files: SafetensorsFolder, weights: Weights) -> None:
    if objection := weights_objection(stored_weights(filter(_own_name, files.names())), weights):
        raise CheckpointError(f"{files.location}: {objection}")
    check_scales(files.metadata().get(SCALES_KEY, CHANNEL), files.location)


def _own_name(name: str) -> str | None:
    return name if name.startswith(MODEL_PREFIXES) else None


def _share_of(model: PreviewModel) -> ExpertShare | None:
    """The share of the model's routed experts, which is the same in every layer; None for a model without any."""
    return next((module.share for module in model.modules() if isinstance(module, MultiHeadMoe)), None)


def init_random_(model: PreviewModel, generator: torch.Generator) -> None:
    """Fill a model on the CPU with seeded random weights of every kind, in place, bands excepted.

    Matrices keep the size of their input, norms, biases and sinks vary mildly, and the heads end in a norm, so
    velocities have a deviation of about one and a denoising run from noise stays finite.
    """
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            if not name.endswith("rope.bands"):
                noise = torch.randn(tensor.shape, generator=generator)
                tensor.copy_(_random_offset(name) + _random_scale(name, tensor) * noise)


def _random_scale(name: str, tensor: Tensor) -> float:
    """Standard deviation for a tensor: 1 / sqrt(inputs) for matrices, mild noise for the rest."""
    if name.endswith(("W_gate", "W_up", "W_down")):
        return float(tensor.shape[1] ** -0.5)
    if "mhc_phi" in name:
        return 1.0
    is_matrix = tensor.dim() == 2 and "sinks" not in name and "mhc_bias" not in name
    if is_matrix:
        return float(tensor.shape[1] ** -0.5)
    return 0.02 if "router" in name else 0.1 if "norm" in name or "alpha" in name else 0.5


def _random_offset(name: str) -> float:
    return 1.0 if "alpha" in name else 0.0
