"""The expert kernel with specialised warps, for devices with warpgroup products: same arguments, same bits.

One warp fetches weights into rings of shared memory. Two warpgroups of 64 rows each compute, and take turns: while one
has the matrix units, for the down product of a step and the first product of the next one, the other one computes its
activation. At a tile's end each fetches the next tile's tokens while it finishes this one. A tile of at most 64 rows
leaves the second warpgroup idle instead of computing nothing.

A gate block and an up block lie next to each other in shared memory: to the product they are one matrix, and the two
values of a hidden unit come out in one thread, where the next product wants the activation.
"""

# Shapes: N tokens, M heads, E experts per head, K routes per token and head, D head dim, F expert width, W block of F

from __future__ import annotations

import triton.language as tl

from magi2.kernels.gluon import (
    TensorDescriptor,
    async_copy,
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
_W = gl.constexpr(BLOCK_WIDTH)
_GROUP_ROWS = gl.constexpr(BLOCK_ROWS // 2)
_HALVES = gl.constexpr(3)  # of a gate-and-up block, which arrives in two halves of its input dims
_DOWN_BLOCKS = gl.constexpr(2)
_WORKER_REGISTERS = gl.constexpr(240)
_LOADER_REGISTERS = gl.constexpr(24)
_PROGRAMS_PER_PROCESSOR = 32  # one after the other: the device hands them out, which evens out the end


@jit
def _load_gate_up(gate, up, row, f, use, rings):
    blocks, _, filled, free, _, _, _ = rings
    slot = use % _HALVES
    mbarrier.wait(free.index(slot), ((use // _HALVES) & 1) ^ 1)
    mbarrier.expect(filled.index(slot), 2 * gate.block_type.nbytes)
    load_tile(gate, [row, f], filled.index(slot), blocks.index(2 * slot))
    load_tile(up, [row, f], filled.index(slot), blocks.index(2 * slot + 1))


@jit
def _load_weights(gate, up, w_down, tile_expert, total, first_expert, rings, D: gl.constexpr, F: gl.constexpr):
    _, down, _, _, down_filled, down_free, _ = rings
    step = 0
    for tile in range(gl.program_id(0), total, gl.num_programs(0)):
        expert = gl.load(tile_expert + tile) - first_expert
        for f in range(0, F, _W):
            for half in gl.static_range(2):
                _load_gate_up(gate, up, expert * D + half * (D // 2), f, 2 * step + half, rings)
            slot = step % _DOWN_BLOCKS
            mbarrier.wait(down_free.index(slot), ((step // _DOWN_BLOCKS) & 1) ^ 1)
            mbarrier.expect(down_filled.index(slot), w_down.block_type.nbytes)
            load_tile(w_down, [expert * F + f, 0], down_filled.index(slot), down.index(slot))
            step += 1


@jit
def _tile_rows(tables, tile, GROUP: gl.constexpr):
    """A tile's expert and this warpgroup's rows of it, none beyond the last tile."""
    tile_expert, tile_first, tile_end, total = tables
    expert, first, end = 0, 0, 0
    if tile < total:
        expert = gl.load(tile_expert + tile)
        first = gl.load(tile_first + tile) + GROUP * _GROUP_ROWS
        end = gl.load(tile_end + tile)
    return expert, first, end


@jit
def _row_routes(order, first, end, layout: gl.constexpr):
    """The rows' routes; where the rows end, the last one's comes again."""
    row = first + gl.arange(0, _GROUP_ROWS, layout=gl.SliceLayout(1, layout))
    return gl.load(order + gl.maximum(gl.minimum(row, end - 1), 0))


@jit
def _fetch_tokens(
    source, tokens, route, expert, layout: gl.constexpr,
    EXPERTS: gl.constexpr, TOP_K: gl.constexpr, D: gl.constexpr,
):  # fmt: skip
    """Begin to copy the tokens of the routes."""
    x, num_tokens, stride_token, stride_head = source
    dims = gl.arange(0, D, layout=gl.SliceLayout(0, layout))
    head = expert // EXPERTS
    token = (route // TOP_K - head * num_tokens).to(gl.int64)
    pointers = x + token[:, None] * stride_token + head.to(gl.int64) * stride_head + dims[None, :]
    async_copy.async_copy_global_to_shared(tokens, pointers)
    async_copy.commit_group()


@jit
def _start_gate_up(tokens, halves, filled, step, D: gl.constexpr):
    """Begin the product of a step's gate and up columns."""
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 2 * _W, 16])
    blank = gl.zeros([_GROUP_ROWS, 2 * _W], gl.float32, layout)
    one, two = 2 * step, 2 * step + 1
    left, right = tokens.slice(0, D // 2, dim=1), tokens.slice(D // 2, D // 2, dim=1)
    mbarrier.wait(filled.index(one % _HALVES), (one // _HALVES) & 1)
    product = warpgroup_mma(left, halves.index(one % _HALVES), blank, use_acc=False, is_async=True)
    mbarrier.wait(filled.index(two % _HALVES), (two // _HALVES) & 1)
    return warpgroup_mma(right, halves.index(two % _HALVES), product, is_async=True)


@jit
def _free_half(free, use):
    mbarrier.arrive(free.index(use % _HALVES), count=1)


@jit
def _take_turn(turns, turn, GROUP: gl.constexpr):
    mbarrier.wait(turns.index(GROUP), (turn & 1) ^ (1 - GROUP))


@jit
def _end_turn(turns, GROUP: gl.constexpr):
    mbarrier.arrive(turns.index(1 - GROUP), count=1)


@jit
def _activate(product, dtype: gl.constexpr, layout: gl.constexpr):
    """SwiGLU7 of the columns' two halves, as the left operand of the down product."""
    gate, up = gl.split(gl.permute(gl.reshape(product, [_GROUP_ROWS, 2, _W]), (0, 2, 1)))
    g = gl.minimum(gate, 7.0, propagate_nan=tl.PropagateNan.ALL)
    u = gl.minimum(gl.maximum(up, -7.0), 7.0)
    hidden = g / (1.0 + gl.exp2(g * (-1.702 * 1.4426950408889634))) * (u + 1.0)
    return gl.convert_layout(hidden.to(dtype), layout, assert_trivial=True)


@jit
def _store_rows(rows, values, first, end, layout: gl.constexpr, D: gl.constexpr):
    """Write the rows by whole sectors, which needs a thread's pairs of columns to become fours."""
    values = gl.convert_layout(values, layout)
    row = first + gl.arange(0, _GROUP_ROWS, layout=gl.SliceLayout(1, layout))
    dims = gl.arange(0, D, layout=gl.SliceLayout(0, layout))
    gl.store(rows + row.to(gl.int64)[:, None] * D + dims[None, :], values, mask=(row < end)[:, None])


@jit
def _pass_by(rings, step, turn, GROUP: gl.constexpr, F: gl.constexpr):
    """Let a tile's weights and turns go, which has no rows for this warpgroup; returns the next step and turn.

    The weights of a step go before its next turn, for which the other warpgroup needs their place.
    """
    _, _, filled, free, down_filled, down_free, turns = rings
    _take_turn(turns, turn, GROUP)
    _end_turn(turns, GROUP)
    for _ in range(0, F, _W):
        for half in gl.static_range(2):
            use = 2 * step + half
            mbarrier.wait(filled.index(use % _HALVES), (use // _HALVES) & 1)
            _free_half(free, use)
        slot = step % _DOWN_BLOCKS
        mbarrier.wait(down_filled.index(slot), (step // _DOWN_BLOCKS) & 1)
        mbarrier.arrive(down_free.index(slot), count=1)
        step += 1
        turn += 1
        _take_turn(turns, turn, GROUP)
        _end_turn(turns, GROUP)
    return step, turn + 1


@jit
def _compute(
    source, tables, routed, tokens, rings, HALVES: gl.constexpr, STORE: gl.constexpr,
    GROUP: gl.constexpr, EXPERTS: gl.constexpr, TOP_K: gl.constexpr, D: gl.constexpr, F: gl.constexpr,
):  # fmt: skip
    order, weights, rows = routed
    gate_up, down, filled, free, down_filled, down_free, turns = rings
    dtype: gl.constexpr = tokens.dtype
    halves = gate_up._reinterpret(dtype, [_HALVES, D // 2, 2 * _W], HALVES)
    out_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, D, 16])
    hidden_layout: gl.constexpr = gl.DotOperandLayout(0, out_layout, 2)
    copy_layout: gl.constexpr = gl.BlockedLayout([1, 8], [8, 4], [4, 1], [1, 0])
    step, turn = 0, 0
    expert, first, end = _tile_rows(tables, gl.program_id(0), GROUP)
    if first < end:
        route = _row_routes(order, first, end, copy_layout)
        _fetch_tokens(source, tokens, route, expert, copy_layout, EXPERTS, TOP_K, D)
    for tile in range(gl.program_id(0), tables[3], gl.num_programs(0)):
        if first < end:
            async_copy.wait_group(0)
            fence_async_shared()
            synchronise()
            _take_turn(turns, turn, GROUP)
            starting = _start_gate_up(tokens, halves, filled, step, D)
            _end_turn(turns, GROUP)
            # What the tile's end needs is looked up while the first product runs.
            next_expert, next_first, next_end = _tile_rows(tables, tile + gl.num_programs(0), GROUP)
            scale = gl.load(weights + _row_routes(order, first, end, out_layout))
            next_route = _row_routes(order, next_first, next_end, copy_layout)
            out = gl.zeros([_GROUP_ROWS, D], gl.float32, out_layout)
            product = warpgroup_mma_wait(0, deps=[starting])
            _free_half(free, 2 * step)
            _free_half(free, 2 * step + 1)
            for _ in range(_W, F, _W):
                turn += 1
                hidden = _activate(product, dtype, hidden_layout)
                slot, use = step % _DOWN_BLOCKS, 2 * step + 2
                mbarrier.wait(down_filled.index(slot), (step // _DOWN_BLOCKS) & 1)
                mbarrier.wait(filled.index(use % _HALVES), (use // _HALVES) & 1)
                _take_turn(turns, turn, GROUP)
                summing = warpgroup_mma(hidden, down.index(slot), out, is_async=True)
                starting = _start_gate_up(tokens, halves, filled, step + 1, D)
                _end_turn(turns, GROUP)
                # Each block goes as soon as it has been read.
                out, hidden = warpgroup_mma_wait(2, deps=[summing, hidden])
                mbarrier.arrive(down_free.index(slot), count=1)
                out = warpgroup_mma_wait(1, deps=[out])
                _free_half(free, use)
                product = warpgroup_mma_wait(0, deps=[starting])
                _free_half(free, use + 1)
                step += 1
            if next_first < next_end:  # the tokens have served
                _fetch_tokens(source, tokens, next_route, next_expert, copy_layout, EXPERTS, TOP_K, D)
            hidden = _activate(product, dtype, hidden_layout)
            slot = step % _DOWN_BLOCKS
            mbarrier.wait(down_filled.index(slot), (step // _DOWN_BLOCKS) & 1)
            turn += 1
            _take_turn(turns, turn, GROUP)
            summing = warpgroup_mma(hidden, down.index(slot), out, is_async=True)
            _end_turn(turns, GROUP)
            turn += 1
            out, hidden = warpgroup_mma_wait(0, deps=[summing, hidden])
            mbarrier.arrive(down_free.index(slot), count=1)
            step += 1
            _store_rows(rows, (out * scale[:, None]).to(dtype), first, end, STORE, D)
        else:
            next_expert, next_first, next_end = _tile_rows(tables, tile + gl.num_programs(0), GROUP)
            if next_first < next_end:
                route = _row_routes(order, next_first, next_end, copy_layout)
                _fetch_tokens(source, tokens, route, next_expert, copy_layout, EXPERTS, TOP_K, D)
            step, turn = _pass_by(rings, step, turn, GROUP, F)
        expert, first, end = next_expert, next_first, next_end


@jit
def _experts_kernel(
    x, gate, up, w_down, weights, order, tile_expert, tile_first, tile_end, num_tiles, rows,
    num_tokens, stride_token, stride_head, first_expert, HALVES: gl.constexpr, STORE: gl.constexpr,
    EXPERTS: gl.constexpr, TOP_K: gl.constexpr, D: gl.constexpr, F: gl.constexpr,
):  # fmt: skip
    dtype: gl.constexpr = w_down.dtype
    barriers: gl.constexpr = mbarrier.MBarrierLayout()
    tokens_one = gl.allocate_shared_memory(dtype, [_GROUP_ROWS, D], w_down.layout)
    tokens_two = gl.allocate_shared_memory(dtype, [_GROUP_ROWS, D], w_down.layout)
    gate_up = gl.allocate_shared_memory(dtype, [2 * _HALVES, D // 2, _W], gate.layout)
    down = gl.allocate_shared_memory(dtype, [_DOWN_BLOCKS, _W, D], w_down.layout)
    filled = gl.allocate_shared_memory(gl.int64, [_HALVES, 1], barriers)
    free = gl.allocate_shared_memory(gl.int64, [_HALVES, 1], barriers)
    down_filled = gl.allocate_shared_memory(gl.int64, [_DOWN_BLOCKS, 1], barriers)
    down_free = gl.allocate_shared_memory(gl.int64, [_DOWN_BLOCKS, 1], barriers)
    turns = gl.allocate_shared_memory(gl.int64, [2, 1], barriers)
    for slot in gl.static_range(_HALVES):
        mbarrier.init(filled.index(slot), count=1)
        mbarrier.init(free.index(slot), count=2)
    for slot in gl.static_range(_DOWN_BLOCKS):
        mbarrier.init(down_filled.index(slot), count=1)
        mbarrier.init(down_free.index(slot), count=2)
    for group in gl.static_range(2):
        mbarrier.init(turns.index(group), count=1)
    total = gl.load(num_tiles)
    source = (x, num_tokens, stride_token, stride_head)
    tables = (tile_expert, tile_first, tile_end, total)
    rings = (gate_up, down, filled, free, down_filled, down_free, turns)
    routed = (order, weights, rows)
    gl.warp_specialize(
        [
            (_compute, (source, tables, routed, tokens_one, rings, HALVES, STORE, 0, EXPERTS, TOP_K, D, F)),
            (_compute, (source, tables, routed, tokens_two, rings, HALVES, STORE, 1, EXPERTS, TOP_K, D, F)),
            (_load_weights, (gate, up, w_down, tile_expert, total, first_expert, rings, D, F)),
        ],
        [4, 1],
        [_WORKER_REGISTERS, _LOADER_REGISTERS],
    )


def _store_layout(dim: int) -> gl.DistributedLinearLayout:
    """The accumulator's layout, but for two columns of a thread that two of its neighbour's take the place of."""
    wide = [[0, column] for column in (16, 32, 64, 128) if column < dim]
    return gl.DistributedLinearLayout(
        reg_bases=[[0, 1], [0, 2], [8, 0], *wide],
        lane_bases=[[0, 8], [0, 4], [1, 0], [2, 0], [4, 0]],
        warp_bases=[[16, 0], [32, 0]],
        block_bases=[],
        shape=[_GROUP_ROWS.value, dim],
    )


def launch(x, gate_up, w_down, weights, plan, rows, processors: int) -> None:
    """Start the kernel for `x` [N, M, D], two `gate_up` [M*E, D, F] and `w_down` [M*E, F, D]: `experts.expert_rows`."""
    num_tokens, _, dim = x.shape
    width = w_down.shape[1]
    dtype = getattr(gl, str(x.dtype).removeprefix("torch."))

    def described(matrix, block):
        return TensorDescriptor.from_tensor(matrix, block, gl.NVMMASharedLayout.get_default_for(block, dtype))

    gate, up = (described(part.view(-1, width), [dim // 2, BLOCK_WIDTH]) for part in gate_up)
    halves = gl.NVMMASharedLayout.get_default_for([dim // 2, 2 * BLOCK_WIDTH], dtype)
    _experts_kernel[(_PROGRAMS_PER_PROCESSOR * processors,)](
        x,
        gate,
        up,
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
        HALVES=halves,
        STORE=_store_layout(dim),
        EXPERTS=plan.num_experts,
        TOP_K=weights.shape[2],
        D=dim,
        F=width,
        num_warps=4,
    )
