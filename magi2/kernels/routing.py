"""The router in one kernel: fp32-exact logits on the matrix units, sigmoid, the best experts, their weights.

bf16 tokens times the fp32 gate would cost a fp32 product. Instead the gate is the sum of three planes of the tokens'
dtype, which hold all its bits, and the products are added in fp32, smallest first.
"""

# Shapes: N tokens, M heads, E experts per head, K routes per token and head, D head dim, P planes

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from magi2.kernels import limits
from magi2.kernels.activation import sigmoid
from magi2.kernels.settings import BARRIER_BYTES, Features, features

_PLANES = 3
_NORM_EPS = tl.constexpr(1e-12)


@dataclass(frozen=True)
class RouteSettings:
    """Launch settings: tokens and experts of a tile, warps."""

    block_tokens: int
    block_experts: int
    warps: int

    def shared_bytes(self, head_dim: int, itemsize: int) -> int:
        """Shared memory of one program: a tile of tokens and one of the gate."""
        return itemsize * head_dim * (self.block_tokens + self.block_experts) + BARRIER_BYTES


ROUTE_SETTINGS = RouteSettings(128, 128, 8)
_WIDE_SETTINGS = RouteSettings(16, 16, 4)  # for fp32 tokens, which take four times the space


def planes(values: Tensor, dtype: torch.dtype, count: int = _PLANES) -> Tensor:
    """[P, ...] numbers of `dtype` that add up to the fp32 `values`, largest first; P = 1 for fp32."""
    rest, parts = values.float(), []
    for _ in range(1 if dtype == torch.float32 else count):
        parts.append(rest.to(dtype))
        rest = rest - parts[-1].float()
    return torch.stack(parts)


