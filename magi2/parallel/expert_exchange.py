"""Tokens to the ranks that hold their experts, and results back.

Each rank of the group holds `halves` half heads, a run of them; the sender lays rows out by receiving rank, one place
for each head of which that rank has a part. A head that two ranks share goes to both, and its two results are added
at home, lower half first.
"""

# Shapes: P ranks, S own tokens, N tokens of all ranks of the group, M heads, m places of one rank, D head dim

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from magi2.parallel.buffers import Buffers
from magi2.parallel.collectives import Group, Pending

TRAFFIC = "experts"


@dataclass(frozen=True)
class Places:
    """How M heads, in halves, lie on the ranks of a group of `size`."""

    heads: int
    size: int

    @property
    def halves(self) -> int:
        """Half heads of one rank."""
        return 2 * self.heads // self.size

    @property
    def count(self) -> int:
        """Places of one rank: a head that it has half of takes one too."""
        return (self.halves + 1) // 2

    def lay_out(self, heads: Tensor, outbox: Tensor) -> None:
        """Write `heads` [S, M, D] into `outbox` [P, S, m, D]."""
        if self.halves % 2 == 0:
            outbox.copy_(heads.view(len(heads), self.size, self.count, -1).transpose(0, 1))
            return
        # Two neighbours share an odd number of heads, and the one in the middle goes to both.
        pairs = heads.view(len(heads), self.size // 2, self.halves, -1).transpose(0, 1)
        outbox[0::2].copy_(pairs[:, :, : self.count])
        outbox[1::2].copy_(pairs[:, :, self.count - 1 :])

    def add_up(self, inbox: Tensor) -> Tensor:
        """[S, M, D] from the ranks' results [P, S, m, D]."""
        if self.halves % 2 == 0:
            return inbox.transpose(0, 1).flatten(1, 2)
        tokens, dim = inbox.shape[1], inbox.shape[3]
        heads = inbox.new_empty(tokens, self.size // 2, self.halves, dim)
        first, second = inbox[0::2].transpose(0, 1), inbox[1::2].transpose(0, 1)
        heads[:, :, : self.count] = first
        heads[:, :, self.count - 1] += second[:, :, 0]
        heads[:, :, self.count :] = second[:, :, 1:]
        return heads.flatten(1, 2)


class ExpertExchange:
    """One group's way to the experts and back, for one layer at a time."""

    def __init__(self, group: Group, places: Places, buffers: Buffers) -> None:
        self.group, self.places = group, places
        self._buffers = buffers

    def start(self, heads: Tensor, lengths: Sequence[int], compute: Callable[[Tensor], Tensor]) -> TravellingRun:
        """Begin to send `heads` [S, M, D] of the own tokens; rank p of the group has `lengths[p]` tokens.

        `compute` makes results [N, m, D] of tokens [N, m, D] of this rank's places.
        """
        tokens, _, dim = heads.shape
        count, size = self.places.count, self.group.size
        outbox = self._buffers.take("experts_out", (size, tokens, count, dim), heads)
        self.places.lay_out(heads, outbox)
        arriving = self._buffers.take("experts_in", (sum(lengths), count, dim), heads)
        home = self._buffers.take("results_in", (size, tokens, count, dim), heads)
        sent = self.group.all_to_all(arriving, outbox.flatten(0, 1), lengths, [tokens] * size, name=TRAFFIC)
        return TravellingRun(self, lengths, compute, arriving, home, sent)

    def send_home(self, results: Tensor, home: Tensor, lengths: Sequence[int]) -> Pending:
        """Begin to send results [N, m, D] to the ranks whose tokens they belong to, into `home` [P, S, m, D]."""
        received = [home.shape[1]] * self.group.size
        return self.group.all_to_all(home.flatten(0, 1), results, received, lengths, name=TRAFFIC)


@dataclass(eq=False)
class TravellingRun:
    """Tokens of one layer on their way to the experts and back. Call `compute`, then `result`, once each."""

    exchange: ExpertExchange
    lengths: Sequence[int]
    work: Callable[[Tensor], Tensor]
    arriving: Tensor
    home: Tensor
    pending: Pending

    def compute(self) -> None:
        """Wait for the tokens, let the own experts work on them and begin to send the results home."""
        self.pending.wait()
        self._results = self.work(self.arriving).contiguous()  # kept alive while they are being sent
        self.pending = self.exchange.send_home(self._results, self.home, self.lengths)

    def result(self) -> Tensor:
        """[S, M, D]: what all experts made of the own tokens; waits for the other ranks."""
        self.pending.wait()
        return self.exchange.places.add_up(self.home)
