"""Counting sort of routes by head and expert: stable, without atomics, and planned in tiles for the expert kernel."""

# Shapes: N tokens, M heads, E experts per head, K routes per token and head, R = N*M*K, B blocks of tokens, T tiles

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from magi2.kernels import limits

_SLOTS = 512  # of a block of tokens, one for each route; one warp sorts them without a barrier
_INTERPRETED_SLOTS = 64  # sorting many at once takes the interpreter seconds
_FILL = 128
_MOST_EXPERTS = 2**14  # of all heads: one program adds up their tiles


class Plan(NamedTuple):
    """Where each route goes; every tensor int32 on the device.

    `order` [R] holds each sorted route's index in (head, token, rank) order, `position` [M, N, K] the reverse and
    `offsets` [M*E + 1] where each expert's routes begin. Tile t < `num_tiles` [1] is the sorted routes from
    `tile_first[t]` to `tile_end[t]`, all of the expert `tile_expert[t]`; the three have room for the most tiles
    that any routing could need. `expert_ids` [M, N, K] are the routes themselves and `num_experts` is E.

    Only the experts from row `first` to row `stop` of (head, expert) are at hand. Routes to others are in no tile, and
    their position is -1.
    """

    order: Tensor
    position: Tensor
    offsets: Tensor
    tile_expert: Tensor
    tile_first: Tensor
    tile_end: Tensor
    num_tiles: Tensor
    expert_ids: Tensor
    num_experts: int
    first: int
    stop: int


