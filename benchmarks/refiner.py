"""A refiner layer at the delivery size, its attention, and a whole forward in the memory of one device."""

from __future__ import annotations

import torch

from magi2.acceptance.measure import Ceilings, Result, timed
from magi2.acceptance.refiner_checks import (
    DELIVERED_LATENTS,
    REFINED_TOKENS,
    REFINER,
    make_context,
    make_heads,
    make_refiner,
)
from magi2.kernels.refiner_attention import WindowPlan
from magi2.models.refiner.context import RefinerContext
from magi2.models.refiner.model import RefinerModel


def attention_flops(plan: WindowPlan) -> float:
    """Operations of the attention that the windows ask for, the tail's queries included."""
    seen = torch.cat([plan.key_count.new_zeros(1), plan.key_count.cumsum(0)])
    tiles = plan.tiles.long()
    pairs = float(((seen[tiles[:, 4]] - seen[tiles[:, 2]]) * tiles[:, 1]).sum())
    return 4.0 * pairs * REFINER.hidden_size


def linear_flops() -> float:
    """Operations of a layer's dense products."""
    hidden, d = REFINER.hidden_size, REFINER.head_dim
    attention = (REFINER.num_heads + 2 * REFINER.num_query_groups) * d + REFINER.num_heads + hidden
    return 2.0 * REFINED_TOKENS * hidden * (attention + 3 * REFINER.intermediate_size)


@torch.no_grad()
def run(device: torch.device, limits: Ceilings) -> list[Result]:
    """The layer, its attention, and the forward of all layers."""
    model = make_refiner(device, REFINER)
    context = make_context(model)
    attention = limits.floor_ms(attention_flops(context.plan), 0)
    floor = attention + limits.floor_ms(linear_flops(), 0)
    return [
        Result("refiner_attention", REFINED_TOKENS, _time_attention(context, device), attention),
        Result("refiner_layer", REFINED_TOKENS, _time_layer(model, context), floor),
        Result("refiner_forward", REFINED_TOKENS, _time_forward(model, context), REFINER.num_layers * floor),
    ]


def _time_attention(context: RefinerContext, device: torch.device) -> float:
    q, k, v = make_heads(device)
    return timed(lambda: context.attend(q, k, v), 3)


def _time_layer(model: RefinerModel, context: RefinerContext) -> float:
    x = torch.randn(REFINED_TOKENS, REFINER.hidden_size, device=model.device)
    layer = model.block.layers[REFINER.num_layers // 2]
    return timed(lambda: layer(x, context), 3)


def _time_forward(model: RefinerModel, context: RefinerContext) -> float:
    latents = torch.randn(1, REFINER.video_in_channels, *DELIVERED_LATENTS, device=model.device)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(model.device)
    span = timed(lambda: model(latents, context), 1, warm_up=0)
    peak = torch.cuda.max_memory_allocated(model.device) / 2**30
    print(f"refiner forward: peak {peak:.1f} GiB, weights of {REFINER.num_layers} layers included", flush=True)
    return span
