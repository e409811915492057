"""Weights to start training from: layers that pass their streams on, and heads that predict nothing yet."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from magi2.models.preview.model import PreviewModel

KEPT_STREAM_BIAS = 5.0
"""Diagonal of the stream mixing's logits: nearly the identity."""
PHI_DEVIATION = 0.02


@torch.no_grad()
def start_weights_(model: PreviewModel, generator: torch.Generator) -> PreviewModel:
    """Fill `model` (on the CPU) in place from a seeded generator; returns it.

    Matrices keep the size of their input. Each half layer reads mostly one stream, a different one from half to half.
    """
    half = 0
    for name, tensor in model.named_parameters():
        if "mhc_bias_pre" in name:
            tensor.fill_(-1.0)
            tensor[half % len(tensor)] = 1.0
            half += 1
        elif "mhc_bias_res" in name:
            tensor.copy_(KEPT_STREAM_BIAS * torch.eye(len(tensor)))
        elif "mhc_alpha" in name:
            tensor.fill_(1.0)
        elif tensor.dim() < 2 or "sinks" in name or "final_linear" in name:
            tensor.zero_()
        else:
            tensor.copy_(_deviation(name, tensor) * torch.randn(tensor.shape, generator=generator))
    for name, buffer in model.named_buffers():
        if "expert_bias" in name:
            buffer.zero_()
    return model


def _deviation(name: str, tensor: Tensor) -> float:
    if "mhc_phi" in name:
        return PHI_DEVIATION
    inputs = tensor.shape[1]  # expert stacks are [experts, in, out], everything else [out, in]
    return 1 / math.sqrt(inputs)
