"""Arithmetic that several kernels share."""

from __future__ import annotations

import triton
import triton.language as tl

_LEAST = tl.constexpr(2.0**-100)  # a row of smaller magnitudes has the scale of this, so that zeros divide
_LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def swiglu7(gate, up):
    """`g * sigmoid(1.702 g) * (u + 1)` with `g = min(gate, 7)`, `u = clamp(up, -7, 7)`; fp32 in and out."""
    g = tl.minimum(gate, 7.0, propagate_nan=tl.PropagateNan.ALL)
    u = tl.minimum(tl.maximum(up, -7.0), 7.0)
    return g / (1.0 + tl.exp2(g * (-1.702 * _LOG2E))) * (u + 1.0)


@triton.jit
def sigmoid(x):
    return 1.0 / (1.0 + tl.exp2(x * -_LOG2E))


@triton.jit
def e4m3_scale(largest):
    """Scales of rows with such largest magnitudes, and what to multiply the rows with. A NaN has no part in either."""
    scale = tl.div_rn(tl.maximum(largest, _LEAST), 448.0)
    return scale, tl.div_rn(1.0, scale)
