"""The expert kernel with specialised warps, for devices with warpgroup products: same arguments, same bits.

One warp fetches weights into rings of shared memory. Two warpgroups of 64 rows each compute, and nothing but the
rings ties them together: while one is busy with the activation, the other one keeps the matrix units busy. A tile
of at most 64 rows leaves the second warpgroup idle instead of computing nothing.
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

BLOCK_ROWS = 128
BLOCK_WIDTH = 64
_GROUP_ROWS = gl.constexpr(BLOCK_ROWS // 2)
_HALVES = 3  # of a gate-and-up block, which arrives in two halves of its input dims
_DOWN_BLOCKS = gl.constexpr(2)
_WORKER_REGISTERS = gl.constexpr(240)
_LOADER_REGISTERS = gl.constexpr(24)
_PROGRAMS_PER_PROCESSOR = 16  # one after the other: the device hands them out, which evens out the end


@jit
def _load_weights(
    w13, w2, tile_expert, total, first_expert, rings,
    D: gl.constexpr, F: gl.constexpr, W: gl.constexpr, HALVES: gl.constexpr,
):  # fmt: skip
    gate_up, down, filled, free, down_filled, down_free = rings
    step = 0
    for tile in range(gl.program_id(0), total, gl.num_programs(0)):
        expert = gl.load(tile_expert + tile) - first_expert
        for f in range(0, F, W):
            for half in gl.static_range(2):
                use = 2 * step + half
                slot = use % HALVES
                mbarrier.wait(free.index(slot), ((use // HALVES) & 1) ^ 1)
                mbarrier.expect(filled.index(slot), w13.block_type.nbytes)
                place = [expert * D + half * (D // 2), 2 * f]
                load_tile(w13, place, filled.index(slot), gate_up.index(slot))
            slot = step % _DOWN_BLOCKS
            mbarrier.wait(down_free.index(slot), ((step // _DOWN_BLOCKS) & 1) ^ 1)
            mbarrier.expect(down_filled.index(slot), w2.block_type.nbytes)
            load_tile(w2, [expert * F + f, 0], down_filled.index(slot), down.index(slot))
            step += 1


@jit
def _compute(
    tables, tokens, rings,
    GROUP: gl.constexpr, EXPERTS: gl.constexpr, TOP_K: gl.constexpr,
    D: gl.constexpr, F: gl.constexpr, W: gl.constexpr, HALVES: gl.constexpr,
):  # fmt: skip
    x, weights, order, tile_expert, tile_first, tile_end, total, rows, num_tokens, stride_token, stride_head = tables
    gate_up, down, filled, free, down_filled, down_free = rings
    out_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, D, 16])
    product_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 2 * W, 16])
    hidden_layout: gl.constexpr = gl.DotOperandLayout(0, out_layout, 2)
    io_layout: gl.constexpr = gl.BlockedLayout([1, 8], [8, 4], [4, 1], [1, 0])
    dims = gl.arange(0, D, layout=gl.SliceLayout(0, io_layout))
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
            pointers = x + token[:, None] * stride_token + head.to(gl.int64) * stride_head + dims[None, :]
            tokens.store(gl.load(pointers, mask=mask[:, None], other=0.0))
            fence_async_shared()
            synchronise()
            out = gl.zeros([_GROUP_ROWS, D], gl.float32, out_layout)
            blank = gl.zeros([_GROUP_ROWS, 2 * W], gl.float32, product_layout)
            for _ in range(0, F, W):
                one, two = 2 * step, 2 * step + 1
                left, right = tokens.slice(0, D // 2, dim=1), tokens.slice(D // 2, D // 2, dim=1)
                mbarrier.wait(filled.index(one % HALVES), (one // HALVES) & 1)
                product = warpgroup_mma(left, gate_up.index(one % HALVES), blank, use_acc=False, is_async=True)
                mbarrier.wait(filled.index(two % HALVES), (two // HALVES) & 1)
                product = warpgroup_mma(right, gate_up.index(two % HALVES), product, is_async=True)
                product = warpgroup_mma_wait(0, deps=[product])
                mbarrier.arrive(free.index(one % HALVES), count=1)
                mbarrier.arrive(free.index(two % HALVES), count=1)
                gate, up = gl.split(gl.reshape(product, [_GROUP_ROWS, W, 2]))
                g = gl.minimum(gate, 7.0, propagate_nan=tl.PropagateNan.ALL)
                u = gl.minimum(gl.maximum(up, -7.0), 7.0)
                hidden = g / (1.0 + gl.exp2(g * (-1.702 * 1.4426950408889634))) * (u + 1.0)
                hidden = gl.convert_layout(hidden.to(tokens.dtype), hidden_layout)
                slot = step % _DOWN_BLOCKS
                mbarrier.wait(down_filled.index(slot), (step // _DOWN_BLOCKS) & 1)
                summed = warpgroup_mma(hidden, down.index(slot), out, is_async=True)
                out = warpgroup_mma_wait(0, deps=[summed])
                mbarrier.arrive(down_free.index(slot), count=1)
                step += 1
            out_row = first + gl.arange(0, _GROUP_ROWS, layout=gl.SliceLayout(1, out_layout))
            out_mask = out_row < end
            out_route = gl.load(order + out_row, mask=out_mask, other=0)
            scale = gl.load(weights + out_route, mask=out_mask, other=0.0)
            # The tokens' place is free by now, and makes whole lines of the rows.
            tokens.store((out * scale[:, None]).to(tokens.dtype))
            synchronise()
            gl.store(rows + row.to(gl.int64)[:, None] * D + dims[None, :], tokens.load(io_layout), mask=mask[:, None])
            synchronise()
        else:
            for _ in range(0, F, W):
                for half in gl.static_range(2):
                    use = 2 * step + half
                    mbarrier.wait(filled.index(use % HALVES), (use // HALVES) & 1)
                    mbarrier.arrive(free.index(use % HALVES), count=1)
                slot = step % _DOWN_BLOCKS
                mbarrier.wait(down_filled.index(slot), (step // _DOWN_BLOCKS) & 1)
                mbarrier.arrive(down_free.index(slot), count=1)
                step += 1


@jit
def _experts_kernel(
    x, w13, w2, weights, order, tile_expert, tile_first, tile_end, num_tiles, rows,
    num_tokens, stride_token, stride_head, first_expert,
    EXPERTS: gl.constexpr, TOP_K: gl.constexpr, D: gl.constexpr, F: gl.constexpr, W: gl.constexpr,
    HALVES: gl.constexpr,
):  # fmt: skip
    dtype: gl.constexpr = w2.dtype
    layout: gl.constexpr = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2)
    tokens_one = gl.allocate_shared_memory(dtype, [_GROUP_ROWS, D], layout)
    tokens_two = gl.allocate_shared_memory(dtype, [_GROUP_ROWS, D], layout)
    gate_up = gl.allocate_shared_memory(dtype, [HALVES, D // 2, 2 * W], w13.layout)
    down = gl.allocate_shared_memory(dtype, [_DOWN_BLOCKS, W, D], w2.layout)
    filled = gl.allocate_shared_memory(gl.int64, [HALVES, 1], mbarrier.MBarrierLayout())
    free = gl.allocate_shared_memory(gl.int64, [HALVES, 1], mbarrier.MBarrierLayout())
    down_filled = gl.allocate_shared_memory(gl.int64, [_DOWN_BLOCKS, 1], mbarrier.MBarrierLayout())
    down_free = gl.allocate_shared_memory(gl.int64, [_DOWN_BLOCKS, 1], mbarrier.MBarrierLayout())
    for slot in gl.static_range(HALVES):
        mbarrier.init(filled.index(slot), count=1)
        mbarrier.init(free.index(slot), count=2)
    for slot in gl.static_range(_DOWN_BLOCKS):
        mbarrier.init(down_filled.index(slot), count=1)
        mbarrier.init(down_free.index(slot), count=2)
    total = gl.load(num_tiles)
    tables = (x, weights, order, tile_expert, tile_first, tile_end, total, rows, num_tokens, stride_token, stride_head)
    rings = (gate_up, down, filled, free, down_filled, down_free)
    gl.warp_specialize(
        [
            (_compute, (tables, tokens_one, rings, 0, EXPERTS, TOP_K, D, F, W, HALVES)),
            (_compute, (tables, tokens_two, rings, 1, EXPERTS, TOP_K, D, F, W, HALVES)),
            (_load_weights, (w13, w2, tile_expert, total, first_expert, rings, D, F, W, HALVES)),
        ],
        [4, 1],
        [_WORKER_REGISTERS, _LOADER_REGISTERS],
    )


def launch(x, w13, w_down, weights, plan, rows, processors: int) -> None:
    """Start the kernel for `x` [N, M, D], `w13` [M*E, D, 2F] and `w_down` [M*E, F, D]; see `experts.expert_rows`."""
    num_tokens, _, dim = x.shape
    width = w_down.shape[1]
    dtype = getattr(gl, str(x.dtype).removeprefix("torch."))

    def described(matrix, block):
        layout = gl.NVMMASharedLayout.get_default_for(block, dtype)
        return TensorDescriptor.from_tensor(matrix, block, layout)

    _experts_kernel[(_PROGRAMS_PER_PROCESSOR * processors,)](
        x,
        described(w13.view(-1, 2 * width), [dim // 2, 2 * BLOCK_WIDTH]),
        described(w_down.view(-1, dim), [BLOCK_WIDTH, dim]),
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
        W=BLOCK_WIDTH,
        HALVES=_HALVES,
        num_warps=4,
    )
