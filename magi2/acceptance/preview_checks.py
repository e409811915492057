"""Whether the kernels compute at real sizes what plain torch computes: whole tensors, equal bits in many runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from magi2.acceptance.preview_shapes import (
    CONFIG,
    PREVIEW_CLIPS,
    SPARSE,
    clip_layout,
    make_layer,
    make_streams,
    routed_experts,
)
from magi2.kernels import experts, reference, routing, sorting
from magi2.kernels.attention import Attend, attend_cudnn, attend_flash, best_attention
from magi2.kernels.rows import fold_sink_, gate_heads
from magi2.kernels.settings import EXPERT_SETTINGS, ExpertSettings, Features, expert_settings, features
from magi2.models.layers import swiglu7
from magi2.models.preview import attention, moe
from magi2.models.preview.fast_ops import fast_ops, fuse_linears_, lay_out_experts_
from magi2.models.preview.layer import Attention, Layer
from magi2.models.preview.mhc import mhc_input, mhc_post
from magi2.models.preview.mlp import DenseMlp, MultiHeadMoe, SparseMlp
from magi2.models.preview.ops import PreviewOps

REPEAT_S = 0.25
"""For which each kernel is run again after it is compared."""
MOST_ERROR, MOST_ROW_ERROR = 2e-2, 1e-1  # in bf16; wrong kernels are off by ones


@dataclass(frozen=True)
class Check:
    """Relative distance from the reference, of the whole and of the worst row, and whether all runs were equal."""

    name: str
    error: float
    worst_row: float
    repeats: bool

    @property
    def passed(self) -> bool:
        """Whether it is close everywhere and repeats its bits."""
        return self.error < MOST_ERROR and self.worst_row < MOST_ROW_ERROR and self.repeats

    def __str__(self) -> str:
        return f"{self.name:34} {self.error:9.2e} {self.worst_row:9.2e} {'equal' if self.repeats else 'DIFFERS'}"


def compare(name: str, function: Callable[[], Tensor], expected: Tensor) -> Check:
    """Run against `expected`, and again and again against the first run; rows are those of the last axis."""
    first = function().clone()
    difference, wanted = (first.float() - expected.float()), expected.float()
    worst = (difference.norm(dim=-1) / wanted.norm(dim=-1).clamp(min=1e-6)).max()
    error = difference.norm() / wanted.norm()
    return Check(name, float(error), float(worst), _repeats(function, first))


def _repeats(function: Callable[[], Tensor], first: Tensor) -> bool:
    """Whether the first bits come again, twice at least, then for a while: a copy was late in one run of a hundred."""
    until, runs = time.monotonic() + REPEAT_S, 0
    while runs < 2 or time.monotonic() < until:
        if not torch.equal(first, function()):
            return False
        runs += 1
    return True


def prepare(layer: Layer, ops: PreviewOps) -> Layer:
    """The layer with its weights laid out for the kernels and their table in place."""
    for module in layer.modules():
        if isinstance(module, SparseMlp):
            fuse_linears_(module)
            lay_out_experts_(module.moe_mlp)
        if isinstance(module, Layer | Attention | DenseMlp | SparseMlp | MultiHeadMoe):
            module.ops = ops
    return layer


def checks(device: torch.device) -> Iterator[Check]:
    """Every kernel at real sizes against plain torch."""
    best_attention(CONFIG.head_dim, 1, torch.bfloat16, device)
    with torch.no_grad():
        layer = prepare(make_layer(SPARSE, device), fast_ops())
        yield from check_experts(layer, device)
        yield from check_tokens(layer, device)


def check_experts(layer: Layer, device: torch.device) -> Iterator[Check]:
    """Router, sort and experts on near-balanced and on skewed routes."""
    module = routed_experts(layer)
    parts = module.W_gate, module.W_up, module.W_down
    available = features(device)
    settings = expert_settings(available, parts[2].shape[2], parts[2].shape[1], 2)
    usable = [one for one in EXPERT_SETTINGS if one.fits(available, parts[2].shape[2], parts[2].shape[1], 2)][:3]
    bias = module.router.expert_bias_ema
    skew = bias + 3 * torch.randn_like(bias)
    for name, tokens, chosen in (
        ("few", 1500, bias),
        ("all", PREVIEW_CLIPS["272p"].tokens, bias),
        ("skewed", 30372, skew),
    ):
        x = torch.randn(tokens, CONFIG.moe_config.num_heads, parts[2].shape[2], device=device).bfloat16()
        planes = routing.planes(module.gate, x.dtype)
        arguments = CONFIG.moe_config.top_k, CONFIG.moe_config.route_norm, CONFIG.moe_config.route_scale
        ids, weights = routing.route(x, planes, chosen, *arguments)
        wanted = moe.route(x, module.gate, chosen, *arguments)
        same = (ids.sort(-1).values == wanted.expert_ids.sort(-1).values).all(-1).float().mean()
        again = routing.route(x, planes, chosen, *arguments)
        equal = torch.equal(ids, again[0]) and torch.equal(weights, again[1])
        yield Check(f"router {name}: other choices", float(1 - same), 0.0, equal)
        plan = sorting.sort_routes(ids, CONFIG.moe_config.num_experts, settings.block_rows)
        plain = moe.sort_routes(ids.long(), CONFIG.moe_config.num_experts)
        exact = torch.equal(plan.order.long(), plain.order) and torch.equal(plan.offsets, plain.offsets)
        exact = exact and torch.equal(plan.position.long(), plain.position)
        yield Check(f"sort {name}", float(not exact), 0.0, True)

        if name == "few":
            expected = reference.experts(x, ids, weights, *parts, torch.float32)
        else:
            gate, up, down = (part.contiguous() for part in parts)
            expected = moe.run_experts(x, moe.Routes(ids.long(), weights), gate, up, down)
        for chosen_settings in usable:
            gate_up = experts.lay_out(*parts[:2], chosen_settings)
            run = partial(run_experts, x, ids, weights, gate_up, parts[2], available, chosen_settings)
            label = "specialised" if chosen_settings.specialised else f"{chosen_settings.stages} stages"
            yield compare(f"experts {name}, {label}", run, expected)
            del gate_up, run
        del expected


def run_experts(
    x: Tensor,
    ids: Tensor,
    weights: Tensor,
    gate_up: tuple[Tensor, Tensor],
    w_down: Tensor,
    available: Features,
    settings: ExpertSettings,
) -> Tensor:
    """Experts and combine into poisoned buffers."""
    plan = sorting.sort_routes(ids, CONFIG.moe_config.num_experts, settings.block_rows)
    buffer = x.new_full((ids.numel(), x.shape[2]), torch.nan)
    experts.expert_rows(x, weights, plan, gate_up, w_down, available, settings, buffer)
    return experts.combine(buffer, plan, torch.full_like(x, torch.nan))


def check_tokens(layer: Layer, device: torch.device) -> Iterator[Check]:
    """Hyper-connections and element-wise passes."""
    layout = clip_layout(PREVIEW_CLIPS["272p"], device)
    tokens, ops, sizes = layout.rope.shape[0], layer.ops, layout.group_sizes
    streams, branch = make_streams(tokens, device), torch.randn(tokens, CONFIG.hidden_size, device=device).bfloat16()
    weights, mhc_norm = layer.mhc_weights("mlp"), layer.mhc_norm.weight

    def table() -> Tensor:
        hyper = ops.mhc_coefficients(streams, mhc_norm, weights, sizes)
        return torch.cat([hyper.pre, hyper.post, hyper.res.flatten(1)], dim=1)

    parts = tuple(weights[:3]), tuple(weights[3:6])
    expected = reference.coefficients(streams, mhc_norm, weights.phi, *parts, sizes, torch.float64)
    yield compare("mhc coefficients", table, expected)
    hyper = ops.mhc_coefficients(streams, mhc_norm, weights, sizes)
    updated = mhc_post(streams, hyper.res, hyper.post, branch)
    yield compare("mhc post", lambda: ops.mhc_post(streams, hyper.res, hyper.post, branch), updated)
    norm = layer.mlp.pre_norm.weight
    yield compare(
        "mhc input", lambda: ops.mhc_input(streams, hyper.pre, norm, sizes), mhc_input(streams, hyper.pre, norm, sizes)
    )
    qkv = torch.randn(tokens, 3 * CONFIG.hidden_size, device=device).bfloat16()
    norms = layer.attention.q_norm.weight, layer.attention.k_norm.weight
    arguments = (qkv, *norms, layout.rope, layout.to_packed, sizes, layer.attention.num_heads)

    def heads(index: int) -> Tensor:
        return ops.packed_heads(*arguments)[index]

    for index, expected in enumerate(attention.packed_heads(*arguments)):
        yield compare(f"heads {'qkv'[index]}", partial(heads, index), expected)
    q, k, v = ops.packed_heads(*arguments)
    gates = torch.randn(tokens, CONFIG.num_heads, device=device).bfloat16()
    expected = attention.gate_heads(q, gates, layout.to_grouped)
    yield compare("gate", lambda: ops.gate_heads(q, gates, layout.to_grouped), expected)
    log_sums, sink = torch.randn(CONFIG.num_heads, tokens, device=device), torch.randn(CONFIG.num_heads, device=device)
    folded = reference.fold_sink(q, log_sums, sink, torch.float32)
    expected = reference.gate_heads(folded, gates, layout.to_grouped, torch.float32)
    yield compare("gate with sink", lambda: gate_heads(q, gates, layout.to_grouped, (log_sums, sink)), expected)
    yield compare("swiglu", lambda: ops.swiglu7(qkv), swiglu7(qkv))
    yield from check_attention(q, k, v, layer.attention.sinks, layout.sequences)


def check_attention(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor, sequences: attention.Sequences) -> Iterator[Check]:
    """The libraries that are here, on some queries of the second sequence, against a fp32 softmax with the sink as a
    column."""
    sink = torch.logsumexp(sinks.float(), dim=0) + 8  # large enough to count among so many keys
    start, stop = sequences.bounds[1:3]
    scores = torch.einsum("qhd,khd->hqk", q[start : start + 64].float(), k[start:stop].float()) * q.shape[-1] ** -0.5
    column = sink.view(-1, 1, 1).expand(-1, 64, 1)
    probabilities = torch.cat([scores, column], dim=-1).softmax(-1)[..., :-1]
    expected = torch.einsum("hqk,khd->qhd", probabilities, v[start:stop].float())
    arguments = (q, k, v, sequences.bounds, sequences.cu_seqlens, sequences.max_length)

    def some(attend: Attend) -> Tensor:
        return fold_sink_(*attend(*arguments), sink)[start : start + 64]

    used = best_attention(CONFIG.head_dim, 1, q.dtype, q.device)
    for attend in (attend_flash, attend_cudnn):
        if attend is used or (attend is attend_cudnn and torch.backends.cudnn.is_available()):
            yield compare(attend.__name__, partial(some, attend), expected)
    if used is None:
        yield Check("attention: no library computes it here, plain torch does", 0.0, 0.0, True)
