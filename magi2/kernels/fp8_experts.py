"""Routed experts with e4m3 tokens and weights in one kernel; sorted rows and `combine` are those of `experts`.

Both operands of each product are contiguous along the summed axis. Products are summed in fp32 by the matrix units'
fast accumulation. The hidden rows never leave the chip, and have the fixed scale 1/8, since SwiGLU7 clamps them.
"""

# Shapes: N tokens, M heads, E experts per head, K routes per token and head, D head dim, F expert width, R = N*M*K

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from magi2.kernels import limits
from magi2.kernels.activation import swiglu7
from magi2.kernels.settings import BARRIER_BYTES, Features
from magi2.kernels.sorting import Plan

_DEPTH = 32  # summed elements of one FP8 matrix instruction
_LINE_BYTES = 16  # what a descriptor's rows begin at


class Scaled(NamedTuple):
    """e4m3 `values` [..., K], and fp32 `scales` [...] that multiply them."""

    values: Tensor
    scales: Tensor


class ExpertWeights(NamedTuple):
    """Contiguous weights [M*E, F, D] of gate and up, and [M*E, D, F] of down, with scales [M*E, F] and [M*E, D]."""

    gate: Scaled
    up: Scaled
    down: Scaled


@dataclass(frozen=True)
class Fp8ExpertSettings:
    """Launch settings: rows and expert columns of a tile, loads in flight, warps; or the specialised kernel's own."""

    block_rows: int
    block_width: int
    stages: int
    warps: int
    specialised: bool = False

    def shared_bytes(self, head_dim: int) -> int:
        """Shared memory of one program: the held rows, and per stage a block of gate, of up and of down.

        The hidden block passes through it on its way to the second product.
        """
        hidden = 0 if self.specialised else self.block_rows * self.block_width
        return head_dim * (self.block_rows + self.stages * 3 * self.block_width) + hidden + BARRIER_BYTES

    def fits(self, available: Features, head_dim: int, width: int) -> bool:
        """Whether the device has what this needs, and the sizes divide."""
        if self.specialised and not (available.warpgroups and head_dim == 256):
            return False
        return width % self.block_width == 0 and self.shared_bytes(head_dim) <= available.shared_bytes


# Best first, measured on an H200 at 2.2 million routes; the later ones are for devices with less shared memory.
FP8_EXPERT_SETTINGS = (
    Fp8ExpertSettings(128, 64, 4, 4, specialised=True),
    Fp8ExpertSettings(128, 64, 3, 8),
    Fp8ExpertSettings(64, 64, 3, 4),
    Fp8ExpertSettings(64, 64, 1, 4),
    Fp8ExpertSettings(32, 32, 1, 4),
)


