"""Multi-head mixture of experts as functions: routing, sorting and the expert products.

Source: MAGI-2 preview inference code. Nothing here reads device data back to the host.
"""

# Shapes: N tokens, M MoE heads, E experts per head, K routes per token and head, D head dim, F expert width, R rows

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from magi2.models.layers import swiglu7_pair
from magi2.models.preview.expert_share import ExpertShare, whole_heads
from magi2.models.preview.tiles import even_scores, tile_rows, tiled_product

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
    scores_MNE = even_scores(x.float().transpose(0, 1), gate.view(num_heads, -1, x.shape[2]).transpose(1, 2))
    return choose_routes(scores_MNE, bias, top_k, normalise, scale)


def choose_routes(scores_MNE: Tensor, bias: Tensor, top_k: int, normalise: bool, scale: float) -> Routes:
    """The routes of `route` from its scores, sigmoids of the router's logits."""
    expert_ids = (scores_MNE + bias.view(len(scores_MNE), 1, -1)).topk(top_k, dim=-1).indices
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


def run_experts(
    x: Tensor, routes: Routes, w_gate: Tensor, w_up: Tensor, w_down: Tensor, share: ExpertShare | None = None
) -> Tensor:
    """Weighted sum of each token's experts: [N, M, D] in the dtype of `x` [N, M, D].

    `w_gate` and `w_up` are [M*E, D, F], `w_down` is [M*E, F, D], input axis before output axis; with a `share` they
    hold its experts alone, M counts its heads, and the sum runs over the experts it has.

    The order of the sum is canonical: every route's row is weighted in fp32 and rounded to the dtype of `x`; the rows
    of either half of a head's experts are added in fp32, best first, and rounded once; then the upper half's sum is
    added to the lower one's. So nothing depends on any schedule, nor on which ranks hold the halves.
    """
    num_heads = x.shape[1]
    share = share or whole_heads(num_heads, w_gate.shape[0] // num_heads)
    sorted_routes = sort_routes(routes.expert_ids, share.num_experts)
    tiled = x.device.type == "cpu" or not takes_grouped(x.shape[2], w_gate.shape[2], x.element_size())
    outputs = []
    for head in range(num_heads):
        first, stop = share.held_ids(head)
        held = slice(
            head * share.num_experts + first - share.first_row, head * share.num_experts + stop - share.first_row
        )
        rows = _plan_rows(sorted_routes, routes.expert_ids[head], head, share, tiled)
        tokens = x[:, head][rows.order // routes.weights.shape[2]]
        hidden = swiglu7_pair(rows.product(tokens, w_gate[held]), rows.product(tokens, w_up[held])).to(x.dtype)
        weights = routes.weights[head].flatten()[rows.order].unsqueeze(1)
        out = (rows.product(hidden, w_down[held]).float() * weights).to(x.dtype)
        outputs.append(_combine(out, rows.place, routes.expert_ids[head], (first, stop), share.num_experts // 2))
    return torch.stack(outputs, dim=1)


class _Rows(NamedTuple):
    """The expert products' rows of one head: each one's route, the row of each route [N, K], and the product itself."""

    order: Tensor
    place: Tensor
    product: Callable[[Tensor, Tensor], Tensor]


def takes_grouped(dim: int, width: int, itemsize: int) -> bool:
    """Whether torch's grouped product takes matrices [dim, width] both ways: it wants rows of whole 16 bytes."""
    return dim * itemsize % 16 == 0 and width * itemsize % 16 == 0


def _plan_rows(sorted_routes: SortedRoutes, expert_ids: Tensor, head: int, share: ExpertShare, tiled: bool) -> _Rows:
    """Rows for the experts held of one head. Their number is that of all routes, since the true one is not known here.

    A product's rows must not depend on how many others there are. Kernels of accelerators see to that by themselves;
    on the CPU, where few rows are multiplied differently from many, the rows are cut into tiles of one size, and so are
    those that the grouped product does not take.
    """
    count, device = expert_ids.numel(), expert_ids.device
    first, stop = share.held_ids(head)
    offsets = sorted_routes.offsets[head * share.num_experts + first : head * share.num_experts + stop + 1]
    begin, ends = offsets[0], offsets[1:] - offsets[0]
    # Routes to other halves may come before these or after them; they keep a place that nobody reads.
    order = sorted_routes.order[(begin + torch.arange(count, device=device)).clamp(max=sorted_routes.order.numel() - 1)]
    order = (order - head * count).clamp(0, count - 1)
    position = (sorted_routes.position[head] - begin).clamp(0, count - 1)
    if not tiled:
        return _Rows(order, position, partial(_grouped_product, ends=ends))
    tiles = tile_rows(ends, count)
    chosen = (expert_ids - first).clamp(0, stop - first - 1)
    return _Rows(order[tiles.row], tiles.shift[chosen] + position, partial(tiled_product, tiles=tiles))


def _grouped_product(rows: Tensor, weights: Tensor, ends: Tensor) -> Tensor:
    """Sorted `rows` [R, in] times the expert's own matrix [in, out]; expert e owns the rows before `ends[e]` int32.

    The result is rounded to the dtype of the inputs, one rounding more than the published kernel has.
    """
    return F.grouped_mm(rows, weights, offs=ends)


def _combine(rows: Tensor, place: Tensor, expert_ids: Tensor, held: tuple[int, int], half: int) -> Tensor:
    """Canonical sum [N, D] over the K routes of each token, whose rows in `rows` [R, D] are `place` [N, K]."""
    first, stop = held
    sums = []
    for begin, end in ((first, min(stop, half)), (max(first, half), stop)):
        if begin < end:
            is_here = (expert_ids >= begin) & (expert_ids < end)
            total = torch.zeros(rows.shape[1], device=rows.device)
            for rank in range(place.shape[1]):
                total = total + torch.where(is_here[:, rank, None], rows[place[:, rank]].float(), 0.0)
            sums.append(total.to(rows.dtype))
    return sums[0] if len(sums) == 1 else sums[0] + sums[1]
