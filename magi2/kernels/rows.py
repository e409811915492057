"""Element-wise passes over rows: RMSNorm, SwiGLU7, the head split with norm and rotation, gates and sinks."""

# Shapes: N tokens, c hidden size, H query heads, G key/value heads, d head dim, B rotary bands, F activation width

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from magi2.kernels import limits
from magi2.kernels.activation import e4m3_scale, sigmoid, swiglu7

_RMS_EPS = tl.constexpr(1e-6)
_SWIGLU_BLOCK = 1024
_FLAT_BLOCK = 2048  # elements of a program where rows do not matter
_MOST_HEADS = 8  # of a block
_VECTOR = 8  # elements that one load takes at best


@triton.jit
def _norm_kernel(x, weight, out, stride_x, C: tl.constexpr, BLOCK: tl.constexpr):
    row, channel = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    mask = channel < C
    values = tl.load(x + row * stride_x + channel, mask=mask, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(values * values, axis=0) / C + _RMS_EPS)
    gain = tl.load(weight + channel, mask=mask, other=0.0).to(tl.float32) + 1.0
    tl.store(out + row * C + channel, (values * scale * gain).to(out.dtype.element_ty), mask=mask)


@cache
def rms_norm_rows_refusal(size: int) -> str | None:
    """Why `rms_norm_rows` does not take rows of `size` channels; None when it does."""
    return limits.outside("channels", size, 1, limits.MAX_BLOCK)


def rms_norm_rows(x: Tensor, weight: Tensor, out_dtype: torch.dtype) -> Tensor:
    """RMSNorm of rows `x` [N, c] with `weight` [c] (offsets from 1), in fp32, rounded once to `out_dtype`.

    Raises: UnsupportedShapesError where `rms_norm_rows_refusal` says why.
    """
    num_tokens, size = x.shape
    limits.require("rms_norm_rows", rms_norm_rows_refusal(size))
    out = torch.empty(num_tokens, size, dtype=out_dtype, device=x.device)
    if num_tokens:
        _norm_kernel[(num_tokens,)](
            x, weight, out, x.stride(0), C=size, BLOCK=triton.next_power_of_2(size), num_warps=8 if size > 1024 else 4
        )
    return out


@triton.jit
def _add_norm_kernel(x, branch, weight, out, normed, C: tl.constexpr, BLOCK: tl.constexpr):
    row, channel = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    mask = channel < C
    place = row * C + channel
    values = tl.load(x + place, mask=mask, other=0.0).to(tl.float32)
    values += tl.load(branch + place, mask=mask, other=0.0).to(tl.float32)
    values = values.to(x.dtype.element_ty).to(tl.float32)
    tl.store(out + place, values.to(out.dtype.element_ty), mask=mask)
    scale = tl.rsqrt(tl.sum(values * values, axis=0) / C + _RMS_EPS)
    gain = tl.load(weight + channel, mask=mask, other=0.0).to(tl.float32) + 1.0
    tl.store(normed + place, (values * scale * gain).to(normed.dtype.element_ty), mask=mask)


def add_norm_rows(x: Tensor, branch: Tensor, weight: Tensor, out: Tensor) -> Tensor:
    """`x + branch` [N, c] into `out`, which may be `x`, and its RMSNorm, which comes back in the dtype of `branch`.

    All are contiguous. The sum is rounded to the dtype of `x` whatever that of `out`, and the norm is that of the
    rounded one; `weight` [c] are offsets from 1. Raises: UnsupportedShapesError where `rms_norm_rows_refusal` says why.
    """
    num_tokens, size = x.shape
    limits.require("add_norm_rows", rms_norm_rows_refusal(size))
    normed = torch.empty_like(branch)
    if num_tokens:
        _add_norm_kernel[(num_tokens,)](
            x, branch, weight, out, normed, C=size, BLOCK=triton.next_power_of_2(size),
            num_warps=8 if size > 1024 else 4,
        )  # fmt: skip
    return normed


