"""Products on the CPU whose rows come out alike however many others are computed with them.

Matrix libraries choose their order of summation by the number of rows, and vector code treats the last few elements of
a tensor by itself; so a token's result would depend on how many tokens the layout brought along. A tile of one size is
always computed in one way, as long as one thread computes it.
"""

# Shapes: R rows, e experts, B tiles of 32 rows, M heads, N tokens

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

TILE_ROWS = 32
_WEIGHT_BYTES = 1 << 28  # of weights gathered for a run of tiles


class Tiles(NamedTuple):
    """Sorted rows cut into tiles, each of one expert, and filled up with rows that nobody reads.

    `expert` [B] is each tile's; `row` [B * 32] the sorted row at each place; `shift` [e] what an expert's sorted rows
    have to be moved by to find their places.
    """

    expert: Tensor
    row: Tensor
    shift: Tensor


def tile_rows(ends: Tensor, count: int) -> Tiles:
    """Tiles for `count` sorted rows, of which expert e owns those before `ends[e]` [e] and after the expert before."""
    experts = ends.shape[0]
    begins = F.pad(ends[:-1], (1, 0))
    needed = (ends - begins + TILE_ROWS - 1) // TILE_ROWS
    stops = needed.cumsum(0)
    tile = torch.arange(count // TILE_ROWS + experts, device=ends.device)
    expert = torch.searchsorted(stops, tile, right=True).clamp(max=experts - 1)
    shift = (stops - needed) * TILE_ROWS - begins
    row = (tile * TILE_ROWS - shift[expert]).unsqueeze(1) + torch.arange(TILE_ROWS, device=ends.device)
    return Tiles(expert, row.flatten().clamp(max=count - 1), shift)


def tiled_product(rows: Tensor, weights: Tensor, tiles: Tiles) -> Tensor:
    """`rows` [B * 32, in], already in their places, times their tile's matrix of `weights` [e, in, out], in fp32."""
    blocks = rows.float().view(-1, TILE_ROWS, rows.shape[1])
    step = max(1, _WEIGHT_BYTES // (4 * weights[0].numel()))
    parts = zip(torch.split(blocks, step), torch.split(tiles.expert, step), strict=True)
    return torch.cat([torch.bmm(block, weights[expert].float()) for block, expert in parts]).flatten(0, 1)


def even_scores(x: Tensor, matrices: Tensor) -> Tensor:
    """Sigmoids of `x` [M, N, in] times `matrices` [M, in, out]; on the CPU in tiles of rows."""
    if x.device.type != "cpu":
        return torch.sigmoid(x @ matrices)
    tiles = F.pad(x, (0, 0, 0, -x.shape[1] % TILE_ROWS)).view(x.shape[0], -1, TILE_ROWS, x.shape[2])
    products = [
        torch.bmm(rows, matrix.expand(rows.shape[0], -1, -1)) for rows, matrix in zip(tiles, matrices, strict=True)
    ]
    return torch.sigmoid(torch.stack(products)).flatten(1, 2)[:, : x.shape[1]]
