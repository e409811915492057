"""The heavy steps of a layer as a table of functions, so that kernels can take their place from outside.

Every entry is plain torch by default. A replacement has the same arguments, result and rounding points.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from magi2.models.preview import attention, mhc, moe


@dataclass(frozen=True)
class PreviewOps:
    """What the layers call; each default's docstring is the contract of its entry."""

    mhc_coefficients: Callable[[Tensor, Tensor, mhc.MhcWeights, tuple[int, ...]], mhc.MhcCoefficients] = (
        mhc.mhc_coefficients
    )
    mhc_pre: Callable[[Tensor, Tensor], Tensor] = mhc.mhc_pre
    mhc_post: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor] = mhc.mhc_post
    split_qkv: Callable[
        [Tensor, Tensor, Tensor, Tensor, tuple[int, ...], tuple[int, int]], tuple[Tensor, Tensor, Tensor]
    ] = attention.split_qkv
    attend: Callable[[Tensor, Tensor, Tensor, Tensor, attention.Sequences, float], Tensor] = attention.attend
    gate_heads: Callable[[Tensor, Tensor, Tensor], Tensor] = attention.gate_heads
    route: Callable[[Tensor, Tensor, Tensor, int, bool, float], moe.Routes] = moe.route
    run_experts: Callable[[Tensor, moe.Routes, Tensor, Tensor, Tensor], Tensor] = moe.run_experts
