"""Block-window attention of the refiner: each tile of queries walks a list of key blocks, tiles of one group together.

The list says where each key block starts; blocks that fill a tile come first and need no mask. So neither keys nor
queries are collected or padded, and the program reads nothing that its queries do not see.
"""

# Shapes: S queries, K keys, H query heads, G key/value heads, d head dim, T query tiles, L entries of all lists

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from magi2.kernels import limits
from magi2.kernels.settings import BARRIER_BYTES, Features

TILE = 128  # queries of a program, and the most keys that one entry of a list stands for
_LOG2E = 1.4426950408889634


@dataclass(frozen=True)
class WindowSettings:
    """Launch settings: keys of a step, loads in flight, warps."""

    block_keys: int
    stages: int
    warps: int

    def shared_bytes(self, head_dim: int, itemsize: int) -> int:
        """Shared memory of one program: the queries, one or two blocks of keys and of values, and scores of fp32."""
        scores = TILE * self.block_keys * itemsize if itemsize == 4 else 0
        return itemsize * head_dim * (TILE + min(self.stages, 2) * 2 * self.block_keys) + scores + BARRIER_BYTES


# The kernel of `refiner_attention_specialised` is compiled for heads of this size and measured with it.
_SPECIALISED_DIM = 128
# With descriptors, best first, measured on an H200; the second one is for devices with less shared memory.
WINDOW_SETTINGS = (WindowSettings(128, 3, 8), WindowSettings(64, 2, 4))
# Without descriptors a second use of a pipelined tile is wrong on Hopper with Triton 3.6, so nothing is pipelined.
WINDOW_SETTINGS_PLAIN = WindowSettings(64, 1, 4)


@dataclass(frozen=True, eq=False)
class WindowPlan:
    """Who sees whom, int32 on the device. Row t of `tiles` [T, 5] is a tile of queries: its first row, its rows, and
    in the lists its first entry, the first one that does not fill a tile, and the end. Entry l of the lists is the
    first key row `key_first` [L] and the number of rows `key_count` [L], at most `TILE`."""

    tiles: Tensor
    key_first: Tensor
    key_count: Tensor


def make_plan_refusal(block_tokens: int) -> str | None:
    """Why `make_plan` does not take query and key blocks of so many tokens; None when it does."""
    return limits.outside("tokens of a window block", block_tokens, 1, TILE)


def make_plan(tiles: Sequence[tuple[Tensor, int, Tensor, Tensor]], device: torch.device) -> WindowPlan:
    """The plan of groups (first query rows [n], rows of each, first key rows [n, m], their counts [m]).

    The members of a group see key blocks of the same sizes. Tiles are ordered by falling rows: neighbours, which see
    mostly the same keys, run together, and a tail that sees everything starts first. Raises: UnsupportedShapesError
    where `make_plan_refusal` says why.
    """
    rows, firsts, counts = [], [], []
    end = 0
    for query_first, query_count, key_first, key_count in tiles:
        limits.require("make_plan", make_plan_refusal(query_count))
        fills, members = key_count == TILE, len(query_first)
        order = torch.cat([fills.nonzero()[:, 0], (~fills).nonzero()[:, 0]])
        length = len(order)
        begin = end + torch.arange(members, device=device) * length
        columns = [query_first, query_count, begin, begin + fills.sum(), begin + length]
        rows.append(torch.stack([torch.as_tensor(column, device=device).expand(members) for column in columns], dim=1))
        firsts.append(key_first[:, order].flatten())
        counts.append(key_count[order].repeat(members))
        end += members * length
    table = torch.cat(rows)
    table = table[table[:, 0].argsort(descending=True)]
    return WindowPlan(table.int(), torch.cat(firsts).int(), torch.cat(counts).int())


@triton.jit
def _load_rows(source, first, count, stride, column, ROWS: tl.constexpr, D: tl.constexpr, DESCRIPTORS: tl.constexpr):
    """Rows [ROWS, D] from row `first` on; with pointers those from `count` on are zeros."""
    if DESCRIPTORS:
        block = source.load([first, column])
    else:
        row = tl.arange(0, ROWS)
        place = (first + row).to(tl.int64)[:, None] * stride + column + tl.arange(0, D)[None, :]
        block = tl.load(source + place, mask=(row < count)[:, None], other=0.0)
    return block


@triton.jit
def _step(queries, keys, values, count, top, total, out, scale, MASK: tl.constexpr, KEYS: tl.constexpr):
    """One online-softmax step: the running maximum, sum and weighted sum after `count` more keys."""
    scores = tl.dot(queries, tl.trans(keys), input_precision="ieee")
    if MASK:
        scores = tl.where((tl.arange(0, KEYS) < count)[None, :], scores, float("-inf"))
    new_top = tl.maximum(top, tl.max(scores, axis=1) * scale)
    weights = tl.exp2(scores * scale - new_top[:, None])
    shrink = tl.exp2(top - new_top)
    total = total * shrink + tl.sum(weights, axis=1)
    out = tl.dot(weights.to(values.dtype), values, out * shrink[:, None], input_precision="ieee")
    return new_top, total, out


