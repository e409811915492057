"""What the parts of a preview layer cost on this device, and how far that is from what its hardware allows.

Real sizes, random weights and inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from magi2.acceptance.floors import (
    HEADS,
    MOE,
    MOE_DIM,
    WIDTH,
    attention_flops,
    expert_cost,
    layer_floor,
    mhc_bytes,
)
from magi2.acceptance.measure import Ceilings, Result, timed
from magi2.acceptance.preview_checks import prepare
from magi2.acceptance.preview_shapes import (
    CONFIG,
    DENSE,
    PREVIEW_CLIPS,
    SPARSE,
    Clip,
    clip_layout,
    make_layer,
    make_streams,
    rank_layout,
    routed_experts,
)
from magi2.kernels import experts, routing, sorting
from magi2.kernels.attention import attend_cudnn, best_attention
from magi2.kernels.proof import expert_features
from magi2.kernels.rows import gate_heads
from magi2.kernels.settings import expert_settings
from magi2.models.preview.attention import Sequences
from magi2.models.preview.expert_share import ExpertShare, expert_share
from magi2.models.preview.fast_ops import fast_ops
from magi2.models.preview.layer import Layer
from magi2.models.preview.layout import ClipLayout
from magi2.models.preview.moe import Routes
from magi2.models.preview.ops import PreviewOps


def replayed(function: Callable[[], object]) -> Callable[[], None]:
    """The call as a captured graph, which takes the host out of the measurement."""
    function()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        function()
    return graph.replay


def expert_parts(layer: Layer, tokens: int, heads: int, limits: Ceilings) -> Iterator[Result]:
    """Routed experts with their combine, and the router with its sort."""
    moe = routed_experts(layer)
    device = moe.gate.device
    count = heads * MOE.num_experts
    x = torch.randn(tokens, heads, MOE_DIM, device=device).bfloat16()
    planes, bias = routing.planes(moe.gate[:count], x.dtype), moe.router.expert_bias_ema[:count]
    available = expert_features(
        MOE_DIM, MOE.expert_intermediate_size, MOE.num_experts, MOE.top_k, torch.bfloat16, device
    )
    settings = expert_settings(available, MOE_DIM, MOE.expert_intermediate_size, 2)

    def choose() -> tuple[Tensor, sorting.Plan]:
        ids, weights = routing.route(x, planes, bias, MOE.top_k, MOE.route_norm, MOE.route_scale)
        return weights, sorting.sort_routes(ids, MOE.num_experts, settings.block_rows)

    weights, plan = choose()
    gate_up = moe.W_gate[:count], moe.W_up[:count]
    buffer, out = x.new_empty(plan.order.numel(), MOE_DIM), torch.empty_like(x)

    def run() -> None:
        experts.expert_rows(x, weights, plan, gate_up, moe.W_down[:count], available, settings, buffer)
        experts.combine(buffer, plan, out)

    suffix = "" if heads == MOE.num_heads else f"_{heads}_heads"
    yield Result(f"experts{suffix}", tokens, timed(run), limits.floor_ms(*expert_cost(tokens, heads)))
    router_flops = 3 * 2.0 * tokens * heads * MOE.num_experts * MOE_DIM
    # As a graph: five short kernels, whose launches a longer queue hides.
    yield Result(f"router_sort{suffix}", tokens, timed(replayed(choose)), limits.floor_ms(router_flops, 2.0 * x.nbytes))


def token_parts(layer: Layer, layout: ClipLayout, clip: Clip, limits: Ceilings) -> Iterator[Result]:
    """Hyper-connections of a layer, its other element-wise passes, its attention."""
    device, tokens = layout.rope.device, layout.rope.shape[0]
    ops, sizes = layer.ops, layout.group_sizes
    streams, branch = make_streams(tokens, device), torch.randn(tokens, WIDTH, device=device).bfloat16()
    weights, norm, pre_norm = layer.mhc_weights("mlp"), layer.mhc_norm.weight, layer.mlp.pre_norm.weight

    def half() -> None:
        hyper = ops.mhc_coefficients(streams, norm, weights, sizes)
        ops.mhc_input(streams, hyper.pre, pre_norm, sizes)
        ops.mhc_post(streams, hyper.res, hyper.post, branch)

    once = timed(half)
    yield Result("mhc", tokens, 2 * once, limits.floor_ms(0, mhc_bytes(tokens)))
    qkv = torch.randn(tokens, 3 * WIDTH, device=device).bfloat16()
    gates = torch.randn(tokens, HEADS, device=device).bfloat16()
    log_sums, sink = torch.randn(HEADS, tokens, device=device), torch.randn(HEADS, device=device)
    norms = layer.attention.q_norm.weight, layer.attention.k_norm.weight
    q, k, v = ops.packed_heads(qkv, *norms, layout.rope, layout.to_packed, sizes, layer.attention.num_heads)
    mixed = torch.randn(tokens, 4 * MOE.shared_expert_intermediate_size, device=device).bfloat16()
    arguments = (*norms, layout.rope, layout.to_packed, sizes, layer.attention.num_heads)
    spans = [
        timed(lambda: ops.packed_heads(qkv, *arguments)),
        timed(lambda: gate_heads(q, gates, layout.to_grouped, (log_sums, sink))),
        timed(lambda: ops.swiglu7(mixed)),
    ]
    size = 2.0 * qkv.nbytes + 2.0 * q.nbytes + 1.5 * mixed.nbytes
    yield Result("elementwise", tokens, sum(spans), limits.floor_ms(0, size))
    # Sinks are folded in with the gates, so their cost is above.
    where = layout.sequences.bounds, layout.sequences.cu_seqlens, layout.sequences.max_length
    floor = limits.floor_ms(attention_flops(clip, HEADS), 0)
    best = best_attention(CONFIG.head_dim, 1, q.dtype, device)
    for part, function in (("attention", best), ("attention_cudnn", attend_cudnn)):
        if function is not None:
            yield Result(part, tokens, timed(partial(function, q, k, v, *where)), floor)


def without_flash(
    ops: PreviewOps,
    heads: tuple[Tensor, Tensor, Tensor],
    sinks: Tensor,
    sequences: Sequences,
    softcap: float,
    gate_logits: Tensor,
    to_grouped: Tensor,
) -> Tensor:
    """Gated attention as it is without FlashAttention-3."""
    out, log_sums = attend_cudnn(*heads, sequences.bounds, sequences.cu_seqlens, sequences.max_length)
    return gate_heads(out, gate_logits, to_grouped, (log_sums, torch.logsumexp(sinks.float(), dim=0)))


def layer_part(part: str, layer: Layer, layout: ClipLayout, floor_ms: float, *, graph: bool = False) -> Result:
    """A whole layer; a small one as a graph, so that the host's launches do not count."""
    tokens = layout.rope.shape[0]
    streams = make_streams(tokens, layout.rope.device)

    def run() -> object:
        return layer(streams, layout)

    return Result(part, tokens, timed(replayed(run) if graph else run), floor_ms)


