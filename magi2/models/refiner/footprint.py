"""Memory that one rank of the refiner needs, by arithmetic.

Weights are exact. Activations are counted at the fullest moment of a layer, in the plain form, which holds more than
the kernels do. Buffers are bounded by keys of the whole clip.
"""

from __future__ import annotations

from math import ceil, prod

import torch

from magi2.models.refiner.config import RefinerConfig
from magi2.models.refiner.model import CHUNK_TOKENS, RefinerModel
from magi2.parallel.layout import ParallelLayout
from magi2.parallel.memory import RESERVE_BYTES, Footprint, check_memory

_FP32 = 4
# Parts cost the same, so the tokens of one may exceed the mean: by 2 % on eight ranks at the delivery size.
_UNEVEN = 1.05


def check_footprint(
    config: RefinerConfig,
    layout: ParallelLayout,
    size: tuple[int, int, int],
    text_tokens: int,
    *,
    card_bytes: int,
    compute_dtype: torch.dtype = torch.bfloat16,
) -> Footprint:
    """What one rank needs for latent grids (T, H, W) with at most `text_tokens` rows of text.

    Raises: ConfigError when the cards are too small, naming the numbers and the nearest layouts that fit.
    """
    with torch.device("meta"):
        state = RefinerModel(config, compute_dtype=compute_dtype).state_dict()
    weights = sum(tensor.numel() * tensor.element_size() for tensor in state.values())
    video, itemsize = prod(size), compute_dtype.itemsize

    def footprint(other: ParallelLayout) -> Footprint | None:
        # Any layout works; those worth naming halve the grid evenly, and need no ep, which means nothing here.
        if other != layout and (other.ep != other.cp or other.cp & (other.cp - 1)):
            return None
        own = video + text_tokens if other.cp == 1 else ceil(_UNEVEN * (video + text_tokens) / other.cp)
        text = text_tokens * config.text_in_channels * _FP32
        latents = 8 * video * config.video_in_channels * _FP32  # the sampler's, both velocities, the solver's state
        return Footprint(
            weights=weights,
            activations=own * _token_bytes(config, itemsize) + _chunk_bytes(config, itemsize) + text + latents,
            buffers=_buffer_bytes(config, other, video + text_tokens, itemsize),
            reserve=RESERVE_BYTES,
        )

    tokens = f"{video} video and {text_tokens} text tokens"
    return check_memory(layout, footprint, tokens=tokens, card_bytes=card_bytes)


def _token_bytes(config: RefinerConfig, itemsize: int) -> int:
    """Bytes of one own token in attention: residual, rotary angles, places, heads, the result being put in order."""
    heads = (config.num_heads + 2 * config.num_query_groups) * config.head_dim
    angles = 2 * 3 * (config.head_dim // 8)
    return (config.hidden_size + angles + 12) * _FP32 + (heads + 3 * config.hidden_size) * itemsize


def _chunk_bytes(config: RefinerConfig, itemsize: int) -> int:
    """Bytes of one chunk of tokens inside the MLP: the inner rows, and their copies in fp32."""
    return CHUNK_TOKENS * 2 * config.intermediate_size * (itemsize + 2 * _FP32 + _FP32 // 2)


def _buffer_bytes(config: RefinerConfig, layout: ParallelLayout, tokens: int, itemsize: int) -> int:
    """Bytes of the exchange buffers of two texts: keys and values that are sent, and those attended to."""
    if layout.cp == 1:
        return 0
    return 2 * 4 * min(tokens, 3 * tokens // layout.cp) * config.num_query_groups * config.head_dim * itemsize
