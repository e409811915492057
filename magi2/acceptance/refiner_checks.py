"""The refiner at the delivery size: shapes, random weights, and its kernels against plain torch."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from magi2.acceptance.preview_checks import Check, compare
from magi2.acceptance.preview_shapes import TEXT_ROWS
from magi2.acceptance.refiner_shapes import random_weights
from magi2.kernels.refiner_attention import (
    WINDOW_SETTINGS,
    WINDOW_SETTINGS_PLAIN,
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

REFINER = RefinerConfig()
DELIVERED_LATENTS = (63, 68, 120)
"""Latents of 249 frames of 1088x1920."""
REFINED_TOKENS = math.prod(DELIVERED_LATENTS) + TEXT_ROWS


def make_refiner(device: torch.device, config: RefinerConfig) -> RefinerModel:
    """A refiner with random weights, computing by kernels."""
    model = random_weights(device, config)
    use_fast_ops(model)
    return model


def make_context(model: RefinerModel) -> RefinerContext:
    """A clip of the delivery size with a text of some length."""
    text = torch.randn(1, TEXT_ROWS, REFINER.text_in_channels, device=model.device)
    return model.prepare(model.prepare_grid(DELIVERED_LATENTS), text)


def make_heads(device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Random queries, keys and values."""
    q = torch.randn(REFINED_TOKENS, REFINER.num_heads, REFINER.head_dim, device=device).bfloat16()
    k, v = torch.randn(2, REFINED_TOKENS, REFINER.num_query_groups, REFINER.head_dim, device=device).bfloat16().unbind()
    return q, k, v


@torch.no_grad()
def refiner_checks(device: torch.device) -> Iterator[Check]:
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
    x = torch.randn(REFINED_TOKENS, REFINER.hidden_size, device=model.device)
    model.use_ops(RefinerOps())
    expected = layer(x.clone(), replace(context, ops=model.ops, plan=None)) - x
    use_fast_ops(model)
    return compare("refiner layer", lambda: layer(x.clone(), context) - x, expected)
