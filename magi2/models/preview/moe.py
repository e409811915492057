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
from magi2.models.preview.quantised import HIDDEN_SCALE, Quantised, QuantisedExperts, quantise, quantise_hidden
from magi2.models.preview.tiles import TILE_ROWS, even_scores, tile_rows, tiled_product

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
    share = share or whole_heads(x.shape[1], w_gate.shape[0] // x.shape[1])
    tiled = x.device.type == "cpu" or not takes_grouped(x.shape[2], w_gate.shape[2], x.element_size())

    def compute(head: int, held: slice, rows: _Rows) -> Tensor:
        tokens = x[:, head][rows.token]
        hidden = swiglu7_pair(rows.product(tokens, w_gate[held]), rows.product(tokens, w_up[held])).to(x.dtype)
        return rows.product(hidden, w_down[held]).float()

    return _by_head(x, routes, share, compute, tiled=tiled)


def run_quantised_experts(
    x: Tensor, routes: Routes, weights: QuantisedExperts, share: ExpertShare | None = None
) -> Tensor:
    """`run_experts` with e4m3 weights: the tokens `x` [N, M, D] are quantised by token and head.

    Gate and up products are scaled in fp32, and the hidden row goes from fp32 to e4m3 under its fixed scale. The down
    product is multiplied by its channel's scale / 8, then by the route's weight, and rounded once. Bits depend neither
    on the share nor on how many rows there are.
    """
    share = share or whole_heads(x.shape[1], len(weights.gate.values) // x.shape[1])
    tokens = quantise(x)

    def compute(head: int, held: slice, rows: _Rows) -> Tensor:
        rows_in = Quantised(tokens.values[:, head][rows.token], tokens.scales[:, head][rows.token].unsqueeze(1))
        gate, up = (_scaled(rows, rows_in.values, part, held, rows_in.scales) for part in (weights.gate, weights.up))
        hidden = quantise_hidden(swiglu7_pair(gate, up))
        return _scaled(rows, hidden.values, weights.down, held, HIDDEN_SCALE)

    return _by_head(x, routes, share, compute, tiled=True)


def _scaled(rows: _Rows, values: Tensor, weight: Quantised, held: slice, row_scales: Tensor | float) -> Tensor:
    """Products [R, out] in fp32 of e4m3 rows with their own expert's matrix, by the scales of rows and channels."""
    product = rows.product(values, weight.values[held].transpose(1, 2))
    by_tile = weight.scales[held][rows.expert].repeat_interleave(TILE_ROWS, dim=0)
    return product * row_scales * by_tile


def _by_head(
    x: Tensor,
    routes: Routes,
    share: ExpertShare,
    compute: Callable[[int, slice, _Rows], Tensor],
    *,
    tiled: bool,
) -> Tensor:
    """The canonical sums [N, M, D] of what `compute` makes, in fp32, of the rows of a head with its held experts."""
    sorted_routes = sort_routes(routes.expert_ids, share.num_experts)
    outputs = []
    for head in range(x.shape[1]):
        first, stop = share.held_ids(head)
        start = head * share.num_experts - share.first_row
        rows = _plan_rows(sorted_routes, routes.expert_ids[head], head, share, tiled)
        weights = routes.weights[head].flatten()[rows.order].unsqueeze(1)
        out = (compute(head, slice(start + first, start + stop), rows) * weights).to(x.dtype)
        outputs.append(_combine(out, rows.place, routes.expert_ids[head], (first, stop), share.num_experts // 2))
    return torch.stack(outputs, dim=1)


class _Rows(NamedTuple):
    """The expert products' rows of one head: each one's route and token, the row of each route [N, K], the product
    itself, and of rows in tiles the expert of each tile among those held.
    """

    order: Tensor
    token: Tensor
    place: Tensor
    product: Callable[[Tensor, Tensor], Tensor]
    expert: Tensor


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
    top_k = expert_ids.shape[1]
    if not tiled:
        return _Rows(order, order // top_k, position, partial(_grouped_product, ends=ends), ends)
    tiles = tile_rows(ends, count)
    chosen = (expert_ids - first).clamp(0, stop - first - 1)
    order, place = order[tiles.row], tiles.shift[chosen] + position
    return _Rows(order, order // top_k, place, partial(tiled_product, tiles=tiles), tiles.expert)


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
