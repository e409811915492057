"""Routed experts in one kernel: gather, gate and up product, SwiGLU7, down product, route weight, sorted store.

The hidden state never leaves the chip. A program holds its rows of `x` in shared memory and walks the expert's width;
gate and up columns lie next to each other, so that one product makes both. Every route writes its own row, and
`combine` adds a token's rows in one order, without atomics.
"""

# Shapes: N tokens, M heads, E experts per head, K routes per token and head, D head dim, F expert width, R = N*M*K

from __future__ import annotations

from functools import cache
from typing import NoReturn

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from magi2.kernels import limits
from magi2.kernels.activation import e4m3_scale, swiglu7
from magi2.kernels.settings import EXPERT_SETTINGS, ExpertSettings, Features
from magi2.kernels.sorting import Plan

_COMBINE_ROWS = 8


def lay_out(w_gate: Tensor, w_up: Tensor, settings: ExpertSettings) -> tuple[Tensor, Tensor]:
    """Gate and up [M*E, D, F] with the same values, stored as the kernel of `settings` takes them.

    The specialised kernel takes them as they are; the plain one wants their columns in turn, in one matrix. What is
    stored that way already comes back itself.
    """
    if settings.specialised:
        return w_gate.contiguous(), w_up.contiguous()
    if as_interleaved(w_gate, w_up) is not None:
        return w_gate, w_up
    pairs = torch.stack([w_gate, w_up], dim=-1)
    return pairs[..., 0], pairs[..., 1]


def as_interleaved(w_gate: Tensor, w_up: Tensor) -> Tensor | None:
    """The matrices [M*E, D, 2F] of gate's and up's columns in turn, of which both are views; None when they are not."""
    rows, dim, width = w_gate.shape
    stride = (dim * 2 * width, 2 * width, 2)
    same = w_up.untyped_storage().data_ptr() == w_gate.untyped_storage().data_ptr()
    neighbours = same and w_up.storage_offset() == w_gate.storage_offset() + 1
    if not neighbours or w_gate.stride() != stride or w_up.stride() != stride:
        return None
    return w_gate.as_strided((rows, dim, 2 * width), (dim * 2 * width, 2 * width, 1))


def _refuse_layout(settings: ExpertSettings) -> NoReturn:
    kernel = "specialised" if settings.specialised else "plain"
    raise ValueError(f"gate and up weights are not stored as the {kernel} expert kernel takes them: use lay_out")


