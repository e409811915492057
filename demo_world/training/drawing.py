"""Batches drawn without end; where an accelerator learns, other processes draw ahead of it."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from typing import TypeVar

import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

Batch = TypeVar("Batch")
Draw = Callable[[random.Random, torch.Generator, int], Batch]
"""Makes a batch on the CPU from two sources of chance and the number of batches that they gave before."""


class _Drawn(IterableDataset[Batch]):
    """What one process draws, from a seed of its own."""

    def __init__(self, draw: Draw[Batch], seed: int) -> None:
        self._draw, self._seed = draw, seed

    def __iter__(self) -> Iterator[Batch]:
        process = get_worker_info()
        seed = self._seed if process is None else process.seed
        rng, generator = random.Random(seed), torch.Generator().manual_seed(seed)
        number = 0
        while True:
            yield self._draw(rng, generator, number)
            number += 1


def draw_batches(draw: Draw[Batch], *, seed: int, processes: int) -> Iterator[Batch]:
    """Endless batches, the same for the same arguments; with 0 processes they are drawn here, when asked for.

    For other processes `draw` has to be a function of a module, or a `functools.partial` of one.
    """
    loader: DataLoader[Batch] = DataLoader(
        _Drawn(draw, seed),
        batch_size=None,
        collate_fn=_keep,
        num_workers=processes,
        multiprocessing_context="spawn" if processes else None,
        generator=torch.Generator().manual_seed(seed),
    )
    return iter(loader)


def _keep(batch: Batch) -> Batch:
    """By default a loader turns tuples into lists."""
    return batch


def drawing_processes(device: torch.device) -> int:
    """How many draw for this device: every processor but one for an accelerator; none for a CPU, which learns."""
    return 0 if device.type == "cpu" else max(1, (os.cpu_count() or 1) - 1)
