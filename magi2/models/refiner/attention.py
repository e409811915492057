"""Block-window attention without a token mask: video queries see their neighbourhood and the tail, tail queries all.

`gather_attention` runs anywhere: it collects the keys of a few query blocks at a time and attends densely. It takes
any number of heads, so that heads may be spread over ranks.

Source: MAGI-2 preview inference code, refiner attention ranges.
"""

# Shapes: S queries (N video tokens in block order, then the tail), K keys (video, then the tail), H query heads,
# G key-value heads, d head size, b independent attentions of Q queries.

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from magi2.models.refiner.windows import WindowGrid

# Collected keys and values of one chunk of query blocks. One block at the delivery size needs 74 MB.
GATHER_BYTES = 512 * 2**20


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
    return torch.cat([video, attend_tail(q_SHd, k_KGd, v_KGd, grid)])


def attend_tail(q_SHd: Tensor, k_KGd: Tensor, v_KGd: Tensor, grid: WindowGrid) -> Tensor:
    """Attention of the tail's queries, if they are there, over all keys."""
    tail_queries = q_SHd[grid.num_tokens :]
    if not len(tail_queries):
        return tail_queries
    return attend(tail_queries[None], k_KGd[None], v_KGd[None])[0]
