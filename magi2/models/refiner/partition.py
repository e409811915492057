"""Cutting a latent grid into one part for each rank: who computes which blocks, and whose keys go where.

A part is a compact set of blocks of equal cost, so a rank needs the keys of its own blocks and of a seam of at most
`radius` blocks around them. All sizes are known on the host from the grid's shape alone.
"""

# Shapes: B blocks of the grid

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from magi2.models.refiner.windows import WindowGrid, WindowGroup, inverse


@dataclass(frozen=True, eq=False)
class GridPart(WindowGrid):
    """What one rank has of a grid, and what it exchanges in every layer.

    Its keys are those of the rank's own blocks, then those it receives, one rank's after the other's.
    """

    send: Tensor  # own tokens whose keys others need, for one rank after the other
    send_rows: tuple[int, ...]  # how many of them each rank gets
    receive_rows: tuple[int, ...]
    token_counts: tuple[int, ...]  # video tokens of every rank


def partition_blocks(grid: WindowGrid, parts: int, linear_keys: float) -> list[Tensor]:
    """Ids of the blocks of each part, ascending, on the CPU; a part is empty when there are more parts than blocks.

    The grid is halved where the seam is shortest, and the halves again, until there are enough parts. A token costs as
    much as the keys it sees, and as `linear_keys` more for all that is computed for each token alone.
    """
    costs = _block_costs(grid, linear_keys)
    return _bisect(torch.arange(len(costs)), parts, costs, grid)


def _block_costs(grid: WindowGrid, linear_keys: float) -> Tensor:
    """Cost [B] of each block, fp64: its tokens times what each of them costs."""
    tokens = grid.lengths.cpu().double().view(1, 1, *grid.blocks)
    reach = [2 * radius + 1 for radius in grid.radius]
    seen = F.conv3d(tokens, torch.ones(1, 1, *reach, dtype=torch.float64), padding=grid.radius)
    return (tokens * (seen + linear_keys)).flatten()


def _bisect(ids: Tensor, parts: int, costs: Tensor, grid: WindowGrid) -> list[Tensor]:
    if parts == 1:
        return [ids.sort().values]
    ordered = _along(ids, _shortest_seam(ids, grid), grid)
    sums = costs[ordered].cumsum(0)
    left = parts // 2
    wanted = float(sums[-1]) * left / parts if len(sums) else 0.0
    cut = int((sums - wanted).abs().argmin()) + 1 if len(sums) else 0
    halves = (ordered[:cut], left), (ordered[cut:], parts - left)
    return [part for half, count in halves for part in _bisect(half, count, costs, grid)]


def _coordinates(ids: Tensor, grid: WindowGrid) -> tuple[Tensor, Tensor, Tensor]:
    rows, columns = grid.blocks[1:]
    return ids // (rows * columns), ids // columns % rows, ids % columns


def _shortest_seam(ids: Tensor, grid: WindowGrid) -> int:
    """The axis across which a cut makes the fewest blocks see the other side."""
    extents = [int(along.max() - along.min()) + 1 if len(ids) else 1 for along in _coordinates(ids, grid)]
    volume = math.prod(extents)
    seams = [
        volume // extent * radius if extent > 1 else math.inf
        for extent, radius in zip(extents, grid.radius, strict=True)
    ]
    return seams.index(min(seams))


def _along(ids: Tensor, axis: int, grid: WindowGrid) -> Tensor:
    """The blocks plane by plane along an axis; within a plane the longer of the other two axes comes first."""
    coordinates = _coordinates(ids, grid)
    others = sorted((other for other in range(3) if other != axis), key=lambda other: -grid.blocks[other])
    key = coordinates[axis]
    for other in others:
        key = key * grid.blocks[other] + coordinates[other]
    return ids[key.argsort()]


