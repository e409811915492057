"""The ranks of a running layout and the groups in which they exchange."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist

from magi2.errors import ConfigError
from magi2.parallel.collectives import Group
from magi2.parallel.layout import ParallelLayout
from magi2.parallel.meter import Meter

BACKENDS = ("gloo", "nccl", "mccl")


@dataclass(frozen=True, eq=False)
class Mesh:
    """This rank's place in a layout. All groups share one meter.

    `world` is every rank, `cp` those that share this rank's sequence, `ep` those that share the experts.
    """

    layout: ParallelLayout
    rank: int
    device: torch.device
    world: Group
    cp: Group
    ep: Group

    @classmethod
    def create(cls, layout: ParallelLayout, device: torch.device) -> Mesh:
        """The mesh of the initialised process group, whose ranks must all call this with the same layout.

        Raises: ConfigError when the layout needs another number of ranks or the backend is unknown.
        """
        if layout.num_ranks == 1:
            return cls.single(device)
        ranks = dist.get_world_size() if dist.is_initialized() else 1
        if ranks != layout.num_ranks:
            raise ConfigError(f"layout {layout} needs {layout.num_ranks} ranks, there are {ranks}")
        if dist.get_backend() not in BACKENDS:
            raise ConfigError(f"collective backend is {dist.get_backend()!r}, must be one of {', '.join(BACKENDS)}")
        meter = Meter(device)
        world = Group(tuple(range(ranks)), dist.get_rank(), dist.group.WORLD, meter)
        # A group is made by every rank of the world, members or not, in one order.
        cp, ep = (_blocks(world, size) for size in (layout.cp, layout.ep))
        return cls(layout, world.rank, device, world, cp, ep)

    @classmethod
    def single(cls, device: torch.device) -> Mesh:
        """The mesh of one rank, without process group."""
        alone = Group((0,), 0, meter=Meter(device))
        return cls(ParallelLayout(), 0, device, alone, alone, alone)

    @property
    def branch(self) -> int | None:
        """The guidance branch that this rank computes: 0 conditional, 1 unconditional, None for both."""
        return self.rank // self.layout.cp if self.layout.cfg == 2 else None

    @property
    def meter(self) -> Meter:
        """What the groups count."""
        return self.world.meter


def _blocks(world: Group, size: int) -> Group:
    """This rank's group among blocks of `size` neighbouring ranks."""
    if size == world.size:
        return world
    own = world.rank // size * size
    if size == 1:
        return Group((own,), 0, meter=world.meter)
    blocks = {first: tuple(range(first, first + size)) for first in range(0, world.size, size)}
    made = {first: dist.new_group(list(ranks)) for first, ranks in blocks.items()}
    return Group(blocks[own], world.rank - own, made[own], world.meter)
