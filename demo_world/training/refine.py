"""What the refiner learns: the straight path from the enlarged, noised preview to the latents of the larger picture.

The refiner is told no time, so the direction to learn must be the same all along the path, and so it is here.
"""

# Shapes: S queries, K keys, H query heads, G key-value heads, d head size, n blocks, P tokens of one, m keys it sees

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from magi2.errors import ContractError
from magi2.models.refiner.attention import attend_tail
from magi2.models.refiner.context import RefinerContext
from magi2.models.refiner.model import RefinerModel
from magi2.models.refiner.ops import RefinerOps
from magi2.models.refiner.windows import WindowGrid
from magi2.sampling.refine import add_refiner_noise, upsample_latents


def refiner_loss(
    model: RefinerModel, context: RefinerContext, preview: Tensor, refined: Tensor, noise: Tensor, sigma: float
) -> Tensor:
    """Mean squared error of the velocity at `sigma` on the way from the refiner's start to `refined` [1, C, T, H, W].

    `preview` [1, C, (T + 1) / 2, h, w] is enlarged and mixed with `noise` (shaped as `refined`) as rendering does it.
    x = (1 - sigma) refined + sigma start, target start - refined, so that the sampler's x - sigma v is `refined`.
    """
    start = add_refiner_noise(upsample_latents(preview, (refined.shape[3], refined.shape[4])), noise)
    velocity: Tensor = model((1 - sigma) * refined + sigma * start, context)
    return (velocity - (start - refined)).square().mean()


@dataclass(frozen=True, eq=False)
class BlockPlan:
    """For every block of queries the keys that it sees, all in one product: shorter lists are filled up and masked."""

    query_tokens: Tensor  # [n, P]
    key_tokens: Tensor  # [n, m]
    is_seen: Tensor  # [n, m] bool
    restore: Tensor  # [n P] place of each video token among the blocks' queries


def block_plan(grid: WindowGrid, tail: int) -> BlockPlan:
    """The plan of a whole grid whose blocks are all of one size, with `tail` tokens that everybody sees.

    Raises: ContractError when blocks at the grid's ends are smaller than the others.
    """
    if any(length % step for length, step in zip(grid.size, grid.block, strict=True)):
        raise ContractError(f"training wants blocks of {grid.block} to fill the grid, not one of {grid.size}")
    device = grid.order.device
    seen = [group.key_tokens(0, len(group.query_blocks)) for group in grid.groups]
    widest = max(keys.shape[1] for keys in seen)
    padded = torch.cat([F.pad(keys, (0, widest - keys.shape[1])) for keys in seen])
    counts = torch.cat([torch.full((len(keys),), keys.shape[1], device=device) for keys in seen])
    is_video = torch.arange(widest, device=device) < counts[:, None]
    tail_keys = torch.arange(tail, device=device) + grid.num_key_tokens
    return BlockPlan(
        query_tokens=torch.cat([group.query_tokens for group in grid.groups]),
        key_tokens=torch.cat([padded, tail_keys.expand(len(padded), -1)], dim=1),
        is_seen=F.pad(is_video, (0, tail), value=True),
        restore=grid.group_restore,
    )


def attend_blocks(q_SHd: Tensor, k_KGd: Tensor, v_KGd: Tensor, grid: WindowGrid, plan: BlockPlan) -> Tensor:
    """Windowed attention [S, H, d] of all queries, in few operations whose backward passes are cheap."""
    blocks, keys = plan.key_tokens.shape
    q_nPHd, k_nmGd, v_nmGd = (
        rows.index_select(0, tokens.flatten()).view(*tokens.shape, *rows.shape[1:])
        for rows, tokens in ((q_SHd, plan.query_tokens), (k_KGd, plan.key_tokens), (v_KGd, plan.key_tokens))
    )
    groups, shared = k_nmGd.shape[2], q_nPHd.shape[2] // k_nmGd.shape[2]
    # The heads of one group become more queries of one head: no copy of keys for each of them.
    q = q_nPHd.unflatten(2, (groups, shared)).permute(0, 2, 3, 1, 4).flatten(2, 3)
    mask = plan.is_seen[:, None, None].expand(blocks, groups, q.shape[2], keys)
    out = F.scaled_dot_product_attention(q, k_nmGd.transpose(1, 2), v_nmGd.transpose(1, 2), attn_mask=mask)
    out = out.unflatten(2, (shared, -1)).permute(0, 3, 1, 2, 4).flatten(0, 1).flatten(1, 2)
    return torch.cat([out.index_select(0, plan.restore), attend_tail(q_SHd, k_KGd, v_KGd, grid)])


def training_ops() -> RefinerOps:
    """The model's operations with attention that learns fast."""
    return replace(RefinerOps(), plan=block_plan, attend=attend_blocks)
