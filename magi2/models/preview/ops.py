"""The heavy steps of a layer as a table of functions, so that kernels can take their place from outside.

Every entry is plain torch by default. A replacement has the same arguments, result and rounding points.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from magi2.models.layers import swiglu7
from magi2.models.preview import attention, mhc, moe
from magi2.models.preview.expert_share import ExpertShare
from magi2.models.preview.quantised import Quantised, QuantisedExperts, quantised_linear

Sizes = tuple[int, ...]


class HeldExperts(Protocol):
    """The routed experts whose weights are on this rank."""

    @property
    def share(self) -> ExpertShare:
        """Which ones they are."""
        ...

    def __call__(self, x: Tensor) -> Tensor:
        """Their canonical sum [N, m, D] for tokens [N, m, D] of the heads that the share has a part of."""
        ...


class ExpertRun(Protocol):
    """The routed experts of one layer at work, in the order of its methods."""

    def compute(self) -> None:
        """Wait for the tokens, let the experts that are here work on them, and begin to send the results home."""
        ...

    def result(self) -> Tensor:
        """Output [N, M, D] of all experts for the own tokens; waits for results of other ranks."""
        ...


class LocalRun:
    """All experts are here."""

    def __init__(self, experts: HeldExperts, x: Tensor) -> None:
        self._experts, self._x = experts, x

    def compute(self) -> None:
        self._out = self._experts(self._x)

    def result(self) -> Tensor:
        return self._out


class ExpertBranches(Protocol):
    """A sparse MLP by its parts, each for normed tokens [N, c]."""

    def split_heads(self, y: Tensor, group_sizes: Sizes) -> Tensor:
        """What the routed experts get: [N, M, D]."""
        ...

    def start_experts(self, heads: Tensor) -> ExpertRun:
        """Begin to send tokens [N, M, D] to their experts."""
        ...

    def merge(self, heads: Tensor, group_sizes: Sizes) -> Tensor:
        """Output [N, c] of the routed branch from that of its experts [N, M, D]."""
        ...

    def shared(self, y: Tensor, group_sizes: Sizes) -> Tensor:
        """Output [N, c] of the shared expert."""
        ...

    def specific(self, y: Tensor, group_sizes: Sizes) -> Tensor:
        """Output [N, c] of the modalities' own experts."""
        ...


def sum_branches(mlp: ExpertBranches, y: Tensor, group_sizes: Sizes) -> Tensor:
    """Output [N, c] of a sparse MLP for normed tokens `y` [N, c].

    The other experts work while tokens are on their way to the routed ones, and while results come home.
    """
    experts = mlp.start_experts(mlp.split_heads(y, group_sizes))
    shared = mlp.shared(y, group_sizes)
    experts.compute()
    unrouted = shared + mlp.specific(y, group_sizes)
    return mlp.merge(experts.result(), group_sizes) + unrouted


def gated_attention(
    ops: PreviewOps,
    heads: tuple[Tensor, Tensor, Tensor],
    sinks: Tensor,
    sequences: attention.Sequences,
    softcap: float,
    gate_logits: Tensor,
    to_grouped: Tensor,
) -> Tensor:
    """Attention of packed `heads` (q, k, v) by `ops`, then its gates: [N, H * d] in grouped order.

    Both steps may be one, as long as `ops` attends itself.
    """
    return ops.gate_heads(ops.attend(*heads, sinks, sequences, softcap), gate_logits, to_grouped)


@dataclass(frozen=True)
class PreviewOps:
    """What the layers call; each default's docstring is the contract of its entry."""

    mhc_coefficients: Callable[[Tensor, Tensor, mhc.MhcWeights, Sizes], mhc.MhcCoefficients] = mhc.mhc_coefficients
    mhc_input: Callable[[Tensor, Tensor, Tensor, Sizes], Tensor] = mhc.mhc_input
    mhc_post: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor] = mhc.mhc_post
    packed_heads: Callable[
        [Tensor, Tensor, Tensor, Tensor, Tensor, Sizes, tuple[int, int]], tuple[Tensor, Tensor, Tensor]
    ] = attention.packed_heads
    head_blocks: Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Sizes, tuple[int, int], Tensor], None] = (
        attention.head_blocks
    )
    attend: Callable[[Tensor, Tensor, Tensor, Tensor, attention.Sequences, float], Tensor] = attention.attend
    gate_heads: Callable[[Tensor, Tensor, Tensor], Tensor] = attention.gate_heads
    gated_attention: Callable[
        [PreviewOps, tuple[Tensor, Tensor, Tensor], Tensor, attention.Sequences, float, Tensor, Tensor], Tensor
    ] = gated_attention
    swiglu7: Callable[[Tensor], Tensor] = swiglu7
    route: Callable[[Tensor, Tensor, Tensor, int, bool, float], moe.Routes] = moe.route
    run_experts: Callable[[Tensor, moe.Routes, Tensor, Tensor, Tensor, ExpertShare], Tensor] = moe.run_experts
    run_quantised_experts: Callable[[Tensor, moe.Routes, QuantisedExperts, ExpertShare], Tensor] = (
        moe.run_quantised_experts
    )
    quantised_linear: Callable[[Tensor, Quantised, Sizes, int, bool], Tensor] = quantised_linear
    start_experts: Callable[[HeldExperts, Tensor], ExpertRun] = LocalRun
    sparse_mlp: Callable[[ExpertBranches, Tensor, Sizes], Tensor] = sum_branches
    tokens_travel: bool = False
    """Whether experts are on other ranks, so that their tokens had better be ready first."""