@triton.jit
def _experts_kernel(
    x,
    w13,
    w2,
    weights,
    order,
    tile_expert,
    tile_first,
    tile_end,
    num_tiles,
    rows,
    num_tokens,
    stride_token,
    stride_head,
    first_expert,
    EXPERTS: tl.constexpr,
    TOP_K: tl.constexpr,
    D: tl.constexpr,
    F: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_WIDTH: tl.constexpr,
    STAGES: tl.constexpr,
    DESCRIPTORS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    dims = tl.arange(0, D)
    for tile in tl.range(tl.program_id(0), tl.load(num_tiles), tl.num_programs(0), num_stages=1):
        expert = tl.load(tile_expert + tile)
        row = tl.load(tile_first + tile) + tl.arange(0, BLOCK_ROWS)
        mask = row < tl.load(tile_end + tile)
        route = tl.load(order + row, mask=mask, other=0)
        head = expert // EXPERTS
        token = (route // TOP_K - head * num_tokens).to(tl.int64)
        pointers = x + token[:, None] * stride_token + head.to(tl.int64) * stride_head + dims[None, :]
        tokens = tl.load(pointers, mask=mask[:, None], other=0.0)
        expert -= first_expert
        out = tl.zeros([BLOCK_ROWS, D], tl.float32)
        for f in tl.range(0, F, BLOCK_WIDTH, num_stages=STAGES):
            if DESCRIPTORS:
                gate_up = w13.load([expert * D, 2 * f])
                down = w2.load([expert * F + f, 0])
            else:
                columns = 2 * f + tl.arange(0, 2 * BLOCK_WIDTH)
                gate_up = tl.load(w13 + (expert.to(tl.int64) * D + dims[:, None]) * (2 * F) + columns[None, :])
                inner = expert.to(tl.int64) * F + f + tl.arange(0, BLOCK_WIDTH)
                down = tl.load(w2 + inner[:, None] * D + dims[None, :])
            product = tl.dot(tokens, gate_up, input_precision=PRECISION)
            gate, up = tl.split(tl.reshape(product, (BLOCK_ROWS, BLOCK_WIDTH, 2)))
            hidden = swiglu7(gate, up).to(down.dtype)
            out = tl.dot(hidden, down, out, input_precision=PRECISION)
        scale = tl.load(weights + route, mask=mask, other=0.0)
        target = rows + row.to(tl.int64)[:, None] * D + dims[None, :]
        tl.store(target, (out * scale[:, None]).to(rows.dtype.element_ty), mask=mask[:, None])


@cache
def expert_rows_refusal(
    num_experts: int,
    head_dim: int,
    width: int,
    dtype: torch.dtype,
    available: Features,
    choices: tuple[ExpertSettings, ...] = EXPERT_SETTINGS,
) -> str | None:
    """Why `expert_rows` does not take so many experts [head_dim, width] by any of `choices`; None when it does."""
    fits = any(settings.fits(available, head_dim, width, dtype.itemsize) for settings in choices)
    return limits.first(
        limits.other_dtype(dtype),
        limits.no_power_of_two("MoE head dim", head_dim, limits.MIN_DOT),
        limits.no_multiple("expert width", width, min(settings.block_width for settings in choices)),
        limits.outside("rows of expert weights", num_experts * max(head_dim, width), 1, limits.MAX_INDEX),
        None if fits else f"no settings fit head dim {head_dim}, width {width} and {available.shared_bytes} bytes",
    )


def expert_rows(
    x: Tensor,
    weights: Tensor,
    plan: Plan,
    gate_up: tuple[Tensor, Tensor],
    w_down: Tensor,
    available: Features,
    settings: ExpertSettings,
    rows: Tensor,
) -> Tensor:
    """Weighted expert outputs of the sorted routes, written to `rows` [R, D] and returned.

    `x` [N, M, D] has contiguous channels, `weights` [M, N, K] are fp32, `gate_up` are two [M*E, D, F] as by
    `lay_out` and `w_down` is [M*E, F, D], or all only the plan's experts at hand; `plan` must have been made for tiles
    of `settings.block_rows` rows. Products are summed in fp32; the activation is rounded to the dtype of `x`, and so is
    the weighted row. Raises: UnsupportedShapesError where `expert_rows_refusal` says why, ValueError where the weights
    are stored in another way.
    """
    num_tokens, _, dim = x.shape
    num_experts, width, _ = w_down.shape
    limits.require("expert_rows", expert_rows_refusal(num_experts, dim, width, x.dtype, available, (settings,)))
    if settings.specialised:
        from magi2.kernels import experts_specialised  # an experimental part of triton: only where it is used

        if not all(part.is_contiguous() for part in gate_up):
            _refuse_layout(settings)
        experts_specialised.launch(x, gate_up, w_down, weights, plan, rows, available.processors)
        return rows
    interleaved = as_interleaved(*gate_up)
    if interleaved is None:
        _refuse_layout(settings)
    w13, down = interleaved.view(-1, 2 * width), w_down.view(-1, dim)
    if available.descriptors:
        w13 = TensorDescriptor.from_tensor(w13, [dim, 2 * settings.block_width])
        down = TensorDescriptor.from_tensor(down, [settings.block_width, dim])
    _experts_kernel[(available.processors,)](
        x,
        w13,
        down,
        weights,
        plan.order,
        plan.tile_expert,
        plan.tile_first,
        plan.tile_end,
        plan.num_tiles,
        rows,
        num_tokens,
        x.stride(0),
        x.stride(1),
        plan.first,
        EXPERTS=plan.num_experts,
        TOP_K=weights.shape[2],
        D=dim,
        F=width,
        BLOCK_ROWS=settings.block_rows,
        BLOCK_WIDTH=settings.block_width,
        STAGES=settings.stages,
        DESCRIPTORS=available.descriptors,
        PRECISION="ieee",
        num_warps=settings.warps,
    )
    return rows


@triton.jit
def _combine_kernel(
    rows,
    position,
    ids,
    out,
    scales,
    num_rows,
    num_tokens,
    first,
    stop,
    HEADS: tl.constexpr,
    EXPERTS: tl.constexpr,
    TOP_K: tl.constexpr,
    D: tl.constexpr,
    STEP: tl.constexpr,
    BLOCK: tl.constexpr,
    QUANTISE: tl.constexpr,
):
    row = tl.program_id(0) * STEP + tl.arange(0, BLOCK)
    mask = (tl.arange(0, BLOCK) < STEP) & (row < num_rows)
    dims = tl.arange(0, D)
    head = row % HEADS
    route = (head * num_tokens + row // HEADS) * TOP_K
    lower = tl.zeros([BLOCK, D], tl.float32)
    upper = tl.zeros([BLOCK, D], tl.float32)
    for rank in tl.static_range(TOP_K):
        place = tl.load(position + route + rank, mask=mask, other=-1).to(tl.int64)
        is_lower = tl.load(ids + route + rank, mask=mask, other=0) < EXPERTS // 2
        values = tl.load(rows + place[:, None] * D + dims[None, :], mask=(place >= 0)[:, None], other=0.0)
        values = values.to(tl.float32)
        lower += tl.where(is_lower[:, None], values, 0.0)
        upper += tl.where(is_lower[:, None], 0.0, values)
    # Each half is rounded by itself, as it is when it comes from another rank.
    lower = lower.to(rows.dtype.element_ty).to(tl.float32)
    upper = upper.to(rows.dtype.element_ty).to(tl.float32)
    has_lower = head * EXPERTS >= first
    has_upper = (head + 1) * EXPERTS <= stop
    total = tl.where((has_lower & has_upper)[:, None], lower + upper, tl.where(has_lower[:, None], lower, upper))
    if QUANTISE:
        total = total.to(rows.dtype.element_ty).to(tl.float32)
        scale, inverse = e4m3_scale(tl.max(tl.max(tl.abs(total), axis=1), axis=0))
        tl.store(scales + tl.program_id(0), scale)
        total *= inverse
    target = out + row.to(tl.int64)[:, None] * D + dims[None, :]
    tl.store(target, total.to(out.dtype.element_ty), mask=mask[:, None])


@cache
def combine_refusal(head_dim: int, top_k: int) -> str | None:
    """Why `combine` does not take rows of `head_dim` and so many of them per token; None when it does."""
    return limits.first(
        limits.no_power_of_two("MoE head dim", head_dim),
        limits.outside("MoE head dim", head_dim, 1, limits.MAX_BLOCK // _COMBINE_ROWS),
        limits.outside("top_k", top_k, 1, limits.MAX_TOP_K),
    )


def combine(rows: Tensor, plan: Plan, out: Tensor, scales: Tensor | None = None) -> Tensor:
    """Sum of each token's rows into `out` [N, M, D], which comes back; `rows` [R, D] are the plan's sorted routes.

    The rows of either half of a head's experts are added in fp32, best route first, and rounded to the dtype of `rows`;
    then the halves, lower one first. A half that is not at hand is left out. With `scales` [N] fp32, which are written,
    `out` is e4m3 and a token's rounded sums are quantised together. Raises: UnsupportedShapesError where
    `combine_refusal` says why.
    """
    num_tokens, num_heads, dim = out.shape
    limits.require("combine", combine_refusal(dim, plan.position.shape[2]))
    num_rows = num_tokens * num_heads
    step = _COMBINE_ROWS if scales is None else num_heads
    _combine_kernel[(triton.cdiv(num_rows, step),)](
        rows,
        plan.position,
        plan.expert_ids,
        out,
        out if scales is None else scales,
        num_rows,
        num_tokens,
        plan.first,
        plan.stop,
        HEADS=num_heads,
        EXPERTS=plan.num_experts,
        TOP_K=plan.position.shape[2],
        D=dim,
        STEP=step,
        BLOCK=triton.next_power_of_2(step),
        QUANTISE=scales is not None,
        num_warps=4 if step <= _COMBINE_ROWS else 8,
    )
    return out
