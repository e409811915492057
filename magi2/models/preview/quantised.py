"""Weights and activations in FP8 (e4m3) with fp32 scales, and their products by plain torch: what kernels must equal.

A row along the summed axis has one scale: an output channel of a weight, a token of an activation, a token and head of
what the experts get. The scale is the row's largest magnitude / 448, and a value is x * (1 / scale) rounded to e4m3;
both divisions are exact to the last bit. A product is summed in fp32, then multiplied by the token's scale, then by the
channel's, then rounded. What comes out of SwiGLU7 lies between -56 and 56 by its clamps, and has the scale 1/8 instead.
"""

# Shapes: R rows, K summed axis, N tokens, M heads, e experts, D head dim, F expert width

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from magi2.models.preview.tiles import TILE_ROWS

E4M3 = torch.float8_e4m3fn
E4M3_MAX = 448.0
"""The largest e4m3 value."""
HIDDEN_SCALE = 0.125
"""The scale of SwiGLU7's output: 7 * (7 + 1) = 56 at most, and 56 / 448 is 1/8."""
_LEAST = 2.0**-100
"""A row's largest magnitude counts as this where it is smaller, so that the scale of zeros divides."""


class Quantised(NamedTuple):
    """e4m3 `values` [..., K], and fp32 `scales` [...] that multiply them."""

    values: Tensor
    scales: Tensor


class QuantisedExperts(NamedTuple):
    """Weights of routed experts, output axis before input axis.

    Gate and up are [e, F, D] with scales [e, F], down is [e, D, F] with scales [e, D].
    """

    gate: Quantised
    up: Quantised
    down: Quantised


def quantise(x: Tensor) -> Quantised:
    """`x` [..., K] with a scale for each row. A row that holds a NaN or an infinity has a scale that is none either."""
    rows = x.float()
    # By a tensor of the same device: by a number, torch on accelerators multiplies by its reciprocal, with other bits.
    scales = rows.abs().amax(-1).clamp(min=_LEAST) / rows.new_full((), E4M3_MAX)
    return Quantised((rows * (1 / scales).unsqueeze(-1)).to(E4M3), scales)


def quantise_hidden(x: Tensor) -> Quantised:
    """Output `x` [..., K] of SwiGLU7 under its fixed scale."""
    scales = torch.full(x.shape[:-1], HIDDEN_SCALE, device=x.device)
    return Quantised((x.float() * (1 / HIDDEN_SCALE)).to(E4M3), scales)


def quantised_linear(x: Tensor, weight: Quantised, group_sizes: Sequence[int], sets: int, hidden: bool) -> Tensor:
    """`x` [N, K], quantised here, times the blocks of `weight` [sets * out, K]: [N, out] in the dtype of `x`.

    `hidden` says that `x` comes from SwiGLU7.
    """
    rows = quantise_hidden(x) if hidden else quantise(x)
    if sets == 1:
        return _product(rows, weight, x.dtype)
    sizes = list(group_sizes)
    tokens = zip(torch.split(rows.values, sizes), torch.split(rows.scales, sizes), strict=True)
    blocks = zip(weight.values.chunk(sets), weight.scales.chunk(sets), strict=True)
    pairs = zip(tokens, blocks, strict=True)
    return torch.cat([_product(Quantised(*part), Quantised(*block), x.dtype) for part, block in pairs])


def _product(x: Quantised, weight: Quantised, dtype: torch.dtype) -> Tensor:
    """`x` [R, K] times `weight` [out, K]: [R, out]; on the CPU in tiles, so that rows do not depend on their number."""
    rows, matrix = x.values.float(), weight.values.float().t()
    if x.values.device.type == "cpu":
        tiles = F.pad(rows, (0, 0, 0, -len(rows) % TILE_ROWS)).view(-1, TILE_ROWS, rows.shape[1])
        total = torch.bmm(tiles, matrix.expand(len(tiles), -1, -1)).flatten(0, 1)[: len(rows)]
    else:
        total = rows @ matrix
    return (total * x.scales.unsqueeze(1) * weight.scales).to(dtype)
