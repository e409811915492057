"""The steps of layers with e4m3 weights: experts by kernels, other products by the library's for FP8.

That one takes a scale for each row and column, and sums by the matrix units' fast accumulation.
"""

# Shapes: N tokens in grouped order, K summed axis, M MoE heads, e experts, D head dim, F expert width

from __future__ import annotations

from itertools import accumulate

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from magi2.kernels import experts, fp8_rows, limits, sorting
from magi2.kernels.fp8_experts import ExpertWeights, Scaled, fp8_expert_rows, fp8_expert_settings
from magi2.kernels.proof import fp8_expert_features
from magi2.kernels.settings import Features
from magi2.models.preview.config import PreviewConfig
from magi2.models.preview.expert_share import ExpertShare
from magi2.models.preview.moe import Routes
from magi2.models.preview.quantised import HIDDEN_SCALE, Quantised, QuantisedExperts

Sizes = tuple[int, ...]

_MULTIPLE = 16  # of both axes of a weight


def linear_refusal(config: PreviewConfig, dtype: torch.dtype, device: torch.device, available: Features) -> str | None:
    """Why FP8 products do not take the layers of `config`; None when they do."""
    moe = config.moe_config
    sizes = {
        "hidden size": config.hidden_size,
        "split size": config.split_merge_size,
        "heads' channels": config.num_heads * config.head_dim,
        "MLP width": config.intermediate_size,
        "shared width": moe.shared_expert_intermediate_size,
        "specific width": moe.modality_specific_expert_intermediate_size,
    }
    return limits.first(
        None if device.type == "cuda" else f"{device.type} has no FP8 product with a scale for each row and column",
        limits.no_fp8(available.fp8),
        None if dtype == torch.bfloat16 else f"{dtype} is not torch.bfloat16",
        *(limits.no_multiple(name, size, _MULTIPLE) for name, size in sizes.items()),
    )


class Fp8Ops:
    """Entries of `PreviewOps` for layers with e4m3 weights; activations are quantised once for all their products."""

    def __init__(self) -> None:
        self._quantised = WeakTensorKeyDictionary()

    def remember(self, x: Tensor, rows: Quantised) -> None:
        """`rows` are the quantised `x`, which nobody changes; they live as long as it does."""
        self._quantised[x] = rows

    def rows(self, x: Tensor) -> Quantised:
        """`x` [N, K], quantised the first time that it is asked for."""
        found: Quantised | None = self._quantised.get(x)
        if found is None:
            found = Quantised(*fp8_rows.quantise_rows(x))
            self.remember(x, found)
        return found

    def swiglu7(self, x: Tensor) -> Tensor:
        """What `linear` takes for `hidden`: eight times the activation, as e4m3."""
        return fp8_rows.swiglu7_e4m3(x)

    def linear(self, x: Tensor, weight: Quantised, group_sizes: Sizes, sets: int, hidden: bool) -> Tensor:
        """`quantised_linear` for tokens `x` [N, K] in bf16, or the result of `swiglu7`."""
        tokens = Quantised(x, x.new_full(x.shape[:1], HIDDEN_SCALE, dtype=torch.float32)) if hidden else self.rows(x)
        blocks = list(zip(weight.values.chunk(sets), weight.scales.chunk(sets), strict=True))
        sizes = [x.shape[0]] if sets == 1 else list(group_sizes)
        out = x.new_empty(x.shape[0], blocks[0][0].shape[0], dtype=torch.bfloat16)
        for first, size, (matrix, channels) in zip(accumulate(sizes, initial=0), sizes, blocks, strict=False):
            if size:
                here = slice(first, first + size)
                _multiply(tokens.values[here], tokens.scales[here], matrix, channels, out[here])
        return out


def run_experts(x: Tensor, routes: Routes, weights: QuantisedExperts, share: ExpertShare, buffer: Tensor) -> Tensor:
    """`run_quantised_experts` by kernels; `buffer` [R, D] holds the rows of all routes."""
    dim, width, top_k = x.shape[2], weights.gate.values.shape[1], routes.expert_ids.shape[2]
    available = fp8_expert_features(dim, width, share.num_experts, top_k, x.dtype, x.device)
    settings = fp8_expert_settings(available, dim, width)
    ids, held = routes.expert_ids.int().contiguous(), (share.first_row, share.first_row + share.num_held)
    plan = sorting.sort_routes(ids, share.num_experts, settings.block_rows, *held)
    tokens, parts = Scaled(*fp8_rows.quantise_rows(x)), ExpertWeights(*(Scaled(*part) for part in weights))
    fp8_expert_rows(tokens, routes.weights.contiguous(), plan, parts, available, settings, buffer)
    return experts.combine(buffer, plan, x.new_empty(x.shape))


def _multiply(x: Tensor, x_scales: Tensor, weight: Tensor, channel_scales: Tensor, out: Tensor) -> None:
    """Write e4m3 `x` [N, K] times `weight` [out, K] to the rows of `out` [N, out]."""
    torch._scaled_mm(
        x,
        weight.t(),
        scale_a=x_scales.unsqueeze(1),
        scale_b=channel_scales.unsqueeze(0),
        out_dtype=out.dtype,
        use_fast_accum=True,
        out=out,
    )
