"""What a layer of the published preview costs at least: operations and bytes of its parts."""

from __future__ import annotations

from magi2.acceptance.measure import Ceilings
from magi2.acceptance.preview_shapes import CONFIG, DENSE, SPARSE, Clip
from magi2.models.preview.config import PreviewConfig

MOE = CONFIG.moe_config
WIDTH, HEADS = CONFIG.hidden_size, CONFIG.num_heads
MOE_DIM = WIDTH // MOE.num_heads


def linear_flops(tokens: int, index: int) -> float:
    """Operations of a layer's dense products."""
    shared, specific = MOE.shared_expert_intermediate_size, MOE.modality_specific_expert_intermediate_size
    mlp = 3 * CONFIG.intermediate_size if index == DENSE else 2 * WIDTH + 3 * (shared + specific)
    return 2.0 * tokens * WIDTH * (3 * WIDTH + HEADS + WIDTH + mlp)


def attention_flops(clip: Clip, heads: int) -> float:
    """Operations of both branches' attention."""
    return 2 * 4.0 * clip.branch**2 * heads * CONFIG.head_dim


def expert_cost(tokens: int, heads: int) -> tuple[float, float]:
    """Operations and bytes of the routed experts: weights and tokens once, a row per route written and read."""
    routes, width = tokens * heads * MOE.top_k, MOE.expert_intermediate_size
    weights = 2.0 * heads * MOE.num_experts * 3 * MOE_DIM * width
    return 6.0 * routes * MOE_DIM * width, weights + 2.0 * MOE_DIM * (2 * tokens * heads + 2 * routes)


def mhc_bytes(tokens: int) -> float:
    """Bytes of both halves when streams and branch are read once and streams and input written once."""
    return 2 * 2.0 * tokens * (2 * 4 * WIDTH + 2 * WIDTH)


def layer_floor(limits: Ceilings, clip: Clip, tokens: int, index: int, shape: tuple[int, int], heads: int) -> float:
    """Sum of the floors of products, attention, hyper-connections and experts (of `shape` tokens x heads)."""
    floor = limits.floor_ms(linear_flops(tokens, index), 0) + limits.floor_ms(attention_flops(clip, heads), 0)
    floor += limits.floor_ms(0, mhc_bytes(tokens))
    return floor + (limits.floor_ms(*expert_cost(*shape)) if index != DENSE else 0)


def step_floor(config: PreviewConfig, clip: Clip, limits: Ceilings) -> float:
    """Milliseconds that one card needs for a step at least: products, attention, hyper-connections and experts."""
    sparse = len(config.moe_config.moe_layers)
    shape = (clip.tokens, MOE.num_heads)
    of_layer = {index: layer_floor(limits, clip, clip.tokens, index, shape, HEADS) for index in (SPARSE, DENSE)}
    return sparse * of_layer[SPARSE] + (config.num_layers - sparse) * of_layer[DENSE]
