"""Which routed experts one rank of an expert group holds: a run of half heads.

Each MoE head is two halves of its experts, in every layout and on one rank too. The halves of all heads, in order, are
dealt out in equal runs, so that no rank idles when the heads do not divide; a head may then be on two ranks.
"""

# Shapes: M MoE heads, E experts per head

from __future__ import annotations

from dataclasses import dataclass

from magi2.errors import ConfigError


@dataclass(frozen=True)
class ExpertShare:
    """Half heads `first_half` to `stop_half` of heads with `num_experts` experts each.

    `heads` are those it has any part of, its places: tokens come in and partial results go out for each of them.
    """

    num_experts: int
    first_half: int
    stop_half: int

    @property
    def heads(self) -> range:
        """The heads that it has a part of."""
        return range(self.first_half // 2, (self.stop_half + 1) // 2)

    @property
    def expert_rows(self) -> range:
        """Its experts among all (head, expert) pairs, head-major."""
        return range(self.first_half * self.num_experts // 2, self.stop_half * self.num_experts // 2)

    @property
    def router_rows(self) -> range:
        """All experts of its heads: a choice among half of them would not be the same one."""
        return range(self.heads.start * self.num_experts, self.heads.stop * self.num_experts)

    @property
    def num_held(self) -> int:
        """How many experts it has."""
        return len(self.expert_rows)

    @property
    def first_row(self) -> int:
        """Where its experts begin among those of its own heads."""
        return self.expert_rows.start - self.router_rows.start

    def held_ids(self, place: int) -> tuple[int, int]:
        """First and behind-last id of the experts it has of the head in `place`."""
        first = self.first_row - place * self.num_experts
        return max(first, 0), min(first + self.num_held, self.num_experts)


def whole_heads(num_heads: int, num_experts: int) -> ExpertShare:
    """The share of a rank that holds all experts."""
    return ExpertShare(num_experts, 0, 2 * num_heads)


def expert_share(num_heads: int, num_experts: int, *, rank: int, size: int) -> ExpertShare:
    """The share of one of `size` ranks.

    Raises: ConfigError when `size` does not divide the half heads, or would halve an odd number of experts.
    """
    halves, rest = divmod(2 * num_heads, size)
    if rest or (halves % 2 and num_experts % 2):
        raise ConfigError(f"{num_heads} MoE heads of {num_experts} experts cannot be dealt to {size} ranks by halves")
    return ExpertShare(num_experts, rank * halves, (rank + 1) * halves)
