"""Arithmetic that the preview transformer and the refiner share: RMSNorm, SwiGLU7 and the rotary embedding.

Source: MAGI-2 preview inference code. Everything is computed in fp32 and rounded once at the end.
"""

# Shapes: S tokens, H heads, d head dim, B rotary bands, F activation width

from __future__ import annotations

import torch
from torch import Tensor

from magi2.errors import ContractError

NUM_MODALITIES = 3  # video, audio, text: the order of stacked weights
RMS_EPS = 1e-6
_SWIGLU_SLOPE = 1.702
_SWIGLU_LIMIT = 7.0


def rms_norm(x: Tensor, weight: Tensor, *, out_dtype: torch.dtype | None = None) -> Tensor:
    """`x / rms(x) * (1 + weight)` over the last axis, in fp32, cast once to `out_dtype` (default: the dtype of `x`).

    `weight` is the stored offset from 1; it broadcasts against `x`.
    """
    x_f32 = x.float()
    scale = torch.rsqrt(x_f32.square().mean(-1, keepdim=True) + RMS_EPS)
    return (x_f32 * scale * (weight.float() + 1)).to(out_dtype or x.dtype)


def swiglu7_pair(gate: Tensor, up: Tensor) -> Tensor:
    """`g * sigmoid(1.702 g) * (u + 1)` with `g = min(gate, 7)` and `u = clamp(up, -7, 7)`.

    Computed in fp32, cast to the dtype of `gate`. The gate has no lower clamp.
    """
    g = gate.float().clamp(max=_SWIGLU_LIMIT)
    u = up.float().clamp(-_SWIGLU_LIMIT, _SWIGLU_LIMIT)
    return (g * torch.sigmoid(_SWIGLU_SLOPE * g) * (u + 1)).to(gate.dtype)


def swiglu7(x: Tensor) -> Tensor:
    """SwiGLU7 of a fused tensor [..., 2F] whose even channels are the gate and odd ones the linear part: [..., F]."""
    return swiglu7_pair(x[..., 0::2], x[..., 1::2])


def rope_table(coords: Tensor, bands: Tensor) -> Tensor:
    """Sines then cosines of the rotary angles: [N, 6B] fp32 = [sin t, sin y, sin x, cos t, cos y, cos x].

    `coords` [N, 9] fp32 holds position, own grid size and reference grid size, each as (t, y, x). Positions are
    stretched by (reference - 1) / (size - 1), which counts as 1 when both sizes are 1; y and x are centred, t is not.
    Raises: ContractError when a scale is not finite (size 1 against a larger reference). This reads the result back
    to the host, so call it once per clip.
    """
    position, size, reference = coords.float().view(-1, 3, 3).unbind(1)
    both_one = (size == 1) & (reference == 1)
    scale = torch.where(both_one, 1.0, (reference - 1) / (size - 1))
    if not bool((scale.abs() < torch.inf).all()):
        raise ContractError("rotary scale is not finite: an axis of size 1 has a reference size above 1")
    is_space = torch.tensor([0.0, 1.0, 1.0], device=coords.device)
    centre = is_space * (size - 1) / 2
    angles = ((position - centre) * scale).unsqueeze(-1) * bands.float()
    angles = angles.flatten(-2)
    return torch.cat([angles.sin(), angles.cos()], dim=-1)


def apply_rope(x: Tensor, table: Tensor) -> Tensor:
    """Rotate the first 6B channels of `x` [S, H, d] in split halves (channel j with j + 3B) by `table` [S, 6B].

    The remaining channels pass unchanged. The result has the promoted dtype of both (fp32 for a fp32 table).
    """
    half = table.shape[-1] // 2
    sin, cos = torch.split(table.unsqueeze(1), half, dim=-1)
    first, second, rest = torch.split(x, [half, half, x.shape[-1] - 2 * half], dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin, rest.to(table.dtype)], dim=-1)
