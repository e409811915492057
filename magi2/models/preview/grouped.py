"""Weights stacked per modality, applied to tokens in grouped order (video, then audio, then text rows).

A stack with one block serves all tokens; one with a block per modality gives each group its own. Groups may be empty.
"""

# Shapes: N tokens in grouped order, m weight sets (1 or 3)

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from magi2.models.layers import rms_norm


def grouped_linear(x: Tensor, weight: Tensor, group_sizes: Sequence[int], sets: int) -> Tensor:
    """`x` [N, in] times the blocks of `weight` [sets * out, in]: [N, out]."""
    if sets == 1:
        return F.linear(x, weight)
    parts = torch.split(x, list(group_sizes))
    if torch.is_grad_enabled():
        return torch.cat([F.linear(part, block) for part, block in zip(parts, weight.chunk(sets), strict=True)])
    out = x.new_empty(x.shape[0], weight.shape[0] // sets)
    for part, block, rows in zip(parts, weight.chunk(sets), torch.split(out, list(group_sizes)), strict=True):
        torch.mm(part, block.t(), out=rows)  # products of that size are not worth a copy
    return out


def grouped_rms_norm(
    x: Tensor, weight: Tensor, group_sizes: Sequence[int], *, out_dtype: torch.dtype | None = None
) -> Tensor:
    """RMSNorm over the last axis of `x` [N, ..., dim] with the blocks of `weight` [m * dim]."""
    if weight.shape[0] == x.shape[-1]:
        return rms_norm(x, weight, out_dtype=out_dtype)
    parts = zip(torch.split(x, list(group_sizes)), torch.split(weight, x.shape[-1]), strict=True)
    return torch.cat([rms_norm(part, block, out_dtype=out_dtype) for part, block in parts])


class GroupedLinear(nn.Module):
    """A linear layer without bias, with `sets` weights stacked along the output axis."""

    def __init__(self, in_features: int, out_features: int, *, sets: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.sets = sets
        self.weight = nn.Parameter(torch.empty(sets * out_features, in_features, dtype=dtype))

    def forward(self, x: Tensor, group_sizes: Sequence[int]) -> Tensor:
        return grouped_linear(x, self.weight, group_sizes, self.sets)


class GroupedRMSNorm(nn.Module):
    """RMSNorm with `sets` fp32 weights stacked along their only axis."""

    def __init__(self, dim: int, *, sets: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(sets * dim))

    def forward(self, x: Tensor, group_sizes: Sequence[int]) -> Tensor:
        return grouped_rms_norm(x, self.weight, group_sizes)
