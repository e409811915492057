"""Multi-head mixture of experts as functions: routing, sorting and the expert products.

Source: MAGI-2 preview inference code. Nothing here reads device data back to the host.
"""

# Shapes: N tokens, M MoE heads, E experts per head, K routes per token and head, D head dim, F expert width

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from magi2.models.layers import swiglu7_pair

_NORM_EPS = 1e-12


class Routes(NamedTuple):
    """The chosen experts of every head and token, best first: ids within the head and fp32 weights, both [M, N, K]."""

    expert_ids: Tensor
    weights: Tensor


class SortedRoutes(NamedTuple):
    """Routes ordered by head and expert, in token order within an expert.

    `order` [M*N*K] holds each one's index in (head, token, rank) order, `position` [M, N, K] the reverse, and
    `offsets` [M*E + 1] int32 where each expert's routes begin.
    """

    order: Tensor
    position: Tensor
    offsets: Tensor


def route(x: Tensor, gate: Tensor, bias: Tensor, top_k: int, normalise: bool, scale: float) -> Routes:
    """Choose `top_k` experts per head for `x` [N, M, D], in fp32.

    `gate` [M*E, D] and `bias` [M*E] are fp32. The bias decides which experts are chosen; their weights come from the
    unbiased sigmoid scores, divided by their sum if `normalise`, times `scale`.
    """
    num_heads = x.shape[1]
    logits_MNE = x.float().transpose(0, 1) @ gate.view(num_heads, -1, x.shape[2]).transpose(1, 2)
    scores_MNE = torch.sigmoid(logits_MNE)
    expert_ids = (scores_MNE + bias.view(num_heads, 1, -1)).topk(top_k, dim=-1).indices
    weights = scores_MNE.gather(-1, expert_ids)
    if normalise:
        weights = weights / weights.sum(dim=-1, keepdim=True).clamp(min=_NORM_EPS)
    return Routes(expert_ids, weights * scale)


def sort_routes(expert_ids: Tensor, num_experts: int) -> SortedRoutes:
    """Sort the routes `expert_ids` [M, N, K] stably by head and expert. Needs no atomics and no histogram."""
    num_heads = expert_ids.shape[0]
    heads = torch.arange(num_heads, device=expert_ids.device, dtype=torch.int32).view(-1, 1, 1)
    flat = (expert_ids.int() + heads * num_experts).flatten()
    ranked, order = flat.sort(stable=True)
    bins = torch.arange(num_heads * num_experts + 1, device=flat.device, dtype=torch.int32)
    offsets = torch.searchsorted(ranked, bins, out_int32=True)
    position = torch.empty_like(order).scatter_(0, order, torch.arange(order.numel(), device=order.device))
    return SortedRoutes(order, position.view_as(expert_ids), offsets)


def run_experts(x: Tensor, routes: Routes, w_gate: Tensor, w_up: Tensor, w_down: Tensor) -> Tensor:
    """Weighted sum of each token's experts: [N, M, D] in the dtype of `x` [N, M, D].

    `w_gate` and `w_up` are [M*E, D, F], `w_down` is [M*E, F, D], input axis before output axis. Every route's row is
    weighted in fp32 and rounded to the dtype of `x`; the K rows of a token are then added in fp32, best first, and
    rounded once, so that the result does not depend on any schedule.
    """
    num_tokens, num_heads, _ = x.shape
    num_experts, top_k = w_gate.shape[0] // num_heads, routes.weights.shape[2]
    sorted_routes = sort_routes(routes.expert_ids, num_experts)
    outputs = []
    for head in range(num_heads):
        # Every head has the same number of routes, so its share of the sorted ones is known without asking the device.
        first = head * num_tokens * top_k
        order = sorted_routes.order[first : first + num_tokens * top_k] - first
        experts = slice(head * num_experts, (head + 1) * num_experts)
        ends = sorted_routes.offsets[1:][experts] - first
        hidden = _expert_hidden(x[:, head][order // top_k], w_gate[experts], w_up[experts], ends)
        rows = _grouped_product(hidden, w_down[experts], ends).float()
        rows = (rows * routes.weights[head].flatten()[order].unsqueeze(1)).to(x.dtype)
        outputs.append(_combine(rows, sorted_routes.position[head] - first))
    return torch.stack(outputs, dim=1)


def _expert_hidden(x: Tensor, w_gate: Tensor, w_up: Tensor, ends: Tensor) -> Tensor:
    """SwiGLU7 of the gate and up products of sorted rows, rounded to the dtype of `x`."""
    return swiglu7_pair(_grouped_product(x, w_gate, ends), _grouped_product(x, w_up, ends)).to(x.dtype)


def _grouped_product(rows: Tensor, weights: Tensor, ends: Tensor) -> Tensor:
    """Sorted `rows` [R, in] times the expert's own matrix [in, out]; expert e owns the rows before `ends[e]` int32.

    On the CPU the result is the fp32 accumulator. Accelerators only offer it rounded to the dtype of the inputs, one
    rounding more than the published kernel has.
    """
    if rows.device.type == "cpu":
        rows, weights = rows.float(), weights.float()
    return F.grouped_mm(rows, weights, offs=ends)


def _combine(rows: Tensor, position: Tensor) -> Tensor:
    """Sum [N, D] over the K routes of each token, whose rows in `rows` [R, D] are `position` [N, K]."""
    total = rows[position[:, 0]].float()
    for rank in range(1, position.shape[1]):
        total = total + rows[position[:, rank]].float()
    return total.to(rows.dtype)
