"""Attention over a sequence that is spread over ranks: each gets all tokens of some heads instead of all heads of some.

Two all-to-alls a layer. The sender lays rows out by receiving rank; they arrive in token order, since ranks hold
neighbouring pieces of the sequence, and need no further copy. Pieces may differ in length: nothing is padded.
"""

# Shapes: P ranks, S own tokens, N tokens of all ranks, h heads of one rank (any kinds together), d head dim

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from magi2.parallel.buffers import Buffers
from magi2.parallel.collectives import Group

TRAFFIC = "attention"


class HeadExchange:
    """The two exchanges of one group, and their buffers."""

    def __init__(self, group: Group, buffers: Buffers) -> None:
        self.group = group
        self._buffers = buffers

    def outbox(self, tokens: int, heads: int, dim: int, like: Tensor) -> Tensor:
        """Where to write what `to_heads` sends: [P, S, h, d], rank p's heads in block p."""
        return self._buffers.take("heads_out", (self.group.size, tokens, heads, dim), like)

    def to_heads(self, outbox: Tensor, lengths: Sequence[int]) -> Tensor:
        """[N, h, d]: the own heads of all ranks' tokens, `lengths[p]` of them from rank p. Valid until the next one."""
        _, tokens, heads, dim = outbox.shape
        inbox = self._buffers.take("heads_in", (sum(lengths), heads, dim), outbox)
        sent = outbox.view(-1, heads, dim)
        self.group.all_to_all(inbox, sent, lengths, [tokens] * self.group.size, name=TRAFFIC).wait()
        return inbox

    def to_tokens(self, heads: Tensor, lengths: Sequence[int]) -> Tensor:
        """[P, S, h, d]: the heads of all ranks for the own tokens, from [N, h, d]. Valid until the next one."""
        tokens = lengths[self.group.rank]
        inbox = self._buffers.take("tokens_in", (self.group.size, tokens, *heads.shape[1:]), heads)
        received = [tokens] * self.group.size
        self.group.all_to_all(inbox.flatten(0, 1), heads, received, lengths, name=TRAFFIC).wait()
        return inbox