def rank_ops(clip: Clip, layer: Layer, ops: PreviewOps) -> PreviewOps:
    """The table of one rank of eight: three heads of all tokens in attention, three MoE heads of half of them.

    What the collectives would bring and take away is random data of the right size.
    """
    device, heads = layer.attention.sinks.device, HEADS // 8
    expert_tokens, expert_heads = clip.tokens // 2, MOE.num_heads // 4
    q, k, v = torch.randn(3, clip.tokens, heads, CONFIG.head_dim, device=device).bfloat16().unbind()
    sequences = clip_layout(clip, device).sequences
    x = torch.randn(expert_tokens, expert_heads, MOE_DIM, device=device).bfloat16()
    count = expert_heads * MOE.num_experts

    def attend(q_own: Tensor, *arguments: object) -> Tensor:
        ops.attend(q, k, v, layer.attention.sinks[:, :heads].contiguous(), sequences, 0.0)
        return q_own

    def route(x_own: Tensor, gate: Tensor, bias: Tensor, *arguments: Any) -> Routes:
        return ops.route(x, gate_part, bias[:count], *arguments)

    def run_experts(
        x_own: Tensor, routes: Routes, w_gate: Tensor, w_up: Tensor, w_down: Tensor, whole: ExpertShare
    ) -> Tensor:
        ops.run_experts(x, routes, w_gate[:count], w_up[:count], w_down[:count], share)
        return x_own

    gate_part = routed_experts(layer).gate[:count]
    share = expert_share(MOE.num_heads, MOE.num_experts, rank=0, size=4)
    return replace(ops, attend=attend, route=route, run_experts=run_experts)


def run(device: torch.device, limits: Ceilings, clips: tuple[str, ...]) -> list[Result]:
    """Every part at every size of one device."""
    best_attention(CONFIG.head_dim, 1, torch.bfloat16, device)
    ops = fast_ops()
    sparse, dense = (prepare(make_layer(index, device), ops) for index in (SPARSE, DENSE))
    results: list[Result] = []
    with torch.no_grad():
        for clip in (PREVIEW_CLIPS[name] for name in clips):
            layout = clip_layout(clip, device)
            shape = (clip.tokens, MOE.num_heads)
            results += expert_parts(sparse, *shape, limits)
            results += token_parts(sparse, layout, clip, limits)
            floors = [layer_floor(limits, clip, clip.tokens, index, shape, HEADS) for index in (SPARSE, DENSE)]
            results.append(layer_part("sparse_layer", sparse, layout, floors[0]))
            prepare(sparse, replace(ops, gated_attention=without_flash))
            results.append(layer_part("sparse_layer_cudnn", sparse, layout, floors[0]))
            prepare(sparse, ops)
            results.append(layer_part("dense_layer", dense, layout, floors[1]))
            own = rank_layout(clip, device)
            rank_shape = (clip.tokens // 2, MOE.num_heads // 4)
            results += expert_parts(sparse, *rank_shape, limits)
            floor = layer_floor(limits, clip, own.rope.shape[0], SPARSE, rank_shape, HEADS // 8)
            prepare(sparse, rank_ops(clip, sparse, ops))
            results.append(layer_part("rank_sparse_layer", sparse, own, floor, graph=True))
            prepare(sparse, ops)
            torch.cuda.empty_cache()
    return results
