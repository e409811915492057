"""What the ranks of one group exchange. Sizes are known to every rank beforehand; nothing here asks for them.

The same calls on gloo, NCCL and MCCL: all three have an all-to-all with uneven (also empty) parts, but an all-gather
of uneven parts is missing in gloo, so rows are gathered by one broadcast from each rank, whatever the backend.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from itertools import accumulate

import torch
import torch.distributed as dist
from torch import Tensor

from magi2.parallel.meter import Meter


@dataclass(frozen=True, eq=False)
class Pending:
    """Collectives under way. Their tensors must be left alone until `wait` has returned."""

    works: tuple[dist.Work, ...] = ()
    meter: Meter | None = None

    def wait(self) -> None:
        """Wait; on an accelerator that is the current stream, not the host."""
        waiting: AbstractContextManager[None] = self.meter.exposed() if self.meter and self.works else nullcontext()
        with waiting:
            for work in self.works:
                work.wait()


@dataclass(frozen=True, eq=False)
class Group:
    """Some ranks of the mesh: their global numbers in order, and this rank's place among them.

    A group of one needs no `process_group` and exchanges nothing. `meter` counts what goes to other ranks.
    """

    ranks: tuple[int, ...]
    rank: int
    process_group: dist.ProcessGroup | None = None
    meter: Meter = field(default_factory=Meter)

    @property
    def size(self) -> int:
        return len(self.ranks)

    def all_to_all(
        self, receive: Tensor, send: Tensor, receive_rows: Sequence[int], send_rows: Sequence[int], *, name: str
    ) -> Pending:
        """Begin sending `send_rows[p]` rows of `send` to each rank p, and filling `receive` in the order of the ranks.

        Both are contiguous, with equal rows. `name` is what the meter counts it under.
        """
        if self.size == 1:
            receive.copy_(send)
            return Pending()
        row_bytes = send[0].numel() * send.element_size() if len(send) else 0
        self.meter.count(name, (sum(send_rows) - send_rows[self.rank]) * row_bytes)
        work = dist.all_to_all_single(
            receive, send, list(receive_rows), list(send_rows), group=self.process_group, async_op=True
        )
        return Pending((work,), self.meter)

    def gather_rows(self, rows: Tensor, lengths: Sequence[int], *, name: str) -> Tensor:
        """The rows of all ranks, one rank's after the other's; rank p has `lengths[p]` of them."""
        if self.size == 1:
            return rows
        gathered = rows.new_empty(sum(lengths), *rows.shape[1:])
        parts = torch.split(gathered, list(lengths))
        parts[self.rank].copy_(rows)
        self.meter.count(name, (self.size - 1) * rows.numel() * rows.element_size())
        works = [
            dist.broadcast(part, group=self.process_group, group_src=source, async_op=True)
            for source, part in enumerate(parts)
            if part.numel()
        ]
        Pending(tuple(work for work in works if work is not None), self.meter).wait()
        return gathered

    def barrier(self, device: torch.device) -> None:
        """Return when every rank of the group has come here. `device` is the mesh's."""
        if self.size > 1:
            everybody = torch.ones(1, device=device)
            dist.all_reduce(everybody, group=self.process_group)
            everybody.item()  # the host waits, too: on an accelerator the collective is only put into the stream


def even_split(count: int, parts: int) -> tuple[int, ...]:
    """Lengths of `parts` neighbouring pieces of `count`, the first ones one longer when it does not divide."""
    return tuple(count // parts + (part < count % parts) for part in range(parts))


def starts(lengths: Sequence[int]) -> tuple[int, ...]:
    """Where each piece begins."""
    return tuple(accumulate(lengths, initial=0))[:-1]
