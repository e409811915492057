"""Hyper-connections of four streams: coefficients, the half layer's input, and the update of the streams.

The norm over a token's streams only scales the product with phi, so both come from one pass over the streams: row
sums of squares beside a product with (1 + weight) * phi, which two planes of the streams' dtype hold to 1e-5.
Passes that follow one another go through the tokens in opposite directions: the last rows are still in the cache.
"""

# Shapes: N tokens, n = 4 streams, c hidden size, P planes

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from magi2.kernels import limits
from magi2.kernels.activation import e4m3_scale, sigmoid
from magi2.kernels.routing import planes
from magi2.kernels.settings import BARRIER_BYTES, Features

NUM_STREAMS = 4
COEFFICIENTS = 24  # 4 pre, 4 post, 16 res
_LANES = tl.constexpr(32)
_ITERATIONS = tl.constexpr(20)
_SINKHORN_EPS = tl.constexpr(1e-12)
_RMS_EPS = tl.constexpr(1e-6)
_PHI_PLANES = 2


class PhiWeights(NamedTuple):
    """What one half layer's logits need: `phi` [m, n*c, P*32], `gain` and `offset` [32] fp32."""

    phi: Tensor
    gain: Tensor
    offset: Tensor


@dataclass(frozen=True)
class MhcSettings:
    """Launch settings of a pass over the streams: tokens and channels of a tile, loads in flight, warps."""

    block_tokens: int
    block_channels: int
    stages: int
    warps: int

    def shared_bytes(self, lanes: int, itemsize: int) -> int:
        """Shared memory of one program of the logits: in every stage a tile of the streams and one of phi."""
        return itemsize * self.stages * self.block_channels * (self.block_tokens + lanes) + BARRIER_BYTES


LOGIT_SETTINGS = MhcSettings(128, 128, 3, 8)
LOGIT_SETTINGS_FEW = MhcSettings(32, 128, 4, 4)
# Without descriptors a second use of a pipelined tile is wrong on Hopper with Triton 3.6, so nothing is pipelined.
LOGIT_SETTINGS_PLAIN = MhcSettings(32, 64, 1, 4)
UPDATE_SETTINGS = MhcSettings(2, 1024, 1, 4)
_FEW_TOKENS = 8192


def phi_weights(
    norm_weight: Tensor,
    phi: Tensor,
    alphas: tuple[Tensor, Tensor, Tensor],
    biases: tuple[Tensor, Tensor, Tensor],
    dtype: torch.dtype,
) -> PhiWeights:
    """Prepared weights of one half layer for streams of `dtype`.

    `norm_weight` [m * n*c] (offsets from 1), `phi` [n*c, 24]; alphas and biases are those of pre, post and res.
    """
    width = phi.shape[0]
    scaled = phi.float() * (1 + norm_weight.float().view(-1, width, 1))
    scaled = torch.nn.functional.pad(scaled, (0, _LANES.value - COEFFICIENTS))
    parts = planes(scaled, dtype, _PHI_PLANES)
    sizes = (NUM_STREAMS, NUM_STREAMS, NUM_STREAMS**2, _LANES.value - COEFFICIENTS)
    gains = [alpha.float().view(1) * width**-0.5 for alpha in alphas]
    gain = torch.cat([value.expand(size) for value, size in zip([*gains, gains[0] * 0], sizes, strict=True)])
    offset = torch.cat([*(bias.float().flatten() for bias in biases), gain.new_zeros(sizes[3])])
    return PhiWeights(parts.permute(1, 2, 0, 3).flatten(2).contiguous(), gain, offset)


