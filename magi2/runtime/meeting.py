"""Meeting the other ranks of a group, within a bounded time and with an error that says who did not come."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

from magi2 import platform
from magi2.config.settings import Settings
from magi2.errors import ConfigError, InfrastructureError
from magi2.parallel.layout import ParallelLayout
from magi2.parallel.mesh import Mesh
from magi2.stages.prepare import open_device
from magi2.stages.team import CONTROL_TIMEOUT, Team

MEETING_TIMEOUT = timedelta(seconds=90)
_COLLECTIVE_TIMEOUT = timedelta(minutes=10)


@contextmanager
def meet(layout: ParallelLayout, settings: Settings, *, timeout: timedelta = MEETING_TIMEOUT) -> Iterator[Team]:
    """This rank's team, on its device, once all ranks of `layout` have come; the address is in the environment.

    Raises: InfrastructureError when a rank is missing after `timeout` or the ranks cannot connect, as when their port
    is taken; ConfigError when the environment or the host's devices do not go with the layout.
    """
    ranks = layout.num_ranks
    device = open_device(settings, rank=int(os.environ.get("LOCAL_RANK", "0")), ranks=ranks)
    if ranks == 1:
        yield Team.alone(device)
        return
    if os.environ.get("WORLD_SIZE") != str(ranks):
        raise ConfigError(f"layout {layout} needs {ranks} ranks, WORLD_SIZE is {os.environ.get('WORLD_SIZE')}")
    try:
        team = _team(layout, device, timeout)
    except RuntimeError as error:  # all of torch's errors of stores and process groups
        raise InfrastructureError(f"the {ranks} ranks cannot meet: {error}") from error
    yield team
    dist.destroy_process_group()  # not after an error, when others may be waiting


def _team(layout: ParallelLayout, device: torch.device, timeout: timedelta) -> Team:
    store, rank, ranks = next(rendezvous("env://", timeout=timeout))
    _wait_for_all(store, rank, ranks, timeout)
    backend = platform.current(device.type).collective_backend
    dist.init_process_group(
        backend,
        store=store,
        rank=rank,
        world_size=ranks,
        timeout=_COLLECTIVE_TIMEOUT,
    )
    control = dist.new_group(backend="gloo", timeout=CONTROL_TIMEOUT)
    mesh = Mesh.create(layout, device)
    for group in (mesh.world, mesh.cp, mesh.ep):
        group.barrier(device)  # connects them: later would be within a clip
    return Team(mesh, control)


def _wait_for_all(store: Any, rank: int, ranks: int, timeout: timedelta) -> None:
    names = [f"rank {number}" for number in range(ranks)]
    store.set(names[rank], "is here")
    try:
        store.wait(names, timeout)
    except dist.DistStoreError as error:
        absent = ", ".join(name for name in names if not store.check([name]))
        raise InfrastructureError(f"{absent} did not come within {timeout.total_seconds():g} s") from error