@triton.jit
def _add_kernel(x, branch, total, BLOCK: tl.constexpr):
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = place < total
    values = tl.load(x + place, mask=mask, other=0.0) + tl.load(branch + place, mask=mask, other=0.0).to(tl.float32)
    tl.store(x + place, values, mask=mask)


def add_rows_(x: Tensor, branch: Tensor) -> None:
    """Add a branch of any dtype to the fp32 residual `x` [N, c] in place; both are contiguous.

    Raises: UnsupportedShapesError where `rms_norm_rows_refusal` says why.
    """
    limits.require("add_rows_", rms_norm_rows_refusal(x.shape[1]))
    if x.numel():
        _add_kernel[(triton.cdiv(x.numel(), _FLAT_BLOCK),)](x, branch, x.numel(), BLOCK=_FLAT_BLOCK, num_warps=4)


@triton.jit
def _swiglu_kernel(x, out, width_runs, stride_x, stride_out_runs, BLOCK: tl.constexpr, RUN: tl.constexpr):
    # Counted in runs, so that the compiler sees what divides them, and makes wide loads and stores.
    run = tl.full([], RUN, tl.int64)
    end = run * width_runs
    blocks = tl.cdiv(end, BLOCK)
    row, start = (tl.program_id(0) // blocks).to(tl.int64), (tl.program_id(0) % blocks).to(tl.int64) * BLOCK
    pair = 2 * start + tl.arange(0, 2 * BLOCK)
    values = tl.load(x + row * stride_x + pair, mask=pair < 2 * end, other=0.0)
    gate, up = tl.split(tl.reshape(values.to(tl.float32), (BLOCK, 2)))
    column = start + tl.arange(0, BLOCK)
    tl.store(out + run * stride_out_runs * row + column, swiglu7(gate, up).to(out.dtype.element_ty), mask=column < end)


@cache
def swiglu7_rows_refusal(width: int) -> str | None:
    """Why `swiglu7_rows` does not give rows of `width`; None when it does."""
    return limits.outside("activation width", width, 1, limits.MAX_INDEX)


def swiglu7_rows(x: Tensor, out: Tensor) -> Tensor:
    """SwiGLU7 of rows [N, 2F] of gate and up pairs, written to `out` [N, F], which comes back; fp32, rounded once.

    Raises: UnsupportedShapesError where `swiglu7_rows_refusal` says why.
    """
    num_rows, width = out.shape
    limits.require("swiglu7_rows", swiglu7_rows_refusal(width))
    if x.is_contiguous() and out.is_contiguous():  # one long row: all blocks are full
        num_rows, width = min(num_rows, 1), out.numel()
    if num_rows:
        block = min(_SWIGLU_BLOCK, triton.next_power_of_2(width))
        run = math.gcd(out.stride(0), width, _VECTOR)
        _swiglu_kernel[(num_rows * triton.cdiv(width, block),)](
            x, out, width // run, x.stride(0), out.stride(0) // run, BLOCK=block, RUN=run, num_warps=4
        )
    return out


@triton.jit
def _heads_kernel(
    qkv, q_weight, k_weight, rope, to_packed, q, k, v, first_end, second_end, stride,
    q_token, kv_token, q_block, kv_block,
    Q_HEADS: tl.constexpr, KV_HEADS: tl.constexpr, BLOCKS: tl.constexpr, D: tl.constexpr, HALF: tl.constexpr,
    SETS: tl.constexpr, BLOCK: tl.constexpr, RUN: tl.constexpr, MOVE: tl.constexpr,
):  # fmt: skip
    packed = tl.program_id(0).to(tl.int64)
    grouped = packed
    if MOVE:
        grouped = tl.load(to_packed + packed).to(tl.int64)
    block = 0
    if SETS > 1:
        block = (grouped >= first_end).to(tl.int32) + (grouped >= second_end).to(tl.int32)
    head, channel = tl.arange(0, BLOCK), tl.arange(0, D)
    # The channel that each one is rotated with; the last ones pass unchanged.
    turns = channel < 2 * HALF
    partner = tl.where(turns, tl.where(channel < HALF, channel + HALF, channel - HALF), channel)
    # What the compiler cannot see: both come in runs, which makes wide loads of them.
    partner = tl.max_contiguous(tl.multiple_of(partner, RUN), RUN)
    turn = tl.max_contiguous(tl.multiple_of(channel % HALF, RUN), RUN)
    angle = rope + grouped * (2 * HALF) + turn
    sine = tl.load(angle, mask=turns, other=0.0)
    cosine = tl.load(angle + HALF, mask=turns, other=1.0)
    sine = tl.where(channel < HALF, -sine, sine)
    source = qkv + grouped * stride
    for start in tl.static_range(0, Q_HEADS + 2 * KV_HEADS, BLOCK):
        place = source + (start + head)[:, None] * D
        values = tl.load(place + channel[None, :])
        if start < Q_HEADS + KV_HEADS:
            weight = (q_weight if start < Q_HEADS else k_weight) + block * D
            wide, other = values.to(tl.float32), tl.load(place + partner[None, :]).to(tl.float32)
            scale = tl.rsqrt(tl.sum(wide * wide, axis=1) / D + _RMS_EPS)[:, None]
            wide = wide * scale * (tl.load(weight + channel).to(tl.float32) + 1.0)[None, :]
            other = other * scale * (tl.load(weight + partner).to(tl.float32) + 1.0)[None, :]
            values = (wide * cosine[None, :] + other * sine[None, :]).to(values.dtype)
        if start < Q_HEADS:
            target, number, size = q + packed * q_token, start + head, Q_HEADS // BLOCKS
            target += (number // size).to(tl.int64)[:, None] * q_block
        else:
            number, size = (start - Q_HEADS) % KV_HEADS + head, KV_HEADS // BLOCKS
            target = (k if start < Q_HEADS + KV_HEADS else v) + packed * kv_token
            target += (number // size).to(tl.int64)[:, None] * kv_block
        tl.store(target + (number % size)[:, None] * D + channel[None, :], values)


@cache
def heads_refusal(query_heads: int, kv_heads: int, head_dim: int, rope_width: int, blocks: int = 1) -> str | None:
    """Why `packed_heads`, `write_heads` and `head_blocks` do not take such heads; None when they do.

    `rope_width` is 6B, the channels that are rotated; `blocks` the parts of `head_blocks`.
    """
    return limits.first(
        limits.no_power_of_two("head dim", head_dim),
        limits.outside("head dim", head_dim, 1, limits.MAX_BLOCK // _MOST_HEADS),
        limits.outside("rotated channels", rope_width, 2, head_dim),
        limits.no_multiple("query heads", query_heads, blocks),
        limits.no_multiple("key-value heads", kv_heads, blocks),
    )


def packed_heads(
    qkv: Tensor,
    q_weight: Tensor,
    k_weight: Tensor,
    rope: Tensor,
    to_packed: Tensor,
    group_sizes: Sequence[int],
    num_heads: tuple[int, int],
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries [N, H, d], keys and values [N, G, d] in packed order from grouped rows `qkv` [N, (H + 2G) * d].

    Queries and keys are normalised with the weights [m * d] of their row's group and rotated by `rope` [N, 6B] fp32
    (grouped order, sines first), in fp32 with one rounding. `to_packed` [N] says which grouped row each packed one is.
    """
    num_tokens, query_heads, kv_heads = qkv.shape[0], *num_heads
    dim = qkv.shape[1] // (query_heads + 2 * kv_heads)
    q = qkv.new_empty(num_tokens, query_heads, dim)
    k, v = qkv.new_empty(2, num_tokens, kv_heads, dim).unbind()
    _write_heads(qkv, q_weight, k_weight, rope, to_packed, group_sizes, (q, k, v))
    return q, k, v


def write_heads(
    qkv: Tensor, q_weight: Tensor, k_weight: Tensor, rope: Tensor, out: tuple[Tensor, Tensor, Tensor]
) -> None:
    """The heads of `packed_heads` for rows of one group in their own order, written to contiguous q, k and v."""
    _write_heads(qkv, q_weight, k_weight, rope, None, (qkv.shape[0], 0), out)


def head_blocks(
    qkv: Tensor,
    q_weight: Tensor,
    k_weight: Tensor,
    rope: Tensor,
    to_packed: Tensor,
    group_sizes: Sequence[int],
    num_heads: tuple[int, int],
    out: Tensor,
) -> None:
    """The heads of `packed_heads`, written to `out` [P, N, (H + 2G) / P, d]: block p has the p-th part of each kind."""
    kinds = [count // out.shape[0] for count in (num_heads[0], num_heads[1], num_heads[1])]
    q, k, v = out.split(kinds, dim=2)
    _write_heads(qkv, q_weight, k_weight, rope, to_packed, group_sizes, (q, k, v))


def _write_heads(
    qkv: Tensor,
    q_weight: Tensor,
    k_weight: Tensor,
    rope: Tensor,
    to_packed: Tensor | None,
    group_sizes: Sequence[int],
    out: tuple[Tensor, Tensor, Tensor],
) -> None:
    q, k, v = (tensor if tensor.dim() == 4 else tensor.unsqueeze(0) for tensor in out)
    (blocks, num_tokens, _, dim) = q.shape
    query_heads, kv_heads = blocks * q.shape[2], blocks * k.shape[2]
    limits.require("heads", heads_refusal(query_heads, kv_heads, dim, rope.shape[1], blocks))
    block = math.gcd(query_heads, kv_heads, _MOST_HEADS)
    if num_tokens:
        _heads_kernel[(num_tokens,)](
            qkv, q_weight, k_weight, rope, rope if to_packed is None else to_packed, q, k, v,
            group_sizes[0], group_sizes[0] + group_sizes[1], qkv.stride(0),
            q.stride(1), k.stride(1), q.stride(0), k.stride(0),
            Q_HEADS=query_heads, KV_HEADS=kv_heads, BLOCKS=blocks, D=dim, HALF=rope.shape[1] // 2,
            SETS=q_weight.shape[0] // dim, BLOCK=block, RUN=math.gcd(rope.shape[1] // 2, dim, _VECTOR),
            MOVE=to_packed is not None, num_warps=2,
        )  # fmt: skip


@triton.jit
def _gate_kernel(
    out, logits, to_grouped, log_sums, sinks, gated, scales, stride_logits, stride_block, stride_head, stride_token,
    HEADS: tl.constexpr, PART: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr, CHANNELS: tl.constexpr,
    MOVE: tl.constexpr, SINK: tl.constexpr, QUANTISE: tl.constexpr,
):  # fmt: skip
    grouped = tl.program_id(0).to(tl.int64)
    packed = grouped
    if MOVE:
        packed = tl.load(to_grouped + grouped).to(tl.int64)
    head, channel = tl.arange(0, BLOCK), tl.arange(0, CHANNELS)
    is_head = head < HEADS
    gate = sigmoid(tl.load(logits + grouped * stride_logits + head, mask=is_head, other=0.0).to(tl.float32))
    if SINK:
        log_sum = tl.load(log_sums + head * stride_head + packed * stride_token, mask=is_head, other=0.0)
        gate *= sigmoid(log_sum - tl.load(sinks + head, mask=is_head, other=0.0))
    mask = is_head[:, None] & (channel < D)[None, :]
    place = (head // PART).to(tl.int64) * stride_block + packed * (PART * D) + head % PART * D
    values = tl.load(out + place[:, None] + channel[None, :], mask=mask, other=0.0).to(tl.float32) * gate[:, None]
    if QUANTISE:
        values = values.to(out.dtype.element_ty).to(tl.float32)
        scale, inverse = e4m3_scale(tl.max(tl.max(tl.abs(values), axis=1), axis=0))
        tl.store(scales + grouped, scale)
        values *= inverse
    target = gated + grouped * (HEADS * D) + head[:, None] * D + channel[None, :]
    tl.store(target, values.to(gated.dtype.element_ty), mask=mask)


@cache
def gate_heads_refusal(num_heads: int, head_dim: int) -> str | None:
    """Why `gate_heads` does not take so many heads; None when it does."""
    block = triton.next_power_of_2(num_heads) * triton.next_power_of_2(head_dim)
    return limits.outside("channels of all heads, filled up", block, 1, limits.MAX_BLOCK)


def gate_heads(
    out: Tensor,
    gate_logits: Tensor,
    to_grouped: Tensor | None,
    sink: tuple[Tensor, Tensor] | None = None,
    scales: Tensor | None = None,
) -> Tensor:
    """Attention output [N, H, d] in packed order, times a sigmoid per head: [N, H * d] in grouped order, rounded once.

    The output may also come in blocks of heads, [P, N, H / P, d], each contiguous by itself. `gate_logits` [N, H] are
    in grouped order; `to_grouped` [N] says which packed row each grouped one is, None that the orders are the same.
    With a `sink`, log-sums [H, N] in packed order and logits [H] as for `fold_sink_`, the sinks are folded in as well.
    With `scales` [N] fp32, which are written, the rounded rows come back quantised as e4m3.
    Raises: UnsupportedShapesError where `gate_heads_refusal` says why.
    """
    blocks = out if out.dim() == 4 else out.unsqueeze(0)
    count, num_tokens, num_heads, dim = blocks.shape
    limits.require("gate_heads", gate_heads_refusal(count * num_heads, dim))
    dtype = out.dtype if scales is None else torch.float8_e4m3fn
    gated = out.new_empty(num_tokens, count * num_heads * dim, dtype=dtype)
    log_sums, sinks = sink if sink is not None else (gate_logits, gate_logits)
    if num_tokens:
        _gate_kernel[(num_tokens,)](
            blocks, gate_logits, blocks if to_grouped is None else to_grouped, log_sums, sinks, gated,
            gated if scales is None else scales,
            gate_logits.stride(0), blocks.stride(0), log_sums.stride(0), log_sums.stride(1),
            HEADS=count * num_heads, PART=num_heads, D=dim, BLOCK=triton.next_power_of_2(count * num_heads),
            CHANNELS=triton.next_power_of_2(dim), MOVE=to_grouped is not None, SINK=sink is not None,
            QUANTISE=scales is not None, num_warps=4,
        )  # fmt: skip
    return gated


@triton.jit
def _sink_kernel(
    out, log_sums, sinks, stride_head, stride_token,
    HEADS: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    channel = tl.arange(0, BLOCK)
    mask = channel < HEADS * D
    head = channel // D
    log_sum = tl.load(log_sums + head * stride_head + row * stride_token, mask=mask, other=0.0)
    kept = sigmoid(log_sum - tl.load(sinks + head, mask=mask, other=0.0))
    place = out + row * (HEADS * D) + channel
    values = tl.load(place, mask=mask, other=0.0).to(tl.float32) * kept
    tl.store(place, values.to(out.dtype.element_ty), mask=mask)


@cache
def fold_sink_refusal(num_heads: int, head_dim: int) -> str | None:
    """Why `fold_sink_` does not take so many heads; None when it does."""
    return limits.outside("channels of all heads", num_heads * head_dim, 1, limits.MAX_BLOCK)


def fold_sink_(out: Tensor, log_sums: Tensor, sinks: Tensor) -> Tensor:
    """Attention output [N, H, d] as if each head's softmax had one more logit, in place.

    `log_sums` [H, N] fp32 (any strides) are the logarithms of the softmax's sums, `sinks` [H] fp32 the logits; the
    output keeps exp(l) / (exp(l) + exp(z)) of itself. Raises: UnsupportedShapesError where `fold_sink_refusal` says
    why.
    """
    num_tokens, num_heads, dim = out.shape
    limits.require("fold_sink_", fold_sink_refusal(num_heads, dim))
    if num_tokens:
        _sink_kernel[(num_tokens,)](
            out, log_sums, sinks, log_sums.stride(0), log_sums.stride(1),
            HEADS=num_heads, D=dim, BLOCK=triton.next_power_of_2(num_heads * dim),
            num_warps=8 if num_heads * dim > 1024 else 4,
        )  # fmt: skip
    return out
