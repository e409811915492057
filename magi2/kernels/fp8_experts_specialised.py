"""The FP8 expert kernel with specialised warps, for devices with warpgroup products: same arguments, same bits.

As in `experts_specialised` one warp fetches weights and two warpgroups of 64 rows compute. A step's three blocks, gate,
up and down, are a slot of one ring. While a step's down product is under way the next step's gate and up product
already waits behind it, so that the matrix units stay busy.
"""

# Shapes: N tokens, M heads, E experts per head, K routes per token and head, D head dim, F expert width, W block of F

from __future__ import annotations

import triton.language as tl

from magi2.kernels.gluon import (
    TensorDescriptor,
    fence_async_shared,
    jit,
    load_tile,
    mbarrier,
    synchronise,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from magi2.kernels.gluon import language as gl

_BLOCK_ROWS = 128
_BLOCK_WIDTH = 64
_STAGES = 4
_GROUP_ROWS = gl.constexpr(_BLOCK_ROWS // 2)
_WORKER_REGISTERS = gl.constexpr(240)
_LOADER_REGISTERS = gl.constexpr(24)
_PROGRAMS_PER_PROCESSOR = 16  # one after the other: the device hands them out, which evens out the end


@jit
def _load_weights(
    sources, rings,
    D: gl.constexpr, F: gl.constexpr, W: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    w_gate, w_up, w_down, gate_scales, up_scales, tile_expert, total, first_expert = sources
    gate_up, down, scales, filled, free = rings
    column = gl.arange(0, W, layout=gl.BlockedLayout([W // 32], [32], [1], [0]))
    step = 0
    for tile in range(gl.program_id(0), total, gl.num_programs(0)):
        expert = gl.load(tile_expert + tile) - first_expert
        for f in range(0, F, W):
            slot = step % STAGES
            mbarrier.wait(free.index(slot), ((step // STAGES) & 1) ^ 1)
            mbarrier.expect(filled.index(slot), 6 * w_gate.block_type.nbytes)
            block = (expert * F + f) // 16
            for part in gl.static_range(D // 128):
                place = [block, 0, 0, 0, part * 128]
                load_tile(w_gate, place, filled.index(slot), gate_up.index(4 * slot + 2 * part))
                load_tile(w_up, place, filled.index(slot), gate_up.index(4 * slot + 2 * part + 1))
            load_tile(w_down, [expert * D, f], filled.index(slot), down.index(slot))
            place = expert * F + f + column
            scales.index(2 * slot).store(gl.load(gate_scales + place))
            scales.index(2 * slot + 1).store(gl.load(up_scales + place))
            synchronise()
            mbarrier.arrive(filled.index(slot), count=1)
            step += 1


@jit
def _first_product(left, right, blocks, slot, W: gl.constexpr, layout: gl.constexpr):
    """Begin the product of tokens with a slot's gate and up rows: [rows, 2W], gate columns first."""
    blank = gl.zeros([_GROUP_ROWS, 2 * W], gl.float32, layout)
    product = warpgroup_mma(left, blocks.index(2 * slot).permute((1, 0)), blank, use_acc=False, is_async=True)
    return warpgroup_mma(right, blocks.index(2 * slot + 1).permute((1, 0)), product, is_async=True)


@jit
def _reciprocal(x):
    """1 / x without care for x beyond 2^126, where it is 0, as the hidden value is that comes of it."""
    return gl.inline_asm_elementwise("rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=gl.float32, is_pure=True, pack=1)


@jit
def _in_order(columns, W: gl.constexpr):
    """Columns of a product in the order of the expert's rows, so that a thread holds what the next product wants."""
    blocks = gl.permute(gl.reshape(columns, [_GROUP_ROWS, W // 16, 2, 4, 2]), (0, 1, 3, 2, 4))
    return gl.reshape(blocks, [_GROUP_ROWS, W])


@jit
def _hidden(product, token_scales, scales, slot, W: gl.constexpr, hidden_layout: gl.constexpr):
    """SwiGLU7 of a product, eight times as large, as the left operand of the next one."""
    gate, up = gl.split(gl.permute(gl.reshape(product, [_GROUP_ROWS, 2, W]), (0, 2, 1)))
    gate, up = _in_order(gate, W), _in_order(up, W)
    columns: gl.constexpr = gl.SliceLayout(0, gate.type.layout)
    scale = gl.convert_layout(token_scales, gl.SliceLayout(1, gate.type.layout))[:, None]
    gate = gate * scale * scales.index(2 * slot).load(columns)[None, :]
    up = up * scale * scales.index(2 * slot + 1).load(columns)[None, :]
    g = gl.minimum(gate, 7.0, propagate_nan=tl.PropagateNan.ALL)
    u = gl.minimum(gl.maximum(up, -7.0), 7.0)
    sigmoid = _reciprocal(1.0 + gl.exp2(g * (-1.702 * 1.4426950408889634)))
    hidden = g * sigmoid * (u * 8.0 + 8.0)
    return gl.convert_layout(hidden.to(gl.float8e4nv), hidden_layout, assert_trivial=True)


@jit
def _compute(
    tables, row_scales, tokens, rings,
    GROUP: gl.constexpr, EXPERTS: gl.constexpr, TOP_K: gl.constexpr,
    D: gl.constexpr, F: gl.constexpr, W: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    x, weights, order, tile_expert, tile_first, tile_end, total, rows, num_tokens, num_heads, first_expert = tables
    x_scales, down_scales = row_scales
    gate_up, down, scales, filled, free = rings
    out_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, D, 32])
    product_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 2 * W, 32])
    hidden_layout: gl.constexpr = gl.DotOperandLayout(0, out_layout, 4)
    io_layout: gl.constexpr = gl.BlockedLayout([1, 16], [4, 8], [4, 1], [1, 0])
    row_layout: gl.constexpr = gl.BlockedLayout([1, 8], [2, 16], [4, 1], [1, 0])
    staging_layout: gl.constexpr = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2)
    dtype: gl.constexpr = rows.dtype.element_ty
    half: gl.constexpr = D // 2
    dims = gl.arange(0, half, layout=gl.SliceLayout(0, io_layout))
    left, right = tokens.index(0), tokens.index(1)
    step = 0
    for tile in range(gl.program_id(0), total, gl.num_programs(0)):
        expert = gl.load(tile_expert + tile)
        first = gl.load(tile_first + tile) + GROUP * _GROUP_ROWS
        end = gl.load(tile_end + tile)
        if first < end:
            head = expert // EXPERTS
            row = first + gl.arange(0, _GROUP_ROWS, layout=gl.SliceLayout(1, io_layout))
            mask = row < end
            route = gl.load(order + row, mask=mask, other=0)
            token = (route // TOP_K - head * num_tokens).to(gl.int64)
            pointers = x + (token * num_heads + head)[:, None] * D + dims[None, :]
            left.store(gl.load(pointers, mask=mask[:, None], other=0.0))
            right.store(gl.load(pointers + half, mask=mask[:, None], other=0.0))
            fence_async_shared()
            synchronise()
            out_row = first + gl.arange(0, _GROUP_ROWS, layout=gl.SliceLayout(1, out_layout))
            out_mask = out_row < end
            out_route = gl.load(order + out_row, mask=out_mask, other=0)
            out_token = (out_route // TOP_K - head * num_tokens).to(gl.int64)
            token_scale = gl.load(x_scales + out_token * num_heads + head, mask=out_mask, other=0.0)
            held = (expert - first_expert).to(gl.int64)
            out = gl.zeros([_GROUP_ROWS, D], gl.float32, out_layout)
            mbarrier.wait(filled.index(step % STAGES), (step // STAGES) & 1)
            product = _first_product(left, right, gate_up, step % STAGES, W, product_layout)
            product = warpgroup_mma_wait(0, deps=[product])
            for _ in range(0, F - W, W):
                slot, following = step % STAGES, (step + 1) % STAGES
                hidden = _hidden(product, token_scale, scales, slot, W, hidden_layout)
                summed = warpgroup_mma(hidden, down.index(slot).permute((1, 0)), out, is_async=True)
                mbarrier.wait(filled.index(following), ((step + 1) // STAGES) & 1)
                product = _first_product(left, right, gate_up, following, W, product_layout)
                out, product = warpgroup_mma_wait(0, deps=[summed, product])
                mbarrier.arrive(free.index(slot), count=1)
                step += 1
            slot = step % STAGES
            hidden = _hidden(product, token_scale, scales, slot, W, hidden_layout)
            summed = warpgroup_mma(hidden, down.index(slot).permute((1, 0)), out, is_async=True)
            out = warpgroup_mma_wait(0, deps=[summed])
            mbarrier.arrive(free.index(slot), count=1)
            step += 1
            channel = gl.arange(0, D, layout=gl.SliceLayout(0, out_layout))
            out = out * 0.125 * gl.load(down_scales + held * D + channel)[None, :]
            out = (out * gl.load(weights + out_route, mask=out_mask, other=0.0)[:, None]).to(dtype)
            # The tokens' place is free by now, and makes whole lines of the rows.
            lower, upper = gl.split(gl.permute(gl.reshape(out, [_GROUP_ROWS, 2, half]), (0, 2, 1)))
            wide = left._reinterpret(dtype, [_GROUP_ROWS, half], staging_layout)
            io_row = first + gl.arange(0, _GROUP_ROWS, layout=gl.SliceLayout(1, row_layout))
            io_dims = gl.arange(0, half, layout=gl.SliceLayout(0, row_layout))
            target = rows + io_row.to(gl.int64)[:, None] * D + io_dims[None, :]
            wide.store(lower)
            synchronise()
            gl.store(target, wide.load(row_layout), mask=(io_row < end)[:, None])
            synchronise()
            wide.store(upper)
            synchronise()
            gl.store(target + half, wide.load(row_layout), mask=(io_row < end)[:, None])
            synchronise()
        else:
            for _ in range(0, F, W):
                mbarrier.wait(filled.index(step % STAGES), (step // STAGES) & 1)
                mbarrier.arrive(free.index(step % STAGES), count=1)
                step += 1


@jit
def _fp8_experts_kernel(
    x, x_scales, w_gate, gate_scales, w_up, up_scales, w_down, down_scales, weights,
    order, tile_expert, tile_first, tile_end, num_tiles, rows, num_tokens, num_heads, first_expert,
    EXPERTS: gl.constexpr, TOP_K: gl.constexpr, D: gl.constexpr, F: gl.constexpr, W: gl.constexpr,
    STAGES: gl.constexpr,
):  # fmt: skip
    dtype: gl.constexpr = gl.float8e4nv
    half: gl.constexpr = D // 2
    layout: gl.constexpr = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=8, rank=2)
    tokens_one = gl.allocate_shared_memory(dtype, [2, _GROUP_ROWS, half], layout)
    tokens_two = gl.allocate_shared_memory(dtype, [2, _GROUP_ROWS, half], layout)
    filling = gl.allocate_shared_memory(dtype, [4 * STAGES, W // 16, 2, 4, 2, half], w_gate.layout)
    # What arrives block by block, 16 rows each, is read as gate rows above up rows, half of their input dims at a time.
    gate_up = filling._reinterpret(dtype, [2 * STAGES, 2 * W, half], layout)
    down = gl.allocate_shared_memory(dtype, [STAGES, D, W], w_down.layout)
    ring_scales = gl.allocate_shared_memory(gl.float32, [2 * STAGES, W], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    filled = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for slot in gl.static_range(STAGES):
        mbarrier.init(filled.index(slot), count=2)  # the copies' and the scales'
        mbarrier.init(free.index(slot), count=2)
    total = gl.load(num_tiles)
    tables = (x, weights, order, tile_expert, tile_first, tile_end, total, rows, num_tokens, num_heads, first_expert)
    row_scales = (x_scales, down_scales)
    rings = (gate_up, down, ring_scales, filled, free)
    sources = (w_gate, w_up, w_down, gate_scales, up_scales, tile_expert, total, first_expert)
    filling_rings = (filling, down, ring_scales, filled, free)
    gl.warp_specialize(
        [
            (_compute, (tables, row_scales, tokens_one, rings, 0, EXPERTS, TOP_K, D, F, W, STAGES)),
            (_compute, (tables, row_scales, tokens_two, rings, 1, EXPERTS, TOP_K, D, F, W, STAGES)),
            (_load_weights, (sources, filling_rings, D, F, W, STAGES)),
        ],
        [4, 1],
        [_WORKER_REGISTERS, _LOADER_REGISTERS],
    )


def launch(x, weights_of, weights, plan, rows, processors: int) -> None:
    """Start the kernel for e4m3 `x` [N, M, D] with its scales; see `fp8_experts.expert_rows`."""
    values, x_scales = x
    gate, up, down = weights_of
    num_tokens, num_heads, dim = values.shape
    width = gate.values.shape[1]

    def rows_of(matrix):
        """Blocks of 16 rows in the order in which the kernel wants to hold them: 2 by 4 by 2 as 4 by 2 by 2."""
        shape = [matrix.numel() // (16 * dim), 2, 4, 2, dim]
        strides = [16 * dim, 2 * dim, 4 * dim, dim, 1]
        block = [_BLOCK_WIDTH // 16, 2, 4, 2, 128]
        layout = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=8, rank=5)
        return TensorDescriptor(matrix, shape, strides, block, layout)

    flat = down.values.view(-1, width)
    layout = gl.NVMMASharedLayout(swizzle_byte_width=_BLOCK_WIDTH, element_bitwidth=8, rank=2)
    _fp8_experts_kernel[(_PROGRAMS_PER_PROCESSOR * processors,)](
        values,
        x_scales,
        rows_of(gate.values),
        gate.scales,
        rows_of(up.values),
        up.scales,
        TensorDescriptor.from_tensor(flat, [dim, _BLOCK_WIDTH], layout),
        down.scales,
        weights,
        plan.order,
        plan.tile_expert,
        plan.tile_first,
        plan.tile_end,
        plan.num_tiles,
        rows,
        num_tokens,
        num_heads,
        plan.first,
        EXPERTS=plan.num_experts,
        TOP_K=weights.shape[2],
        D=dim,
        F=width,
        W=_BLOCK_WIDTH,
        STAGES=_STAGES,
        num_warps=4,
    )