@triton.jit
def _count_kernel(
    ids, counts, num_tokens, num_blocks, first, stop,
    EXPERTS: tl.constexpr, TOP_K: tl.constexpr, RANKS: tl.constexpr, BINS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    block, head = tl.program_id(0), tl.program_id(1)
    slot = tl.arange(0, BLOCK * RANKS)
    token, rank = block * BLOCK + slot // RANKS, slot % RANKS
    valid = (token < num_tokens) & (rank < TOP_K)
    expert = tl.load(ids + (head * num_tokens + token) * TOP_K + rank, mask=valid, other=EXPERTS)
    row = head * EXPERTS + expert
    expert = tl.where((row >= first) & (row < stop), expert, EXPERTS)
    bins = tl.arange(0, BINS)
    target = counts + (head * EXPERTS + bins).to(tl.int64) * num_blocks + block
    tl.store(target, tl.histogram(expert, BINS), mask=bins < EXPERTS)


@triton.jit
def _place_kernel(
    ids, ends, order, position, num_tokens, num_blocks, first, stop,
    EXPERTS: tl.constexpr, TOP_K: tl.constexpr, RANKS: tl.constexpr, BINS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    SLOTS: tl.constexpr = BLOCK * RANKS
    block, head = tl.program_id(0), tl.program_id(1)
    slot = tl.arange(0, SLOTS)
    token, rank = block * BLOCK + slot // RANKS, slot % RANKS
    valid = (token < num_tokens) & (rank < TOP_K)
    expert = tl.load(ids + (head * num_tokens + token) * TOP_K + rank, mask=valid, other=EXPERTS)
    # Where the block's routes to each expert begin: among all routes, and in the block once it is sorted.
    bins = tl.arange(0, BINS)
    bin_index = (head * EXPERTS + bins).to(tl.int64) * num_blocks + block
    count = tl.histogram(expert, BINS)
    base = tl.load(ends + bin_index - 1, mask=(bins < EXPERTS) & (bin_index > 0), other=0)
    shift = base - (tl.cumsum(count) - count)
    key = tl.sort(expert * SLOTS + slot)
    expert, from_slot = key // SLOTS, key % SLOTS
    route = (head * num_tokens + block * BLOCK + from_slot // RANKS) * TOP_K + from_slot % RANKS
    target = tl.gather(shift, expert, axis=0) + slot
    row = head * EXPERTS + expert
    is_here = (expert < EXPERTS) & (row >= first) & (row < stop)
    tl.store(position + route, tl.where(is_here, target, -1), mask=expert < EXPERTS)
    tl.store(order + target, route, mask=is_here)


@triton.jit
def _offsets_kernel(
    ends, offsets, tile_starts, num_tiles, num_blocks,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    row = tl.arange(0, BLOCK)
    mask = row < ROWS
    end = tl.load(ends + (row + 1).to(tl.int64) * num_blocks - 1, mask=mask, other=0)
    start = tl.load(ends + row.to(tl.int64) * num_blocks - 1, mask=mask & (row > 0), other=0)
    tiles = tl.where(mask, (end - start + TILE - 1) // TILE, 0)
    tl.store(offsets + row, start, mask=mask)
    tl.store(offsets + row + 1, end, mask=row == ROWS - 1)
    tl.store(tile_starts + row, tl.cumsum(tiles) - tiles, mask=mask)
    tl.store(num_tiles, tl.sum(tiles))


@triton.jit
def _tiles_kernel(offsets, tile_starts, tile_expert, tile_first, tile_end, TILE: tl.constexpr, FILL: tl.constexpr):
    expert = tl.program_id(0)
    start, end, place = tl.load(offsets + expert), tl.load(offsets + expert + 1), tl.load(tile_starts + expert)
    count = (end - start + TILE - 1) // TILE
    for base in tl.range(0, count, FILL):
        tile = base + tl.arange(0, FILL)
        mask = tile < count
        first = start + tile * TILE
        tl.store(tile_expert + place + tile, tl.zeros_like(tile) + expert, mask=mask)
        tl.store(tile_first + place + tile, first, mask=mask)
        tl.store(tile_end + place + tile, tl.minimum(first + TILE, end), mask=mask)


@cache
def sort_routes_refusal(num_heads: int, num_experts: int, top_k: int) -> str | None:
    """Why `sort_routes` does not take so many heads, experts of each and routes per token; None when it does."""
    return limits.first(
        limits.outside("top_k", top_k, 1, min(num_experts, limits.MAX_TOP_K)),
        limits.outside("experts of all heads", num_heads * num_experts, 1, _MOST_EXPERTS),
    )


def sort_routes(expert_ids: Tensor, num_experts: int, tile_rows: int, first: int = 0, stop: int | None = None) -> Plan:
    """Sort the routes `expert_ids` [M, N, K] int32 by head and expert, in token order within an expert.

    `first` and `stop` are the rows (head, expert) of the experts at hand, by default all. Raises:
    UnsupportedShapesError where `sort_routes_refusal` says why.
    """
    num_heads, num_tokens, top_k = expert_ids.shape
    rows, routes = num_heads * num_experts, expert_ids.numel()
    limits.require("sort_routes", sort_routes_refusal(num_heads, num_experts, top_k))
    limits.require("sort_routes", limits.outside("routes", routes, 0, limits.MAX_INDEX))
    span = (first, rows if stop is None else stop)
    ranks = triton.next_power_of_2(top_k)
    block_tokens = (_INTERPRETED_SLOTS if expert_ids.device.type == "cpu" else _SLOTS) // ranks
    num_blocks = triton.cdiv(num_tokens, block_tokens)
    most_tiles = routes // tile_rows + min(rows, routes)

    def ints(*shape: int) -> Tensor:
        return torch.empty(shape, dtype=torch.int32, device=expert_ids.device)

    counts = ints(rows * num_blocks)
    grid = (num_blocks, num_heads)
    bins = triton.next_power_of_2(num_experts + 1)
    sizes = {"EXPERTS": num_experts, "TOP_K": top_k, "RANKS": ranks, "BINS": bins, "BLOCK": block_tokens}
    _count_kernel[grid](expert_ids, counts, num_tokens, num_blocks, *span, **sizes)
    ends = torch.cumsum(counts, 0, dtype=torch.int32)
    tables = ints(routes), ints(*expert_ids.shape), ints(rows + 1), *(ints(most_tiles) for _ in range(3)), ints(1)
    plan = Plan(*tables, expert_ids, num_experts, *span)
    _place_kernel[grid](
        expert_ids, ends, plan.order, plan.position, num_tokens, num_blocks, *span, num_warps=1, **sizes
    )  # fmt: skip
    tile_starts = ints(rows)
    _offsets_kernel[(1,)](
        ends, plan.offsets, tile_starts, plan.num_tiles, num_blocks,
        ROWS=rows, BLOCK=triton.next_power_of_2(rows), TILE=tile_rows, num_warps=8,
    )  # fmt: skip
    _tiles_kernel[(rows,)](
        plan.offsets, tile_starts, *plan[3:6], TILE=tile_rows, FILL=_FILL, num_warps=1
    )  # fmt: skip
    return plan
