"""Bytes that a rank sends to others in one denoising step, by formula. What a run counted is in the mesh's meter."""

from __future__ import annotations

from collections.abc import Sequence

from magi2.models.preview.config import PreviewConfig
from magi2.models.preview.parallelize import VELOCITIES
from magi2.parallel import expert_exchange, ulysses
from magi2.parallel.expert_exchange import Places
from magi2.parallel.layout import ParallelLayout

_VELOCITY_BYTES = 4  # fp32


def step_traffic(
    config: PreviewConfig,
    layout: ParallelLayout,
    token_counts: tuple[int, ...],
    latent_counts: tuple[tuple[int, int], ...],
    *,
    rank: int,
    itemsize: int,
) -> dict[str, int]:
    """Bytes by kind: attention heads, tokens and results of experts, velocities.

    For every rank of the layout: its tokens, and its (video, audio) tokens of the latents. `itemsize` is that of the
    compute dtype, 2 for bfloat16.
    """
    first, group = rank // layout.cp * layout.cp, rank // layout.ep * layout.ep
    sharing = token_counts[first : first + layout.cp]
    heads, pairs = config.num_heads, config.num_query_groups
    attention = attention_bytes(
        sharing, rank - first, config.head_dim * itemsize, sent_heads=heads + 2 * pairs, returned_heads=heads
    )
    places = Places(config.moe_config.num_heads, layout.ep)
    row_bytes = config.split_merge_size // config.moe_config.num_heads * itemsize
    experts = expert_bytes(places, token_counts[group : group + layout.ep], rank - group, row_bytes)
    video, audio = latent_counts[rank]
    values = video * config.video_in_channels + audio * config.audio_in_channels
    return {
        ulysses.TRAFFIC: attention * config.num_layers,
        expert_exchange.TRAFFIC: experts * len(config.moe_config.moe_layers),
        VELOCITIES: (layout.num_ranks - 1) * values * _VELOCITY_BYTES,
    }


def attention_bytes(lengths: Sequence[int], rank: int, head_bytes: int, *, sent_heads: int, returned_heads: int) -> int:
    """Bytes that one rank sends to others in one layer: `sent_heads` of its tokens, `returned_heads` of all others'.

    Both count all heads of the model, `head_bytes` is the size of one head of one token.
    """
    own, ranks = lengths[rank], len(lengths)
    sent = own * sent_heads // ranks * (ranks - 1)
    returned = (sum(lengths) - own) * returned_heads // ranks
    return (sent + returned) * head_bytes


def expert_bytes(places: Places, lengths: Sequence[int], rank: int, row_bytes: int) -> int:
    """Bytes that one rank sends to others in one layer; `row_bytes` is the size of one place of one token."""
    own = lengths[rank]
    return places.count * row_bytes * (own * (places.size - 1) + sum(lengths) - own)