@triton.jit
def _route_kernel(
    x,
    gate,
    bias,
    ids,
    weights,
    num_tokens,
    stride_token,
    stride_head,
    plane_stride,
    scale,
    EXPERTS: tl.constexpr,
    TOP_K: tl.constexpr,
    RANKS: tl.constexpr,
    SLOTS: tl.constexpr,
    D: tl.constexpr,
    PLANES: tl.constexpr,
    NORMALISE: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK_EXPERTS: tl.constexpr,
):
    head = tl.program_id(1)
    token = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = token < num_tokens
    dims, columns, slots = tl.arange(0, D), tl.arange(0, BLOCK_EXPERTS), tl.arange(0, SLOTS)
    pointers = x + token.to(tl.int64)[:, None] * stride_token + head.to(tl.int64) * stride_head + dims[None, :]
    tokens = tl.load(pointers, mask=mask[:, None], other=0.0)
    # The best of each block of experts; then the best of those.
    slot_key = tl.full([BLOCK, SLOTS], float("-inf"), tl.float32)
    slot_id = tl.full([BLOCK, SLOTS], EXPERTS, tl.int32)
    for start in tl.range(0, EXPERTS, BLOCK_EXPERTS, num_stages=1):
        expert = start + columns
        exists = expert < EXPERTS
        row = gate + (head * EXPERTS + expert)[None, :] * D + dims[:, None]
        logits = tl.zeros([BLOCK, BLOCK_EXPERTS], tl.float32)
        for plane in tl.static_range(PLANES):
            block = tl.load(row + (PLANES - 1 - plane) * plane_stride, mask=exists[None, :], other=0.0)
            logits = tl.dot(tokens, block, logits, input_precision="ieee")
        key = sigmoid(logits) + tl.load(bias + head * EXPERTS + expert, mask=exists, other=0.0)[None, :]
        key = tl.where(exists[None, :], key, float("-inf"))
        for rank in tl.static_range(TOP_K):
            best = tl.max(key, axis=1)
            pick = tl.min(tl.where(key == best[:, None], expert[None, :], EXPERTS), axis=1)
            key = tl.where(expert[None, :] == pick[:, None], float("-inf"), key)
            here = slots[None, :] == (start // BLOCK_EXPERTS) * RANKS + rank
            slot_key = tl.where(here, best[:, None], slot_key)
            slot_id = tl.where(here, pick[:, None], slot_id)
    ranks = tl.arange(0, RANKS)
    chosen_id = tl.zeros([BLOCK, RANKS], tl.int32)
    chosen_score = tl.zeros([BLOCK, RANKS], tl.float32)
    for rank in tl.static_range(TOP_K):
        best = tl.max(slot_key, axis=1)
        pick = tl.min(tl.where(slot_key == best[:, None], slot_id, EXPERTS), axis=1)
        slot_key = tl.where(slot_id == pick[:, None], float("-inf"), slot_key)
        # NaN logits pick nothing; the id has to stay in range all the same.
        pick = tl.minimum(pick, EXPERTS - 1)
        chosen_id = tl.where(ranks[None, :] == rank, pick[:, None], chosen_id)
        # The score without its bias, to the last bit or so: a copy of all scores would take half the registers.
        score = best - tl.load(bias + head * EXPERTS + pick)
        chosen_score = tl.where(ranks[None, :] == rank, score[:, None], chosen_score)
    if NORMALISE:
        chosen_score = chosen_score / tl.maximum(tl.sum(chosen_score, axis=1), _NORM_EPS)[:, None]
    target = (head * num_tokens + token)[:, None] * TOP_K + ranks[None, :]
    kept = mask[:, None] & (ranks[None, :] < TOP_K)
    tl.store(ids + target, chosen_id, mask=kept)
    tl.store(weights + target, chosen_score * scale, mask=kept)


def _settings(dtype: torch.dtype) -> RouteSettings:
    return _WIDE_SETTINGS if dtype == torch.float32 else ROUTE_SETTINGS


@cache
def route_refusal(
    num_heads: int, num_experts: int, head_dim: int, top_k: int, dtype: torch.dtype, available: Features
) -> str | None:
    """Why `route` does not take tokens of `dtype` for so many heads and experts of each; None when it does."""
    return limits.first(
        limits.other_dtype(dtype),
        limits.no_power_of_two("MoE head dim", head_dim, limits.MIN_DOT),
        limits.outside("top_k", top_k, 1, min(num_experts, limits.MAX_TOP_K)),
        limits.outside("router weights", _PLANES * num_heads * num_experts * head_dim, 1, limits.MAX_INDEX),
        limits.too_much_shared(_settings(dtype).shared_bytes(head_dim, dtype.itemsize), available.shared_bytes),
    )


def route(
    x: Tensor,
    gate_planes: Tensor,
    bias: Tensor,
    top_k: int,
    normalise: bool,
    scale: float,
    settings: RouteSettings | None = None,
) -> tuple[Tensor, Tensor]:
    """The chosen experts [M, N, K] int32 within each head, best first, and their fp32 weights [M, N, K].

    `x` [N, M, D] has contiguous channels, `gate_planes` [P, M*E, D] come from `planes`, `bias` [M*E] fp32 only takes
    part in the choice. Among equals the lower id wins. Raises: UnsupportedShapesError where `route_refusal` says why.
    """
    num_tokens, num_heads, dim = x.shape
    num_planes, rows, _ = gate_planes.shape
    experts, ranks = rows // num_heads, triton.next_power_of_2(top_k)
    limits.require("route", route_refusal(num_heads, experts, dim, top_k, x.dtype, features(x.device)))
    limits.require("route", limits.outside("routes", num_heads * num_tokens * top_k, 0, limits.MAX_INDEX))
    chosen = settings or _settings(x.dtype)
    block_experts = min(chosen.block_experts, max(16, triton.next_power_of_2(experts)))
    slots = triton.next_power_of_2(triton.cdiv(experts, block_experts)) * ranks
    ids = torch.empty(num_heads, num_tokens, top_k, dtype=torch.int32, device=x.device)
    weights = torch.empty(ids.shape, dtype=torch.float32, device=x.device)
    _route_kernel[(triton.cdiv(num_tokens, chosen.block_tokens), num_heads)](
        x,
        gate_planes,
        bias,
        ids,
        weights,
        num_tokens,
        x.stride(0),
        x.stride(1),
        rows * dim,
        scale,
        EXPERTS=experts,
        TOP_K=top_k,
        RANKS=ranks,
        SLOTS=slots,
        D=dim,
        PLANES=num_planes,
        NORMALISE=normalise,
        BLOCK=chosen.block_tokens,
        BLOCK_EXPERTS=block_experts,
        num_warps=chosen.warps,
    )
    return ids, weights
