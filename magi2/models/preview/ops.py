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

Sizes = tuple[int, ...]


class ExpertBranches(Protocol):
    """A sparse MLP as its two branches."""

    def routed(self, y: Tensor, group_sizes: Sizes) -> Tensor:
        """Output [N, c] of the routed experts for normed tokens [N, c]."""
        ...

    def unrouted(self, y: Tensor, group_sizes: Sizes) -> Tensor:
        """Output [N, c] of the other experts for normed tokens [N, c]."""
        ...


def sum_branches(mlp: ExpertBranches, y: Tensor, group_sizes: Sizes) -> Tensor:
    """Output [N, c] of a sparse MLP for normed tokens `y` [N, c]."""
    return mlp.routed(y, group_sizes) + mlp.unrouted(y, group_sizes)


@dataclass(frozen=True)
class PreviewOps:
    """What the layers call; each default's docstring is the contract of its entry."""

    mhc_coefficients: Callable[[Tensor, Tensor, mhc.MhcWeights, Sizes], mhc.MhcCoefficients] = mhc.mhc_coefficients
    mhc_input: Callable[[Tensor, Tensor, Tensor, Sizes], Tensor] = mhc.mhc_input
    mhc_post: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor] = mhc.mhc_post
    packed_heads: Callable[
        [Tensor, Tensor, Tensor, Tensor, Tensor, Sizes, tuple[int, int]], tuple[Tensor, Tensor, Tensor]
    ] = attention.packed_heads
    attend: Callable[[Tensor, Tensor, Tensor, Tensor, attention.Sequences, float], Tensor] = attention.attend
    gate_heads: Callable[[Tensor, Tensor, Tensor], Tensor] = attention.gate_heads
    swiglu7: Callable[[Tensor], Tensor] = swiglu7
    route: Callable[[Tensor, Tensor, Tensor, int, bool, float], moe.Routes] = moe.route
    run_experts: Callable[[Tensor, moe.Routes, Tensor, Tensor, Tensor], Tensor] = moe.run_experts
    sparse_mlp: Callable[[ExpertBranches, Tensor, Sizes], Tensor] = sum_branches
