"""The window kernel with specialised warps, for devices with warpgroup products: same arguments, same bits.

One warp fetches keys and values into rings of shared memory. Two warpgroups of 64 queries each compute; each multiplies
the next keys while it takes the exponentials of the present ones, and adds the values of the last ones meanwhile.
"""

# Shapes: S queries, K keys, H query heads, G key/value heads, d head dim

from __future__ import annotations

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

HEAD_DIM = 128
_KEYS = gl.constexpr(128)
_GROUP_ROWS = gl.constexpr(64)
_STAGES = gl.constexpr(2)
_WORKER_REGISTERS = gl.constexpr(240)
_LOADER_REGISTERS = gl.constexpr(24)


@jit
def _load_keys(k, v, key_first, begin, end, column, rings):
    k_ring, v_ring, k_filled, k_free, v_filled, v_free = rings
    for entry in range(begin, end):
        step = entry - begin
        slot = step % _STAGES
        phase = ((step // _STAGES) & 1) ^ 1
        first = gl.load(key_first + entry)
        mbarrier.wait(k_free.index(slot), phase)
        mbarrier.expect(k_filled.index(slot), k.block_type.nbytes)
        load_tile(k, [first, column], k_filled.index(slot), k_ring.index(slot))
        mbarrier.wait(v_free.index(slot), phase)
        mbarrier.expect(v_filled.index(slot), v.block_type.nbytes)
        load_tile(v, [first, column], v_filled.index(slot), v_ring.index(slot))


@jit
def _mask_keys(scores, count, layout: gl.constexpr):
    key = gl.arange(0, _KEYS, layout=gl.SliceLayout(0, layout))
    return gl.where((key < count)[None, :], scores, float("-inf"))


@jit
def _attend(q, out, queries, key_count, tile, rings, scale, GROUP: gl.constexpr, WIDTH: gl.constexpr, D: gl.constexpr):
    first, rows, begin, full_end, end, column = tile
    k_ring, v_ring, k_filled, k_free, v_filled, v_free = rings
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, _KEYS, 16])
    out_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, D, 16])
    weights_layout: gl.constexpr = gl.DotOperandLayout(0, out_layout, 2)
    io_layout: gl.constexpr = gl.BlockedLayout([1, 8], [2, 16], [4, 1], [1, 0])
    row = GROUP * _GROUP_ROWS + gl.arange(0, _GROUP_ROWS, layout=gl.SliceLayout(1, io_layout))
    channel = gl.arange(0, D, layout=gl.SliceLayout(0, io_layout))
    place = (first + row).to(gl.int64)[:, None] * WIDTH + column + channel[None, :]
    queries.store(gl.load(q + place, mask=(row < rows)[:, None], other=0.0))
    fence_async_shared()
    synchronise()
    blank = gl.zeros([_GROUP_ROWS, _KEYS], gl.float32, layout)
    mixed = gl.zeros([_GROUP_ROWS, D], gl.float32, out_layout)
    mbarrier.wait(k_filled.index(0), 0)
    scores = warpgroup_mma(queries, k_ring.index(0).permute((1, 0)), blank, use_acc=False, is_async=True)
    scores = warpgroup_mma_wait(0, deps=[scores])
    mbarrier.arrive(k_free.index(0), count=1)
    if begin >= full_end:
        scores = _mask_keys(scores, gl.load(key_count + begin), layout)
    top = gl.max(scores, axis=1) * scale
    weights = gl.exp2(scores * scale - top[:, None])
    total = gl.sum(weights, axis=1)
    packed = gl.convert_layout(weights.to(queries.dtype), weights_layout)
    step = 1
    for entry in range(begin + 1, end):
        slot, last = step % _STAGES, (step - 1) % _STAGES
        mbarrier.wait(k_filled.index(slot), (step // _STAGES) & 1)
        scoring = warpgroup_mma(queries, k_ring.index(slot).permute((1, 0)), blank, use_acc=False, is_async=True)
        mbarrier.wait(v_filled.index(last), ((step - 1) // _STAGES) & 1)
        mixing = warpgroup_mma(packed, v_ring.index(last), mixed, is_async=True)
        scores = warpgroup_mma_wait(1, deps=[scoring])
        mbarrier.arrive(k_free.index(slot), count=1)
        if entry >= full_end:
            scores = _mask_keys(scores, gl.load(key_count + entry), layout)
        new_top = gl.maximum(top, gl.max(scores, axis=1) * scale)
        weights = gl.exp2(scores * scale - new_top[:, None])
        shrink = gl.exp2(top - new_top)
        total = total * shrink + gl.sum(weights, axis=1)
        top = new_top
        # The product under way still reads the last weights.
        mixed, packed = warpgroup_mma_wait(0, deps=[mixing, packed])
        mbarrier.arrive(v_free.index(last), count=1)
        mixed = mixed * gl.convert_layout(shrink, gl.SliceLayout(1, out_layout))[:, None]
        packed = gl.convert_layout(weights.to(queries.dtype), weights_layout)
        step += 1
    last = (step - 1) % _STAGES
    mbarrier.wait(v_filled.index(last), ((step - 1) // _STAGES) & 1)
    mixing = warpgroup_mma(packed, v_ring.index(last), mixed, is_async=True)
    mixed = warpgroup_mma_wait(0, deps=[mixing])
    mixed = mixed / gl.convert_layout(total, gl.SliceLayout(1, out_layout))[:, None]
    # The queries' place is free by now, and makes whole lines of the rows.
    queries.store(mixed.to(queries.dtype))
    synchronise()
    gl.store(out + place, queries.load(io_layout), mask=(row < rows)[:, None])


@jit
def _window_kernel(
    q, k, v, tiles, key_first, key_count, out, num_tiles, scale,
    HEADS: gl.constexpr, KV_HEADS: gl.constexpr, D: gl.constexpr,
):  # fmt: skip
    dtype: gl.constexpr = k.dtype
    SHARED: gl.constexpr = HEADS // KV_HEADS
    program = gl.program_id(0)
    kv_head = program // (num_tiles * SHARED)
    head = kv_head * SHARED + program % SHARED
    entry = tiles + program % (num_tiles * SHARED) // SHARED * 5
    first, rows = gl.load(entry), gl.load(entry + 1)
    begin, full_end, end = gl.load(entry + 2), gl.load(entry + 3), gl.load(entry + 4)
    one = gl.allocate_shared_memory(dtype, [_GROUP_ROWS, D], k.layout)
    two = gl.allocate_shared_memory(dtype, [_GROUP_ROWS, D], k.layout)
    k_ring = gl.allocate_shared_memory(dtype, [_STAGES, _KEYS, D], k.layout)
    v_ring = gl.allocate_shared_memory(dtype, [_STAGES, _KEYS, D], v.layout)
    k_filled = gl.allocate_shared_memory(gl.int64, [_STAGES, 1], mbarrier.MBarrierLayout())
    k_free = gl.allocate_shared_memory(gl.int64, [_STAGES, 1], mbarrier.MBarrierLayout())
    v_filled = gl.allocate_shared_memory(gl.int64, [_STAGES, 1], mbarrier.MBarrierLayout())
    v_free = gl.allocate_shared_memory(gl.int64, [_STAGES, 1], mbarrier.MBarrierLayout())
    for slot in gl.static_range(_STAGES):
        mbarrier.init(k_filled.index(slot), count=1)
        mbarrier.init(v_filled.index(slot), count=1)
        mbarrier.init(k_free.index(slot), count=2)
        mbarrier.init(v_free.index(slot), count=2)
    rings = (k_ring, v_ring, k_filled, k_free, v_filled, v_free)
    tile = (first, rows, begin, full_end, end, head * D)
    gl.warp_specialize(
        [
            (_attend, (q, out, one, key_count, tile, rings, scale, 0, HEADS * D, D)),
            (_attend, (q, out, two, key_count, tile, rings, scale, 1, HEADS * D, D)),
            (_load_keys, (k, v, key_first, begin, end, kv_head * D, rings)),
        ],
        [4, 1],
        [_WORKER_REGISTERS, _LOADER_REGISTERS],
    )


def launch(q, k, v, plan, out, scale: float) -> None:
    """Start the kernel for `q` [S, H, d], `k` and `v` [K, G, d]; see `refiner_attention.window_attention`."""
    heads, dim = q.shape[1:]
    kv_heads = k.shape[1]
    dtype = getattr(gl, str(k.dtype).removeprefix("torch."))

    def described(rows):
        block = [_KEYS.value, dim]
        layout = gl.NVMMASharedLayout.get_default_for(block, dtype)
        return TensorDescriptor.from_tensor(rows.view(len(rows), kv_heads * dim), block, layout)

    num_tiles = len(plan.tiles)
    _window_kernel[(num_tiles * heads,)](
        q, described(k), described(v), plan.tiles, plan.key_first, plan.key_count, out, num_tiles, scale,
        HEADS=heads, KV_HEADS=kv_heads, D=dim, num_warps=4,
    )  # fmt: skip
