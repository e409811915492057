"""Memory that one rank of the preview transformer needs, by arithmetic.

Weights are exact. Activations and buffers are counted from the tensors that are alive at the fullest moments of a
step; measured peaks stay below.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from functools import cache
from math import ceil

import torch

from magi2.models.preview.config import BF16, SCALE_SUFFIX, PreviewConfig, Weights
from magi2.models.preview.expert_share import expert_share
from magi2.models.preview.model import PreviewModel
from magi2.models.preview.parallelize import model_heads
from magi2.parallel.expert_exchange import Places
from magi2.parallel.layout import ParallelLayout, check_heads
from magi2.parallel.memory import RESERVE_BYTES, Footprint, check_memory

_EXPERTS = re.compile(rf"\.W_(gate|up|down)({SCALE_SUFFIX})?$")
_FP32 = 4


def check_footprint(
    config: PreviewConfig,
    layout: ParallelLayout,
    branch_tokens: Mapping[str, int],
    *,
    card_bytes: int,
    compute_dtype: torch.dtype = torch.bfloat16,
    weights: Weights = BF16,
    branches: Collection[int] = (2,),
) -> Footprint:
    """What one rank needs for clips of at most `branch_tokens`, by their kind, in each guidance branch.

    `branches` are the numbers of branches that their steps evaluate; the most that any of them needs counts.
    Raises: ConfigError when heads do not divide or the cards are too small, naming the numbers and the nearest layouts.
    """
    check_heads(layout, model_heads(config), branches)
    sizes = _weight_bytes(config, compute_dtype, weights)

    def footprint(other: ParallelLayout) -> Footprint | None:
        shared = {count: other.for_branches(count) for count in branches}
        if any(model_heads(config).objection(each) is not None for each in shared.values()):
            return None
        tokens = sum(branch_tokens.values())
        needs = [
            _footprint(
                config, each, tokens if each.cfg == 2 else count * tokens, sizes, compute_dtype.itemsize, weights
            )
            for count, each in shared.items()
        ]
        return max(needs, key=lambda need: need.total)

    tokens = " + ".join(f"{count} {kind}" for kind, count in branch_tokens.items()) + " tokens a branch"
    return check_memory(layout, footprint, tokens=tokens, card_bytes=card_bytes)


@cache
def _weight_bytes(config: PreviewConfig, dtype: torch.dtype, weights: Weights) -> tuple[int, int, int]:
    """Bytes of all routed experts, of their routers, and of everything else."""
    with torch.device("meta"):
        state = PreviewModel(config, compute_dtype=dtype, weights=weights).state_dict()
    sizes = {name: tensor.numel() * tensor.element_size() for name, tensor in state.items()}
    experts = sum(size for name, size in sizes.items() if _EXPERTS.search(name))
    routers = sum(size for name, size in sizes.items() if ".moe_mlp." in name and not _EXPERTS.search(name))
    return experts, routers, sum(sizes.values()) - experts - routers


def _footprint(
    config: PreviewConfig,
    layout: ParallelLayout,
    sequence: int,
    weight_bytes: tuple[int, int, int],
    itemsize: int,
    weights: Weights,
) -> Footprint:
    experts, routers, rest = weight_bytes
    moe = config.moe_config
    share = expert_share(moe.num_heads, moe.num_experts, rank=0, size=layout.ep)
    own = ceil(sequence / layout.cp)
    places = len(share.heads)
    layer = own * (_layer_bytes(config, itemsize) + _quantised_bytes(config, weights))
    layer += sequence * 4 * config.num_heads // layout.cp * config.head_dim * itemsize  # attention's own copies
    layer += own * layout.ep * places * _place_bytes(config, itemsize)
    heads = own * _head_bytes(config, itemsize) + own * layout.ep * places * _row_bytes(config, itemsize)
    return Footprint(
        weights=experts // layout.ep + routers * places // moe.num_heads + rest,
        activations=max(layer, heads),
        buffers=_buffer_bytes(config, layout, own, sequence, itemsize),
        reserve=RESERVE_BYTES,
    )


def _layer_bytes(config: PreviewConfig, itemsize: int) -> int:
    """Bytes of one own token at the fullest moment of a layer."""
    streams, size = config.stream_width, config.hidden_size
    heads = (config.num_heads + 2 * config.num_query_groups) * config.head_dim
    moe = config.moe_config
    sparse = 3 * config.split_merge_size + 3 * (
        moe.shared_expert_intermediate_size + moe.modality_specific_expert_intermediate_size
    )
    return (2 * streams + 3 * size + max(3 * heads, 3 * config.intermediate_size, sparse)) * itemsize


def _head_bytes(config: PreviewConfig, itemsize: int) -> int:
    """Bytes of one own token before the velocity heads: the streams, those of video tokens, and the same normed."""
    return config.stream_width * (2 * itemsize + _FP32)


def _quantised_bytes(config: PreviewConfig, weights: Weights) -> int:
    """Bytes of the widest e4m3 copy of one own token, beside what it was made of, and of its scales."""
    if weights == BF16:
        return 0
    moe = config.moe_config
    hidden = moe.shared_expert_intermediate_size + moe.modality_specific_expert_intermediate_size
    widths = (config.num_heads * config.head_dim, config.intermediate_size, hidden + config.split_merge_size)
    return max(config.hidden_size, *widths) + (moe.num_heads + 1) * _FP32


def _place_bytes(config: PreviewConfig, itemsize: int) -> int:
    """Bytes of one token in one of the rank's MoE heads: its result, and its routes with their rows and plan."""
    moe = config.moe_config
    dim = config.split_merge_size // moe.num_heads
    return dim * itemsize + moe.top_k * 4 * _FP32 + _row_bytes(config, itemsize)


def _row_bytes(config: PreviewConfig, itemsize: int) -> int:
    """Bytes of one token's rows in one of the rank's MoE heads; they stay from layer to layer."""
    return config.moe_config.top_k * (config.split_merge_size // config.moe_config.num_heads) * itemsize


def _buffer_bytes(config: PreviewConfig, layout: ParallelLayout, own: int, sequence: int, itemsize: int) -> int:
    """Bytes of the exchange buffers: heads out and in, results in; tokens out and in, results in."""
    size = 0
    if layout.cp > 1:
        sent = config.num_heads + 2 * config.num_query_groups
        size += (own * (sent + config.num_heads) + sequence * sent // layout.cp) * config.head_dim
    if layout.ep > 1:
        moe = config.moe_config
        places = Places(moe.num_heads, layout.ep)
        size += 3 * own * layout.ep * places.count * config.split_merge_size // moe.num_heads
    return size * itemsize