@triton.jit
def _window_kernel(
    q, k, v, tiles, key_first, key_count, out, num_tiles, scale,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, D: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr,
    STAGES: tl.constexpr, DESCRIPTORS: tl.constexpr,
):  # fmt: skip
    # The query heads that share keys run side by side, then the next tile: its keys are mostly the same.
    SHARED: tl.constexpr = HEADS // KV_HEADS
    PARTS: tl.constexpr = QUERIES // KEYS
    program = tl.program_id(0)
    kv_head = program // (num_tiles * SHARED)
    tile = program % (num_tiles * SHARED) // SHARED
    head = kv_head * SHARED + program % SHARED
    first, rows = tl.load(tiles + tile * 5), tl.load(tiles + tile * 5 + 1)
    begin, full_end, end = tl.load(tiles + tile * 5 + 2), tl.load(tiles + tile * 5 + 3), tl.load(tiles + tile * 5 + 4)
    row, channel = tl.arange(0, QUERIES), tl.arange(0, D)
    place = (first + row).to(tl.int64)[:, None] * (HEADS * D) + head * D + channel[None, :]
    queries = tl.load(q + place, mask=(row < rows)[:, None], other=0.0)
    top = tl.full([QUERIES], float("-inf"), tl.float32)
    total = tl.zeros([QUERIES], tl.float32)
    mixed = tl.zeros([QUERIES, D], tl.float32)
    stride: tl.constexpr = KV_HEADS * D
    for index in tl.range(begin * PARTS, full_end * PARTS, num_stages=STAGES):
        start = tl.load(key_first + index // PARTS) + index % PARTS * KEYS
        keys = _load_rows(k, start, KEYS, stride, kv_head * D, KEYS, D, DESCRIPTORS)
        values = _load_rows(v, start, KEYS, stride, kv_head * D, KEYS, D, DESCRIPTORS)
        top, total, mixed = _step(queries, keys, values, KEYS, top, total, mixed, scale, False, KEYS)
    for index in tl.range(full_end * PARTS, end * PARTS, num_stages=STAGES):
        passed = index % PARTS * KEYS
        start, count = tl.load(key_first + index // PARTS) + passed, tl.load(key_count + index // PARTS) - passed
        keys = _load_rows(k, start, count, stride, kv_head * D, KEYS, D, DESCRIPTORS)
        values = _load_rows(v, start, count, stride, kv_head * D, KEYS, D, DESCRIPTORS)
        top, total, mixed = _step(queries, keys, values, count, top, total, mixed, scale, True, KEYS)
    tl.store(out + place, (mixed / total[:, None]).to(out.dtype.element_ty), mask=(row < rows)[:, None])


def window_settings(available: Features, head_dim: int, itemsize: int) -> WindowSettings:
    """The best settings that fit the device."""
    if available.descriptors and itemsize == 2:
        for settings in WINDOW_SETTINGS:
            if settings.shared_bytes(head_dim, itemsize) <= available.shared_bytes:
                return settings
    return WINDOW_SETTINGS_PLAIN


@cache
def specialised_refusal(head_dim: int, dtype: torch.dtype, available: Features) -> str | None:
    """Why the kernel of `refiner_attention_specialised` does not take such heads; None when it does."""
    return limits.first(
        None if available.warpgroups else "the device has no warpgroup products",
        limits.outside("head dim", head_dim, _SPECIALISED_DIM, _SPECIALISED_DIM),
        limits.outside("bytes of an element", dtype.itemsize, 2, 2),
    )


@cache
def window_attention_refusal(
    num_heads: int,
    kv_heads: int,
    head_dim: int,
    dtype: torch.dtype,
    available: Features,
    settings: WindowSettings | None = None,
) -> str | None:
    """Why `window_attention` does not take such heads by `settings`, or the best ones; None when it does."""
    settings = settings or window_settings(available, head_dim, dtype.itemsize)
    return limits.first(
        limits.other_dtype(dtype),
        limits.no_power_of_two("head dim", head_dim, limits.MIN_DOT),
        limits.no_multiple("query heads", num_heads, kv_heads),
        limits.too_much_shared(settings.shared_bytes(head_dim, dtype.itemsize), available.shared_bytes),
    )


def window_attention(
    q: Tensor, k: Tensor, v: Tensor, plan: WindowPlan, available: Features, settings: WindowSettings | None = None
) -> Tensor:
    """[S, H, d] for contiguous q [S, H, d], k and v [K, G, d]: each tile's queries see the keys of its list.

    Scores are scaled by d ** -0.5; the softmax is fp32, its weights are rounded to the dtype of `v` for the product,
    the result once. Rows that no tile holds are left uninitialised. Without `settings` the kernel is the fastest one.
    Raises: UnsupportedShapesError where `window_attention_refusal` says why.
    """
    heads, dim = q.shape[1:]
    kv_heads = k.shape[1]
    use_descriptors = available.descriptors and q.dtype != torch.float32
    chosen = settings or window_settings(available, dim, q.element_size())
    refusal = window_attention_refusal(heads, kv_heads, dim, q.dtype, available, settings)
    limits.require("window_attention", refusal)
    keys: Tensor | TensorDescriptor = k
    values: Tensor | TensorDescriptor = v
    if use_descriptors:
        keys, values = (
            TensorDescriptor.from_tensor(part.view(len(part), kv_heads * dim), [chosen.block_keys, dim])
            for part in (k, v)
        )
    out = torch.empty_like(q)
    num_tiles, scale = len(plan.tiles), dim**-0.5 * _LOG2E
    if num_tiles and settings is None and not specialised_refusal(dim, q.dtype, available):
        # Here: Triton's experimental language, which other devices need not have.
        from magi2.kernels import refiner_attention_specialised

        refiner_attention_specialised.launch(q, k, v, plan, out, scale)
    elif num_tiles:
        _window_kernel[(num_tiles * heads,)](
            q, keys, values, plan.tiles, plan.key_first, plan.key_count, out, num_tiles, scale,
            HEADS=heads, KV_HEADS=kv_heads, D=dim, QUERIES=TILE, KEYS=chosen.block_keys, STAGES=chosen.stages,
            DESCRIPTORS=use_descriptors, num_warps=chosen.warps,
        )  # fmt: skip
    return out