@triton.jit
def _store_coefficients(
    product, squares, gain, offset, out, row, mask,
    WIDTH: tl.constexpr, PLANES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Coefficients from the raw products [BLOCK, PLANES * 32] and row sums of squares."""
    lane = tl.arange(0, _LANES)
    logits = tl.sum(tl.reshape(product, (BLOCK, PLANES, _LANES)), axis=1)
    logits = logits * tl.rsqrt(squares / WIDTH + _RMS_EPS)[:, None]
    logits = logits * tl.load(gain + lane)[None, :] + tl.load(offset + lane)[None, :]
    # Eight groups of four lanes: 0 is pre, 1 is post, 2 to 5 are the rows of res, the rest is padding.
    logits = tl.reshape(logits, (BLOCK, 8, 4))
    group = tl.arange(0, 8)[None, :, None]
    is_res = (group >= 2) & (group < 6)
    top = tl.max(tl.max(tl.where(is_res, logits, float("-inf")), axis=2), axis=1)
    matrix = tl.where(is_res, tl.exp(logits - top[:, None, None]), 0.0)
    for _ in tl.range(0, _ITERATIONS):
        matrix = matrix / (tl.sum(matrix, axis=1) + _SINKHORN_EPS)[:, None, :]
        matrix = matrix / (tl.sum(matrix, axis=2) + _SINKHORN_EPS)[:, :, None]
    gate = sigmoid(logits)
    values = tl.where(group == 0, gate, tl.where(group == 1, 2.0 * gate, matrix))
    values = tl.reshape(values, (BLOCK, _LANES)).to(out.dtype.element_ty)
    tl.store(out + row[:, None] * 24 + lane[None, :], values, mask=mask[:, None] & (lane < 24)[None, :])


@triton.jit
def _group_tile(tile, first_end, second_end, num_tokens, BLOCK: tl.constexpr):
    """Weight set, first row and end row of a tile; tiles begin anew in each of the three groups of rows."""
    first_tiles = tl.cdiv(first_end, BLOCK)
    second_tiles = first_tiles + tl.cdiv(second_end - first_end, BLOCK)
    index = (tile >= first_tiles).to(tl.int32) + (tile >= second_tiles).to(tl.int32)
    passed = tl.where(index == 0, 0, tl.where(index == 1, first_tiles, second_tiles))
    begin = tl.where(index == 0, 0, tl.where(index == 1, first_end, second_end))
    end = tl.where(index == 0, first_end, tl.where(index == 1, second_end, num_tokens))
    return index, begin + (tile - passed) * BLOCK, end


@triton.jit
def _coefficients_kernel(
    streams, phi, gain, offset, out, first_end, second_end, num_tokens,
    WIDTH: tl.constexpr, PLANES: tl.constexpr, BLOCK: tl.constexpr, CHANNELS: tl.constexpr, STAGES: tl.constexpr,
    SETS: tl.constexpr, DESCRIPTORS: tl.constexpr,
):  # fmt: skip
    tile = tl.num_programs(0) - 1 - tl.program_id(0)
    index, start, end = 0, tile * BLOCK, num_tokens
    if SETS > 1:
        index, start, end = _group_tile(tile, first_end, second_end, num_tokens, BLOCK)
    row = (start + tl.arange(0, BLOCK)).to(tl.int64)
    mask = row < end
    channels, lanes = tl.arange(0, CHANNELS), tl.arange(0, PLANES * _LANES)
    product = tl.zeros([BLOCK, PLANES * _LANES], tl.float32)
    squares = tl.zeros([BLOCK], tl.float32)
    for k in tl.range(0, WIDTH, CHANNELS, num_stages=STAGES):
        if DESCRIPTORS:
            tile_rows = streams.load([start, k])
            block = phi.load([index * WIDTH + k, 0])
        else:
            tile_rows = tl.load(streams + row[:, None] * WIDTH + (k + channels)[None, :], mask=mask[:, None], other=0.0)
            block = tl.load(phi + (index * WIDTH + k + channels)[:, None] * (PLANES * _LANES) + lanes[None, :])
        product = tl.dot(tile_rows, block, product, input_precision="ieee")
        # A use of the product makes Triton wait for it here. It would not, and gives a tile that is read twice a place
        # too few: the next copy would begin while the product still reads, and now and then overtake it.
        product = tl.where(mask[:, None], product, 0.0)
        wide = tile_rows.to(tl.float32)
        squares += tl.sum(wide * wide, axis=1)
    _store_coefficients(product, squares, gain, offset, out, row, mask, WIDTH, PLANES, BLOCK)


def _use_descriptors(dtype: torch.dtype, available: Features) -> bool:
    return available.descriptors and dtype != torch.float32


def _logit_choices(use_descriptors: bool) -> tuple[MhcSettings, ...]:
    """For many tokens and for few, or for any number."""
    return (LOGIT_SETTINGS, LOGIT_SETTINGS_FEW) if use_descriptors else (LOGIT_SETTINGS_PLAIN,)


def _other_streams(num_streams: int) -> str | None:
    return None if num_streams == NUM_STREAMS else f"{num_streams} streams are not {NUM_STREAMS}"


@cache
def coefficients_refusal(
    num_streams: int,
    size: int,
    dtype: torch.dtype,
    available: Features,
    choices: tuple[MhcSettings, ...] | None = None,
) -> str | None:
    """Why `coefficients` does not take streams [N, num_streams, size] by each of `choices`; None when it does."""
    chosen = choices or _logit_choices(_use_descriptors(dtype, available))
    width, lanes = num_streams * size, _LANES.value * (1 if dtype == torch.float32 else _PHI_PLANES)
    shared = max(settings.shared_bytes(lanes, dtype.itemsize) for settings in chosen)
    return limits.first(
        _other_streams(num_streams),
        limits.other_dtype(dtype),
        limits.no_multiple("channels of all streams", width, max(settings.block_channels for settings in chosen)),
        limits.outside("phi", 3 * width * lanes, 1, limits.MAX_INDEX),
        limits.too_much_shared(shared, available.shared_bytes),
    )


def coefficients(
    streams: Tensor,
    weights: PhiWeights,
    group_sizes: Sequence[int],
    available: Features,
    settings: MhcSettings | None = None,
) -> Tensor:
    """[N, 24] in the dtype of the contiguous `streams` [N, 4, c]: pre, post and res of one half layer.

    `group_sizes` says which rows use which of the weight sets, where there is more than one. Raises:
    UnsupportedShapesError where `coefficients_refusal` says why.
    """
    num_tokens, num_streams, size = streams.shape
    use_descriptors = _use_descriptors(streams.dtype, available)
    chosen = settings or _logit_choices(use_descriptors)[0 if num_tokens > _FEW_TOKENS else -1]
    limits.require("coefficients", coefficients_refusal(num_streams, size, streams.dtype, available, (chosen,)))
    width = num_streams * size
    sets, lanes = weights.phi.shape[0], weights.phi.shape[2]
    out = streams.new_empty(num_tokens, COEFFICIENTS)
    parts = [num_tokens] if sets == 1 else group_sizes
    tiles = sum(triton.cdiv(size, chosen.block_tokens) for size in parts)
    rows: Tensor | TensorDescriptor = streams.view(-1, width)
    phi: Tensor | TensorDescriptor = weights.phi.view(-1, lanes)
    if use_descriptors and num_tokens:
        rows = TensorDescriptor.from_tensor(rows, [chosen.block_tokens, chosen.block_channels])
        phi = TensorDescriptor.from_tensor(phi, [chosen.block_channels, lanes])
    if num_tokens:
        _coefficients_kernel[(tiles,)](
            rows, phi, weights.gain, weights.offset, out, group_sizes[0], group_sizes[0] + group_sizes[1], num_tokens,
            WIDTH=width, PLANES=lanes // _LANES.value, BLOCK=chosen.block_tokens, CHANNELS=chosen.block_channels,
            STAGES=chosen.stages, SETS=sets, DESCRIPTORS=use_descriptors, num_warps=chosen.warps,
        )  # fmt: skip
    return out


@triton.jit
def _four(pointers, mask):
    """Four neighbouring weights of each row, in fp32."""
    return (
        tl.load(pointers, mask=mask, other=0.0).to(tl.float32)[:, None],
        tl.load(pointers + 1, mask=mask, other=0.0).to(tl.float32)[:, None],
        tl.load(pointers + 2, mask=mask, other=0.0).to(tl.float32)[:, None],
        tl.load(pointers + 3, mask=mask, other=0.0).to(tl.float32)[:, None],
    )


@triton.jit
def _update_kernel(
    streams, branch, current, out, num_tokens, stride_current,
    C: tl.constexpr, BLOCK: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    row = (tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)).to(tl.int64)
    mask = row < num_tokens
    weights = current + row * stride_current
    p0, p1, p2, p3 = _four(weights + 4, mask)
    a0, a1, a2, a3 = _four(weights + 8, mask)
    b0, b1, b2, b3 = _four(weights + 12, mask)
    c0, c1, c2, c3 = _four(weights + 16, mask)
    d0, d1, d2, d3 = _four(weights + 20, mask)
    dtype = out.dtype.element_ty
    for k in tl.range(0, C, CHANNELS, num_stages=1):
        channel = k + tl.arange(0, CHANNELS)
        keep = mask[:, None] & (channel < C)[None, :]
        place = row[:, None] * (4 * C) + channel[None, :]
        o = tl.load(branch + row[:, None] * C + channel[None, :], mask=keep, other=0.0).to(tl.float32)
        s0 = tl.load(streams + place, mask=keep, other=0.0).to(tl.float32)
        s1 = tl.load(streams + place + C, mask=keep, other=0.0).to(tl.float32)
        s2 = tl.load(streams + place + 2 * C, mask=keep, other=0.0).to(tl.float32)
        s3 = tl.load(streams + place + 3 * C, mask=keep, other=0.0).to(tl.float32)
        tl.store(out + place, (a0 * s0 + a1 * s1 + a2 * s2 + a3 * s3 + p0 * o).to(dtype), mask=keep)
        tl.store(out + place + C, (b0 * s0 + b1 * s1 + b2 * s2 + b3 * s3 + p1 * o).to(dtype), mask=keep)
        tl.store(out + place + 2 * C, (c0 * s0 + c1 * s1 + c2 * s2 + c3 * s3 + p2 * o).to(dtype), mask=keep)
        tl.store(out + place + 3 * C, (d0 * s0 + d1 * s1 + d2 * s2 + d3 * s3 + p3 * o).to(dtype), mask=keep)


@cache
def update_refusal(num_streams: int) -> str | None:
    """Why `update` does not take so many streams; None when it does."""
    return _other_streams(num_streams)


def update(streams: Tensor, current: Tensor, branch: Tensor, settings: MhcSettings = UPDATE_SETTINGS) -> Tensor:
    """New streams [N, 4, c]: mixed by `current` [N, 24], plus the half layer's output; fp32 with one rounding.

    `streams` and `branch` [N, c] are contiguous. Raises: UnsupportedShapesError where `update_refusal` says why.
    """
    num_tokens, num_streams, size = streams.shape
    limits.require("update", update_refusal(num_streams))
    out = torch.empty_like(streams)
    if num_tokens:
        _update_kernel[(triton.cdiv(num_tokens, settings.block_tokens),)](
            streams, branch, current, out, num_tokens, current.stride(0),
            C=size, BLOCK=settings.block_tokens, CHANNELS=min(settings.block_channels, triton.next_power_of_2(size)),
            num_warps=settings.warps,
        )  # fmt: skip
    return out


@triton.jit
def _input_kernel(
    streams, current, weight, out, quantised, scales, first_end, second_end, stride_current,
    C: tl.constexpr, BLOCK: tl.constexpr, SETS: tl.constexpr, NORM: tl.constexpr, QUANTISE: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    channel = tl.arange(0, BLOCK)
    mask = channel < C
    place = streams + row * (4 * C) + channel
    total = tl.zeros([BLOCK], tl.float32)
    for index in tl.static_range(4):
        factor = tl.load(current + row * stride_current + index).to(tl.float32)
        total += factor * tl.load(place + index * C, mask=mask, other=0.0).to(tl.float32)
    value = total.to(out.dtype.element_ty)
    if NORM:
        wide = value.to(tl.float32)
        scale = tl.rsqrt(tl.sum(wide * wide, axis=0) / C + _RMS_EPS)
        block = 0
        if SETS > 1:
            block = (row >= first_end).to(tl.int32) + (row >= second_end).to(tl.int32)
        gain = tl.load(weight + block * C + channel, mask=mask, other=0.0).to(tl.float32) + 1.0
        value = (wide * scale * gain).to(out.dtype.element_ty)
    tl.store(out + row * C + channel, value, mask=mask)
    if QUANTISE:
        wide = value.to(tl.float32)
        scale, inverse = e4m3_scale(tl.max(tl.abs(wide), axis=0))
        tl.store(scales + row, scale)
        tl.store(quantised + row * C + channel, (wide * inverse).to(tl.float8e4nv), mask=mask)


@cache
def half_input_refusal(num_streams: int, size: int) -> str | None:
    """Why `half_input` does not take streams [N, num_streams, size]; None when it does."""
    return limits.first(_other_streams(num_streams), limits.outside("channels of a stream", size, 1, limits.MAX_BLOCK))


def half_input(
    streams: Tensor,
    current: Tensor,
    norm_weight: Tensor | None,
    group_sizes: Sequence[int],
    quantised: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """The half layer's input [N, c]: streams [N, 4, c] weighted by the first 4 of `current` [N, >= 4], rounded.

    With `norm_weight` [m * c] the RMSNorm of that, with the weights of the row's group, rounded once more. The result
    is written to `quantised`, too, as e4m3 [N, c] and fp32 scales [N]. Raises: UnsupportedShapesError where
    `half_input_refusal` says why.
    """
    num_tokens, num_streams, size = streams.shape
    limits.require("half_input", half_input_refusal(num_streams, size))
    out = streams.new_empty(num_tokens, size)
    first_end, second_end = group_sizes[0], group_sizes[0] + group_sizes[1]
    sets = 1 if norm_weight is None else norm_weight.shape[0] // size
    if num_tokens:
        _input_kernel[(num_tokens,)](
            streams, current, streams if norm_weight is None else norm_weight, out, *(quantised or (out, out)),
            first_end, second_end, current.stride(0),
            C=size, BLOCK=triton.next_power_of_2(size), SETS=sets, NORM=norm_weight is not None,
            QUANTISE=quantised is not None,
            num_warps=4,
        )  # fmt: skip
    return out
