"""A refiner layer at the delivery size, its attention, and a whole forward in the memory of one device."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from benchmarks.measure import Ceilings, Result, timed
from benchmarks.preview_checks import Check, compare
from magi2.kernels.refiner_attention import (
    WINDOW_SETTINGS,
    WINDOW_SETTINGS_PLAIN,
    WindowPlan,
    WindowSettings,
    window_attention,
)
from magi2.kernels.settings import Features, features
from magi2.models.refiner.attention import gather_attention
from magi2.models.refiner.config import RefinerConfig
from magi2.models.refiner.context import RefinerContext
from magi2.models.refiner.fast_ops import use_fast_ops
from magi2.models.refiner.model import RefinerModel
from magi2.models.refiner.ops import RefinerOps

CONFIG = RefinerConfig()
SIZE = (63, 68, 120)  # latents of 249 frames of 1088x1920
TEXT = 600
TOKENS = math.prod(SIZE) + TEXT


def make_refiner(device: torch.device, config: RefinerConfig) -> RefinerModel:
    """A refiner with random weights that keep activations near one."""
    with torch.device(device):
        model = RefinerModel(config)
    for parameter in model.parameters():
        parameter.requires_grad_(False).normal_(std=parameter.shape[-1] ** -0.5 if parameter.dim() > 1 else 0.1)
    use_fast_ops(model)
    return model.eval()


def make_context(model: RefinerModel) -> RefinerContext:
    """A clip of the delivery size with a text of some length."""
    text = torch.randn(1, TEXT, CONFIG.text_in_channels, device=model.device)
    return model.prepare(model.prepare_grid(SIZE), text)


def make_heads(device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Random queries, keys and values."""
    q = torch.randn(TOKENS, CONFIG.num_heads, CONFIG.head_dim, device=device).bfloat16()
    k, v = torch.randn(2, TOKENS, CONFIG.num_query_groups, CONFIG.head_dim, device=device).bfloat16().unbind()
    return q, k, v


def attention_flops(plan: WindowPlan) -> float:
    """Operations of the attention that the windows ask for, the tail's queries included."""
    seen = torch.cat([plan.key_count.new_zeros(1), plan.key_count.cumsum(0)])
    tiles = plan.tiles.long()
    pairs = float(((seen[tiles[:, 4]] - seen[tiles[:, 2]]) * tiles[:, 1]).sum()) + TEXT * TOKENS
    return 4.0 * pairs * CONFIG.hidden_size


def linear_flops() -> float:
    """Operations of a layer's dense products."""
    hidden, d = CONFIG.hidden_size, CONFIG.head_dim
    attention = (CONFIG.num_heads + 2 * CONFIG.num_query_groups) * d + CONFIG.num_heads + hidden
    return 2.0 * TOKENS * hidden * (attention + 3 * CONFIG.intermediate_size)


@torch.no_grad()
def checks(device: torch.device) -> Iterator[Check]:
    """Window attention and a whole layer against the forms that collect the keys and compute in plain torch."""
    model = make_refiner(device, RefinerConfig(num_layers=2, mm_layers=(0,)))
    context = make_context(model)
    yield from _check_attention(context, device)
    yield _check_layer(model, context)


def _check_attention(context: RefinerContext, device: torch.device) -> Iterator[Check]:
    q, k, v = make_heads(device)
    gathered = gather_attention(q, k, v, context.grid)
    yield compare("window attention", lambda: context.attend(q, k, v), gathered)
    video = slice(0, context.grid.num_tokens)
    found = features(device)

    def attend(available: Features, settings: WindowSettings) -> Tensor:
        return window_attention(q, k, v, context.plan, available, settings)[video]

    for name, available, settings in (
        ("128 keys", found, WINDOW_SETTINGS[0]),
        ("64 keys", found, WINDOW_SETTINGS[1]),
        ("no descriptors", replace(found, descriptors=False), WINDOW_SETTINGS_PLAIN),
    ):
        yield compare(f"window attention, {name}", partial(attend, available, settings), gathered[video])


def _check_layer(model: RefinerModel, context: RefinerContext) -> Check:
    layer = model.block.layers[1]
    x = torch.randn(TOKENS, CONFIG.hidden_size, device=model.device)
    model.use_ops(RefinerOps())
    expected = layer(x.clone(), replace(context, ops=model.ops, plan=None)) - x
    use_fast_ops(model)
    return compare("refiner layer", lambda: layer(x.clone(), context) - x, expected)


@torch.no_grad()
def run(device: torch.device, limits: Ceilings) -> list[Result]:
    """The layer, its attention, and the forward of all layers."""
    model = make_refiner(device, CONFIG)
    context = make_context(model)
    attention = limits.floor_ms(attention_flops(context.plan), 0)
    floor = attention + limits.floor_ms(linear_flops(), 0)
    return [
        Result("refiner_attention", TOKENS, _time_attention(context, device), attention),
        Result("refiner_layer", TOKENS, _time_layer(model, context), floor),
        Result("refiner_forward", TOKENS, _time_forward(model, context), CONFIG.num_layers * floor),
    ]


def _time_attention(context: RefinerContext, device: torch.device) -> float:
    q, k, v = make_heads(device)
    return timed(lambda: context.attend(q, k, v), 3)


def _time_layer(model: RefinerModel, context: RefinerContext) -> float:
    x = torch.randn(TOKENS, CONFIG.hidden_size, device=model.device)
    layer = model.block.layers[CONFIG.num_layers // 2]
    return timed(lambda: layer(x, context), 3)


def _time_forward(model: RefinerModel, context: RefinerContext) -> float:
    latents = torch.randn(1, CONFIG.video_in_channels, *SIZE, device=model.device)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(model.device)
    span = timed(lambda: model(latents, context), 1, warm_up=0)
    peak = torch.cuda.max_memory_allocated(model.device) / 2**30
    print(f"refiner forward: peak {peak:.1f} GiB, weights of {CONFIG.num_layers} layers included", flush=True)
    return span
