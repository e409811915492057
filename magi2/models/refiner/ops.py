"""The refiner's heavy steps other than matrix products as a table of functions, so that kernels can take their place.

Every entry is plain torch by default. A replacement has the same arguments, result and rounding points.
"""

# Shapes: S tokens, K keys, H query heads, G key-value heads, d head size, D hidden, R rotary angles, F inner width

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from magi2.models.layers import apply_rope, rms_norm, swiglu7
from magi2.models.refiner.attention import gather_attention
from magi2.models.refiner.windows import WindowGrid

Heads = tuple[Tensor, Tensor, Tensor]  # queries [S, H, d], keys and values [S, G, d]


def norm(x_SD: Tensor, weight_D: Tensor, out_dtype: torch.dtype) -> Tensor:
    """RMSNorm [S, D] in fp32, rounded once."""
    return rms_norm(x_SD, weight_D, out_dtype=out_dtype)


def add_norm(x_SD: Tensor, branch_SD: Tensor, weight_D: Tensor, out_SD: Tensor) -> Tensor:
    """`x + branch` into `out_SD`, which may be `x_SD`; its RMSNorm comes back in the dtype of the branch."""
    sum_SD = x_SD + branch_SD
    out_SD.copy_(sum_SD)
    return rms_norm(sum_SD, weight_D, out_dtype=branch_SD.dtype)


def add_(x_SD: Tensor, branch_SD: Tensor) -> None:
    """Add a branch to the fp32 residual in place."""
    x_SD.add_(branch_SD)


def write_heads(qkv: Tensor, q_weight_d: Tensor, k_weight_d: Tensor, rope_SR: Tensor, out: Heads) -> None:
    """Split `qkv` [S, (H + 2G) * d] into `out`, queries and keys normalised and rotated in fp32 with one rounding."""
    heads = qkv.float().view(len(qkv), -1, out[0].shape[2])
    q_SHd, k_SGd, v_SGd = torch.split(heads, [part.shape[1] for part in out], dim=1)
    out[0].copy_(apply_rope(rms_norm(q_SHd, q_weight_d), rope_SR))
    out[1].copy_(apply_rope(rms_norm(k_SGd, k_weight_d), rope_SR))
    out[2].copy_(v_SGd)


def gate_heads(out_SHd: Tensor, gate_SH: Tensor) -> Tensor:
    """Attention output times one sigmoid gate per head, in fp32 with one rounding: [S, H * d]."""
    gated = out_SHd.float() * torch.sigmoid(gate_SH.float())[..., None]
    return gated.to(out_SHd.dtype).flatten(1)


def no_plan(grid: WindowGrid, tail: int) -> None:
    """Nothing: the gather path reads the grid itself."""


def attend(q_SHd: Tensor, k_KGd: Tensor, v_KGd: Tensor, grid: WindowGrid, plan: None) -> Tensor:
    """Windowed attention [S, H, d] of the grid's video queries and of the tail's, if they are there."""
    return gather_attention(q_SHd, k_KGd, v_KGd, grid)


@dataclass(frozen=True)
class RefinerOps:
    """What the layers call; each default's docstring is the contract of its entry.

    `plan` is what `attend` wants to have prepared once for a grid and its number of tail tokens.
    """

    norm: Callable[[Tensor, Tensor, torch.dtype], Tensor] = norm
    add_norm: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor] = add_norm
    add_: Callable[[Tensor, Tensor], None] = add_
    write_heads: Callable[[Tensor, Tensor, Tensor, Tensor, Heads], None] = write_heads
    gate_heads: Callable[[Tensor, Tensor], Tensor] = gate_heads
    swiglu7: Callable[[Tensor], Tensor] = swiglu7
    plan: Callable[[WindowGrid, int], Any] = no_plan
    attend: Callable[[Tensor, Tensor, Tensor, WindowGrid, Any], Tensor] = attend