def grid_part(grid: WindowGrid, blocks_of: list[Tensor], rank: int) -> GridPart:
    """Rank `rank`'s part of a whole grid, where rank r computes the blocks `blocks_of[r]`."""
    own = blocks_of[rank]
    needed = [_seen_by(blocks, grid) for blocks in blocks_of]
    received = [ids[needed[rank][ids]] if other != rank else ids[:0] for other, ids in enumerate(blocks_of)]
    sent = [own[needed[other][own]] if other != rank else own[:0] for other in range(len(blocks_of))]
    lengths = grid.lengths.cpu()
    part = _part_of(grid, torch.cat([own, *received]), blocks_of, rank)
    return GridPart(
        **vars(part),
        send=_tokens_of(torch.cat(sent).to(part.starts.device), _first_tokens(part), grid.lengths),
        send_rows=tuple(int(lengths[ids].sum()) for ids in sent),
        receive_rows=tuple(int(lengths[ids].sum()) for ids in received),
        token_counts=tuple(int(lengths[ids].sum()) for ids in blocks_of),
    )


def _seen_by(blocks: Tensor, grid: WindowGrid) -> Tensor:
    """Which blocks [B] the queries of `blocks` see."""
    inside = torch.zeros(1, 1, *grid.blocks)
    inside.view(-1)[blocks] = 1
    reach = [2 * radius + 1 for radius in grid.radius]
    return F.conv3d(inside, torch.ones(1, 1, *reach), padding=grid.radius).flatten() > 0


def _part_of(grid: WindowGrid, block_ids: Tensor, blocks_of: list[Tensor], rank: int) -> WindowGrid:
    """The grid with the queries of rank `rank`'s blocks and the keys of `block_ids`."""
    device = grid.order.device
    block_ids = block_ids.to(device)
    own = blocks_of[rank].to(device)
    lengths = grid.lengths[block_ids]
    tokens_of_all = _tokens_of(torch.cat(blocks_of).to(device), grid.starts, grid.lengths)
    tokens = _tokens_of(own, grid.starts, grid.lengths)
    part = replace(
        grid,
        order=grid.order[tokens],
        restore=inverse(grid.order[tokens_of_all]),
        block_ids=block_ids,
        lengths=lengths,
        starts=lengths.cumsum(0) - lengths,
        num_key_tokens=int(lengths.sum()),
        rope=grid.rope[tokens],
    )
    is_own = torch.zeros(len(grid.starts), dtype=torch.bool, device=device)
    is_own[own] = True
    first = _first_tokens(part)
    groups = tuple(found for group in grid.groups if (found := _own_queries(group, is_own, first)) is not None)
    places = [group.query_tokens.flatten() for group in groups]
    return replace(part, groups=groups, group_restore=inverse(torch.cat([*places, tokens[:0]])))


def _first_tokens(part: WindowGrid) -> Tensor:
    """First key token [B] of every block of the whole grid that the part has; others are never asked for."""
    first = torch.zeros(math.prod(part.blocks), dtype=torch.int64, device=part.starts.device)
    first[part.block_ids] = part.starts
    return first


def _own_queries(group: WindowGroup, is_own: Tensor, first: Tensor) -> WindowGroup | None:
    """The group's query blocks that are the rank's own, at the rank's places; None when there are none."""
    rows = is_own[group.query_blocks].nonzero()[:, 0]
    if not len(rows):
        return None
    query_blocks, key_blocks = group.query_blocks[rows], group.key_blocks[rows]
    offsets = torch.arange(group.query_tokens.shape[1], device=first.device)
    return replace(
        group,
        query_blocks=query_blocks,
        query_tokens=first[query_blocks][:, None] + offsets,
        key_blocks=key_blocks,
        key_starts=first[key_blocks],
    )


def _tokens_of(ids: Tensor, starts: Tensor, lengths: Tensor) -> Tensor:
    """Indices of the tokens of some blocks, one block after the other."""
    counts = lengths[ids]
    firsts = (starts[ids] - (counts.cumsum(0) - counts)).repeat_interleave(counts)
    return firsts + torch.arange(len(firsts), device=starts.device)
