"""Passes over rows beside FP8 products: quantising by row, SwiGLU7 under its fixed scale, sums of their outputs.

A row's scale is its largest magnitude / 448, and a value is x * (1 / scale), rounded to the nearest even.
"""

# Shapes: N tokens, M heads, D channels of a row, F activation width

from __future__ import annotations

from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from magi2.kernels import limits
from magi2.kernels.activation import e4m3_scale, swiglu7

_E4M3 = torch.float8_e4m3fn
_BLOCK = 4096  # elements of a program, of whole rows
_SWIGLU_BLOCK = 1024


@triton.jit
def _quantise_kernel(
    x, values, scales, num_rows, num_heads, stride_token, stride_head,
    D: tl.constexpr, CHANNELS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    channel = tl.arange(0, CHANNELS)
    mask = (row < num_rows)[:, None] & (channel < D)[None, :]
    place = row // num_heads * stride_token + row % num_heads * stride_head
    wide = tl.load(x + place[:, None] + channel[None, :], mask=mask, other=0.0).to(tl.float32)
    scale, inverse = e4m3_scale(tl.max(tl.abs(wide), axis=1))
    tl.store(scales + row, scale, mask=row < num_rows)
    target = values + row[:, None] * D + channel[None, :]
    tl.store(target, (wide * inverse[:, None]).to(tl.float8e4nv), mask=mask)


@cache
def quantise_rows_refusal(size: int) -> str | None:
    """Why `quantise_rows` does not take rows of `size` channels; None when it does."""
    return limits.outside("channels", size, 1, limits.MAX_BLOCK)


def quantise_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """e4m3 values of the shape of `x`, [N, D] or [N, M, D] with contiguous channels, and fp32 scales [N] or [N, M].

    Raises: UnsupportedShapesError where `quantise_rows_refusal` says why.
    """
    size = x.shape[-1]
    limits.require("quantise_rows", quantise_rows_refusal(size))
    values = torch.empty(x.shape, dtype=_E4M3, device=x.device)
    scales = torch.empty(x.shape[:-1], dtype=torch.float32, device=x.device)
    channels = triton.next_power_of_2(size)
    block = max(1, _BLOCK // channels)
    if x.numel():
        _quantise_kernel[(triton.cdiv(scales.numel(), block),)](
            x, values, scales, scales.numel(), x.shape[1] if x.dim() == 3 else 1, x.stride(0), x.stride(-2),
            D=size, CHANNELS=channels, ROWS=block, num_warps=4,
        )  # fmt: skip
    return values, scales


@triton.jit
def _swiglu_e4m3_kernel(x, out, stride_x, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    row, start = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK
    pair = tl.arange(0, 2 * BLOCK)
    values = tl.load(x + row * stride_x + 2 * start + pair, mask=2 * start + pair < 2 * WIDTH, other=0.0)
    gate, up = tl.split(tl.reshape(values.to(tl.float32), (BLOCK, 2)))
    column = start + tl.arange(0, BLOCK)
    hidden = swiglu7(gate, up).to(x.dtype.element_ty).to(tl.float32)
    tl.store(out + row * WIDTH + column, (hidden * 8.0).to(tl.float8e4nv), mask=column < WIDTH)


@cache
def swiglu7_e4m3_refusal(width: int) -> str | None:
    """Why `swiglu7_e4m3` does not give rows of `width`; None when it does."""
    return limits.outside("activation width", width, 1, (2**16 - 1) * _SWIGLU_BLOCK)


def swiglu7_e4m3(x: Tensor) -> Tensor:
    """SwiGLU7 of rows [N, 2F] of gate and up pairs, rounded to the dtype of `x`, then eight times that as e4m3 [N, F].

    Raises: UnsupportedShapesError where `swiglu7_e4m3_refusal` says why.
    """
    width = x.shape[1] // 2
    limits.require("swiglu7_e4m3", swiglu7_e4m3_refusal(width))
    out = torch.empty(x.shape[0], width, dtype=_E4M3, device=x.device)
    block = min(_SWIGLU_BLOCK, triton.next_power_of_2(width))
    if x.shape[0]:
        grid = (x.shape[0], triton.cdiv(width, block))
        _swiglu_e4m3_kernel[grid](x, out, x.stride(0), WIDTH=width, BLOCK=block, num_warps=4)
    return out


@triton.jit
def _sum_kernel(first, second, third, out, count, BLOCK: tl.constexpr):
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = place < count
    pair = tl.load(second + place, mask=mask, other=0.0).to(tl.float32)
    pair = (pair + tl.load(third + place, mask=mask, other=0.0).to(tl.float32)).to(out.dtype.element_ty)
    total = tl.load(first + place, mask=mask, other=0.0).to(tl.float32) + pair.to(tl.float32)
    tl.store(out + place, total.to(out.dtype.element_ty), mask=mask)


@cache
def sum_rows_refusal(size: int) -> str | None:
    """Why `sum_rows_` does not take rows of `size` channels; None when it does."""
    return limits.outside("channels", size, 1, limits.MAX_BLOCK)


def sum_rows_(first: Tensor, second: Tensor, third: Tensor) -> Tensor:
    """`first + (second + third)` in place of `first`: contiguous rows [N, c] of one dtype, each sum rounded to it.

    Raises: UnsupportedShapesError where `sum_rows_refusal` says why.
    """
    limits.require("sum_rows_", sum_rows_refusal(first.shape[1]))
    if first.numel():
        grid = (triton.cdiv(first.numel(), _BLOCK),)
        _sum_kernel[grid](first, second, third, first, first.numel(), BLOCK=_BLOCK, num_warps=8)
    return first
