"""Block-window attention without a token mask: video queries see their neighbourhood and the tail, tail queries all.

Two ways to compute the same softmax. `gather_attention` runs anywhere: it collects the keys of a few query blocks at a
time and attends densely. `flex_attention_windows` hands the block structure to FlexAttention, which reads the keys
where they lie. Both take any number of heads, so that heads may be spread over ranks.

Source: MAGI-2 preview inference code, refiner attention ranges.
"""

# Shapes: S queries (N video tokens in block order, then the tail), K keys (video, then the tail), H query heads,
# G key-value heads, d head size, b independent attentions of Q queries, B query blocks, E key blocks (video, then those
# of the padded tail).

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from magi2.models.refiner.windows import WindowGrid

AttentionBackend = Literal["auto", "gather", "flex"]

# Collected keys and values of one chunk of query blocks. One block at the delivery size needs 74 MB.
GATHER_BYTES = 512 * 2**20
# The flex kernel tiles queries and keys by 128.
FLEX_TILE = 128
# Tails are padded to a multiple of this many blocks, so that texts of nearly equal length share one compiled kernel.
TAIL_BLOCKS_STEP = 16


def attend(q_bQHd: Tensor, k_bKGd: Tensor, v_bKGd: Tensor) -> Tensor:
    """Dense grouped-query attention [b, Q, H, d]; query head i uses key-value head i // (H // G)."""
    b, queries, heads, d = q_bQHd.shape
    groups = k_bKGd.shape[2]
    # The heads of one group become more queries of one head: no copy of keys for each of them.
    q = q_bQHd.view(b, queries, groups, heads // groups, d).permute(0, 2, 3, 1, 4).flatten(2, 3)
    out = F.scaled_dot_product_attention(q, k_bKGd.transpose(1, 2), v_bKGd.transpose(1, 2))
    return out.view(b, groups, heads // groups, queries, d).permute(0, 3, 1, 2, 4).reshape(b, queries, heads, d)


def gather_attention(
    q_SHd: Tensor, k_KGd: Tensor, v_KGd: Tensor, grid: WindowGrid, *, max_bytes: int = GATHER_BYTES
) -> Tensor:
    """Windowed attention [S, H, d], dtype of q, of the grid's video queries and of the tail's, if they are there.

    Extra memory: collected keys and values up to `max_bytes` (or one query block's, if that is more), and three times
    the size of q for reordering.
    """
    tail = torch.arange(grid.num_key_tokens, len(k_KGd), device=q_SHd.device)
    token_bytes = 2 * k_KGd[:1].nbytes
    pieces = [q_SHd[:0]]
    for group in grid.groups:
        step = max(1, max_bytes // ((len(group.key_slots) + len(tail)) * token_bytes))
        for start in range(0, len(group.query_blocks), step):
            queries = group.query_tokens[start : start + step]
            keys = torch.cat([group.key_tokens(start, start + step), tail.expand(len(queries), -1)], dim=1)
            pieces.append(attend(q_SHd[queries], k_KGd[keys], v_KGd[keys]).flatten(0, 1))
    video = torch.cat(pieces)[grid.group_restore]
    return torch.cat([video, _attend_tail(q_SHd, k_KGd, v_KGd, grid)])


def _attend_tail(q_SHd: Tensor, k_KGd: Tensor, v_KGd: Tensor, grid: WindowGrid) -> Tensor:
    tail_queries = q_SHd[grid.num_tokens :]
    if not len(tail_queries):
        return tail_queries
    return attend(tail_queries[None], k_KGd[None], v_KGd[None])[0]


@dataclass(frozen=True, eq=False)
class FlexLayout:
    """Tokens padded so that every block fills one tile of `block_volume` tokens, and the mask between these tiles.

    The mask holds four int32 per pair of blocks (0.27 GB at 63x68x120 with 2,000 tail tokens), nothing per pair of
    tokens.
    """

    token_of_query: Tensor  # [B * volume] token in every padded query place; 0 in the padding
    token_of_key: Tensor  # [E * volume]
    place_of_video: Tensor  # [N] padded place of every video token
    mask: BlockMask


def flex_layout(grid: WindowGrid, tail: int) -> FlexLayout:
    """The padded layout of a grid followed by `tail` tokens."""
    device, volume, num_blocks = grid.order.device, grid.block_volume, grid.num_query_blocks
    tail_blocks = -(-tail // (volume * TAIL_BLOCKS_STEP)) * TAIL_BLOCKS_STEP
    inside = torch.arange(volume, device=device)
    tail_starts = torch.arange(tail_blocks, device=device) * volume
    starts_E = torch.cat([grid.starts, grid.num_key_tokens + tail_starts])
    lengths_E = torch.cat([grid.lengths, (tail - tail_starts).clamp(0, volume)])
    filled = inside < lengths_E[:, None]
    tokens = torch.where(filled, starts_E[:, None] + inside, 0).flatten()
    block_of_token = torch.arange(num_blocks, device=device).repeat_interleave(grid.lengths[:num_blocks])
    first_place = torch.arange(num_blocks, device=device) * volume - grid.starts[:num_blocks]
    return FlexLayout(
        token_of_query=tokens[: num_blocks * volume],
        token_of_key=tokens,
        place_of_video=torch.arange(grid.num_tokens, device=device) + first_place[block_of_token],
        mask=_block_mask(grid, lengths_E),
    )


def _block_mask(grid: WindowGrid, lengths_E: Tensor) -> BlockMask:
    volume, num_blocks, device = grid.block_volume, grid.num_query_blocks, lengths_E.device
    rows, columns = grid.blocks[1], grid.blocks[2]
    radius_t, radius_h, radius_w = grid.radius
    num_video, ids_E = len(grid.block_ids), torch.zeros_like(lengths_E)
    ids_E[:num_video] = grid.block_ids

    def sees(query_block: Tensor, key_block: Tensor) -> Tensor:
        query_id, key_id = ids_E[query_block], ids_E[key_block]
        near_t = (query_id // (rows * columns) - key_id // (rows * columns)).abs() <= radius_t
        near_h = (query_id // columns % rows - key_id // columns % rows).abs() <= radius_h
        near_w = (query_id % columns - key_id % columns).abs() <= radius_w
        return (near_t & near_h & near_w) | (key_block >= num_video)

    def mask_mod(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return sees(query // volume, key // volume) & (key % volume < lengths_E[key // volume])

    keys_E = torch.arange(len(lengths_E), device=device)
    seen_BE = sees(torch.arange(num_blocks, device=device)[:, None], keys_E) & (lengths_E > 0)
    is_full_E = lengths_E == volume
    return BlockMask.from_kv_blocks(
        *_block_list(seen_BE & ~is_full_E),
        *_block_list(seen_BE & is_full_E),
        BLOCK_SIZE=volume,
        mask_mod=mask_mod,
        seq_lengths=(num_blocks * volume, len(lengths_E) * volume),
    )


def _block_list(seen_BE: Tensor) -> tuple[Tensor, Tensor]:
    """How many key blocks each query block sees, [1, 1, B], and their ids first in [1, 1, B, E]; int32."""
    ids = seen_BE.to(torch.int8).argsort(dim=-1, descending=True, stable=True).int()
    return seen_BE.sum(dim=-1, dtype=torch.int32)[None, None], ids[None, None]


def flex_attention_windows(
    q_SHd: Tensor, k_KGd: Tensor, v_KGd: Tensor, grid: WindowGrid, layout: FlexLayout, *, compiled: bool = True
) -> Tensor:
    """Windowed attention [S, H, d], dtype of q, of the grid's video queries and of the tail's, if they are there.

    Extra memory: padded copies of q, k, v and of the result. `compiled=False` computes all scores densely; it is only
    for checks on tiny grids.
    """
    q, k, v = (
        tensor[index].transpose(0, 1)[None]
        for tensor, index in (
            (q_SHd, layout.token_of_query),
            (k_KGd, layout.token_of_key),
            (v_KGd, layout.token_of_key),
        )
    )
    run = _compiled_flex() if compiled else cast("Callable[..., Tensor]", flex_attention)
    out = run(q, k, v, block_mask=layout.mask, enable_gqa=True)
    video = out[0].transpose(0, 1)[layout.place_of_video]
    return torch.cat([video, _attend_tail(q_SHd, k_KGd, v_KGd, grid)])


@functools.cache
def _compiled_flex() -> Callable[..., Tensor]:
    # fullgraph: one shape too many raises instead of silently falling back to dense scores.
    compiled: Callable[..., Tensor] = torch.compile(flex_attention, fullgraph=True, dynamic=False)
    return compiled


def choose_backend(wanted: AttentionBackend, grid: WindowGrid, dtype: torch.dtype) -> Literal["gather", "flex"]:
    """What "auto" stands for here: flex on CUDA in 16 bits with full-size blocks, else gather."""
    if wanted != "auto":
        return wanted
    tiles = grid.block_volume % FLEX_TILE == 0
    on_cuda = grid.order.device.type == "cuda" and importlib.util.find_spec("triton") is not None
    return "flex" if tiles and on_cuda and dtype.itemsize == 2 else "gather"