@triton.jit
def _fp8_experts_kernel(
    x, x_scales, w_gate, gate_scales, w_up, up_scales, w_down, down_scales, weights,
    order, tile_expert, tile_first, tile_end, num_tiles, rows, num_tokens, num_heads, first_expert,
    EXPERTS: tl.constexpr, TOP_K: tl.constexpr, D: tl.constexpr, F: tl.constexpr,
    BLOCK_ROWS: tl.constexpr, BLOCK_WIDTH: tl.constexpr, STAGES: tl.constexpr, DESCRIPTORS: tl.constexpr,
):  # fmt: skip
    dims, inner = tl.arange(0, D), tl.arange(0, BLOCK_WIDTH)
    for tile in tl.range(tl.program_id(0), tl.load(num_tiles), tl.num_programs(0), num_stages=1):
        expert = tl.load(tile_expert + tile)
        row = tl.load(tile_first + tile) + tl.arange(0, BLOCK_ROWS)
        mask = row < tl.load(tile_end + tile)
        route = tl.load(order + row, mask=mask, other=0)
        head = expert // EXPERTS
        token = (route // TOP_K - head * num_tokens).to(tl.int64) * num_heads + head
        tokens = tl.load(x + token[:, None] * D + dims[None, :], mask=mask[:, None], other=0.0)
        token_scale = tl.load(x_scales + token, mask=mask, other=0.0)
        expert -= first_expert
        held = expert.to(tl.int64)
        out = tl.zeros([BLOCK_ROWS, D], tl.float32)
        for f in tl.range(0, F, BLOCK_WIDTH, num_stages=STAGES):
            column = held * F + f + inner
            if DESCRIPTORS:
                gate_block = w_gate.load([expert * F + f, 0])
                up_block = w_up.load([expert * F + f, 0])
                down_block = w_down.load([expert * D, f])
            else:
                gate_block = tl.load(w_gate + column[:, None] * D + dims[None, :])
                up_block = tl.load(w_up + column[:, None] * D + dims[None, :])
                down_block = tl.load(w_down + (held * D + dims)[:, None] * F + (f + inner)[None, :])
            gate = tl.dot(tokens, gate_block.T)
            up = tl.dot(tokens, up_block.T)
            gate = gate * token_scale[:, None] * tl.load(gate_scales + column)[None, :]
            up = up * token_scale[:, None] * tl.load(up_scales + column)[None, :]
            hidden = (swiglu7(gate, up) * 8.0).to(tl.float8e4nv)
            out = tl.dot(hidden, down_block.T, out)
        out = out * 0.125 * tl.load(down_scales + held * D + dims)[None, :]
        scale = tl.load(weights + route, mask=mask, other=0.0)
        target = rows + row.to(tl.int64)[:, None] * D + dims[None, :]
        tl.store(target, (out * scale[:, None]).to(rows.dtype.element_ty), mask=mask[:, None])


@cache
def fp8_expert_rows_refusal(
    num_experts: int,
    head_dim: int,
    width: int,
    available: Features,
    choices: tuple[Fp8ExpertSettings, ...] = FP8_EXPERT_SETTINGS,
) -> str | None:
    """Why `fp8_expert_rows` does not take so many experts [head_dim, width] by any of `choices`; None when it does."""
    fits = any(settings.fits(available, head_dim, width) for settings in choices)
    return limits.first(
        limits.no_fp8(available.fp8),
        limits.no_power_of_two("MoE head dim", head_dim, _DEPTH),
        limits.no_multiple("expert width", width, min(settings.block_width for settings in choices)),
        limits.outside("rows of expert weights", num_experts * max(head_dim, width), 1, limits.MAX_INDEX),
        None if fits else f"no settings fit head dim {head_dim}, width {width} and {available.shared_bytes} bytes",
    )


def fp8_expert_settings(available: Features, head_dim: int, width: int) -> Fp8ExpertSettings:
    """The best settings that fit the device and divide the expert width."""
    for settings in FP8_EXPERT_SETTINGS:
        if settings.fits(available, head_dim, width):
            return settings
    raise ValueError(f"no FP8 expert settings fit head dim {head_dim}, width {width}, {available.shared_bytes} bytes")


def fp8_expert_rows(
    x: Scaled,
    weights: Tensor,
    plan: Plan,
    experts: ExpertWeights,
    available: Features,
    settings: Fp8ExpertSettings,
    rows: Tensor,
) -> Tensor:
    """Weighted expert outputs of the sorted routes, written to `rows` [R, D] and returned.

    `x` has contiguous values [N, M, D] and scales [N, M], `weights` [M, N, K] are fp32 and `experts` all or only the
    plan's at hand; `plan` must have been made for tiles of `settings.block_rows` rows. A hidden row goes from fp32 to
    e4m3 at once; a weighted row is rounded to the dtype of `rows`. Raises: UnsupportedShapesError where
    `fp8_expert_rows_refusal` says why.
    """
    num_tokens, num_heads, dim = x.values.shape
    count, width, _ = experts.gate.values.shape
    limits.require("fp8_expert_rows", fp8_expert_rows_refusal(count, dim, width, available, (settings,)))
    if settings.specialised:
        from magi2.kernels import fp8_experts_specialised  # an experimental part of triton: only where it is used

        fp8_experts_specialised.launch(x, experts, weights, plan, rows, available.processors)
        return rows
    gate, up, down = (part.values.view(-1, part.values.shape[2]) for part in experts)
    if available.descriptors:
        gate, up = (TensorDescriptor.from_tensor(part, [settings.block_width, dim]) for part in (gate, up))
        down = TensorDescriptor.from_tensor(down, [dim, settings.block_width])
    _fp8_experts_kernel[(available.processors,)](
        x.values, x.scales, gate, experts.gate.scales, up, experts.up.scales, down, experts.down.scales, weights,
        plan.order, plan.tile_expert, plan.tile_first, plan.tile_end, plan.num_tiles, rows,
        num_tokens, num_heads, plan.first,
        EXPERTS=plan.num_experts, TOP_K=weights.shape[2], D=dim, F=width,
        BLOCK_ROWS=settings.block_rows, BLOCK_WIDTH=settings.block_width, STAGES=settings.stages,
        DESCRIPTORS=available.descriptors, num_warps=settings.warps,
    )  # fmt: skip
    return rows
