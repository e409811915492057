"""The 3-D blocks of the video tokens and who sees whom: everything about attention that depends on shapes alone.

Blocks start at the origin, the last one along an axis is shorter. A query sees the blocks at most `radius` blocks away
along every axis; the neighbourhood is clipped at the edges, never shifted. Blocks are grouped by the shape of what they
see: inside one group all neighbourhoods hold the same number of tokens, so attention needs no mask and no padding.

Source: MAGI-2 preview inference code, refiner data proxy (window mode "block", block mode "grid").
"""

# Shapes: V tokens of the latent grid, N tokens that are queries here, B blocks whose keys are here, R angles,
# n query blocks of a group, P tokens of a query block, m key blocks that it sees, K key tokens that it sees,
# c query blocks of a chunk.

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from magi2.models.layers import rope_table
from magi2.models.refiner.positions import video_coords


@dataclass(frozen=True, eq=False)
class WindowGroup:
    """Query blocks of one extent whose neighbourhoods have one shape; int64 tensors over block-ordered tokens."""

    query_blocks: Tensor  # [n] block ids
    query_tokens: Tensor  # [n, P]
    key_blocks: Tensor  # [n, m] block ids
    key_starts: Tensor  # [n, m] first token of every key block
    key_slots: Tensor  # [K] which of the m key blocks a key token belongs to
    key_offsets: Tensor  # [K] its place in that block

    def key_tokens(self, start: int, stop: int) -> Tensor:
        """Token indices [c, K] that the query blocks `start:stop` of this group see."""
        return self.key_starts[start:stop, self.key_slots] + self.key_offsets


@dataclass(frozen=True, eq=False)
class WindowGrid:
    """Order, blocks, windows and rotary table of a latent grid (T, H, W) or of one rank's part of it, on one device.

    A part has the queries of some blocks and the keys of all that they see. The keys of the query blocks come first,
    in the order of the queries, so a video token's place is the same among both; tail queries follow the video queries
    at `num_tokens`, tail keys the video keys at `num_key_tokens`. In the whole grid the two are equal.
    Memory is linear in the tokens: 0.22 GB at 63x68x120, nine tenths of it the rotary table.
    """

    size: tuple[int, int, int]
    block: tuple[int, int, int]
    radius: tuple[int, int, int]
    blocks: tuple[int, int, int]  # how many along each axis; id = (bt * blocks[1] + bh) * blocks[2] + bw
    order: Tensor  # [N] raster index of each token
    restore: Tensor  # [V] place of each raster token among the tokens of all parts, one part after another
    block_ids: Tensor  # [B] which blocks have their keys here
    lengths: Tensor  # [B] tokens of each of them
    starts: Tensor  # [B] first key token of each of them
    num_key_tokens: int
    groups: tuple[WindowGroup, ...]
    group_restore: Tensor  # [N] place of each token among all groups' query tokens, one after another
    rope: Tensor  # [N, R] fp32 rotary table of the tokens

    @property
    def num_tokens(self) -> int:
        """Video tokens that are queries here."""
        return len(self.order)


@dataclass(frozen=True)
class _AxisClass:
    """Block indices along one axis with the same own extent and the same extents of what they see."""

    own: int
    seen: tuple[int, ...]
    members: tuple[int, ...]
    first_seen: tuple[int, ...]  # per member


def window_grid(
    size: tuple[int, int, int], block: tuple[int, int, int], radius: tuple[int, int, int], bands: Tensor
) -> WindowGrid:
    """The structure of a latent grid, on the device of `bands` (the model's rotary frequencies)."""
    device = bands.device
    extents = [_extents(length, step) for length, step in zip(size, block, strict=True)]
    blocks = (len(extents[0]), len(extents[1]), len(extents[2]))
    order = _block_order(size, block, blocks, device)
    lengths = _outer(extents, device)
    starts = lengths.cumsum(0) - lengths
    axes = [_axis_classes(along, reach) for along, reach in zip(extents, radius, strict=True)]
    groups = tuple(_group(classes, blocks, starts) for classes in itertools.product(*axes))
    return WindowGrid(
        size=size,
        block=block,
        radius=radius,
        blocks=blocks,
        order=order,
        restore=inverse(order),
        block_ids=torch.arange(len(starts), device=device),
        lengths=lengths,
        starts=starts,
        num_key_tokens=len(order),
        groups=groups,
        group_restore=inverse(torch.cat([group.query_tokens.flatten() for group in groups])),
        rope=rope_table(video_coords(size, order), bands),
    )


def _extents(length: int, step: int) -> list[int]:
    return [min(step, length - start) for start in range(0, length, step)]


def _block_order(
    size: tuple[int, int, int], block: tuple[int, int, int], blocks: tuple[int, int, int], device: torch.device
) -> Tensor:
    t, h, w = (torch.arange(length, device=device) // step for length, step in zip(size, block, strict=True))
    block_ids = (t[:, None, None] * blocks[1] + h[:, None]) * blocks[2] + w
    # Stable: inside a block the tokens stay in raster order.
    return block_ids.flatten().argsort(stable=True)


def _outer(extents: list[list[int]], device: torch.device) -> Tensor:
    """Products of one extent per axis, flattened in raster order."""
    t, h, w = (torch.tensor(along, device=device) for along in extents)
    return (t[:, None, None] * h[:, None] * w).flatten()


def inverse(permutation: Tensor) -> Tensor:
    """Where a permutation [N] puts each of its indices."""
    places = torch.empty_like(permutation)
    places[permutation] = torch.arange(len(permutation), device=permutation.device)
    return places


def _axis_classes(extents: list[int], radius: int) -> list[_AxisClass]:
    found: dict[tuple[int, tuple[int, ...]], list[int]] = {}
    for index, own in enumerate(extents):
        seen = tuple(extents[max(0, index - radius) : index + radius + 1])
        found.setdefault((own, seen), []).append(index)
    return [
        _AxisClass(own, seen, tuple(members), tuple(max(0, index - radius) for index in members))
        for (own, seen), members in found.items()
    ]


def _group(axes: tuple[_AxisClass, ...], blocks: tuple[int, int, int], starts: Tensor) -> WindowGroup:
    device = starts.device
    query_blocks = _block_ids([torch.tensor(axis.members, device=device)[:, None] for axis in axes], blocks)[:, 0]
    key_blocks = _block_ids(
        [
            torch.tensor(axis.first_seen, device=device)[:, None] + torch.arange(len(axis.seen), device=device)
            for axis in axes
        ],
        blocks,
    )
    lengths_m = _outer([list(axis.seen) for axis in axes], device)
    key_slots = torch.arange(len(lengths_m), device=device).repeat_interleave(lengths_m)
    key_offsets = torch.arange(len(key_slots), device=device) - (lengths_m.cumsum(0) - lengths_m)[key_slots]
    own = math.prod(axis.own for axis in axes)
    return WindowGroup(
        query_blocks=query_blocks,
        query_tokens=starts[query_blocks][:, None] + torch.arange(own, device=device),
        key_blocks=key_blocks,
        key_starts=starts[key_blocks],
        key_slots=key_slots,
        key_offsets=key_offsets,
    )


def _block_ids(indices: list[Tensor], blocks: tuple[int, int, int]) -> Tensor:
    """Block ids [prod n, prod m] from one [n, m] index tensor per axis, both dimensions in raster order."""
    t, h, w = indices
    t, h, w = t[:, None, None, :, None, None], h[:, None, None, :, None], w[:, None, None, :]
    ids = (t * blocks[1] + h) * blocks[2] + w
    return ids.flatten(0, 2).flatten(1)
