"""The steps of layers with e4m3 weights: experts by kernels, other products by the library's for FP8.

That one takes a scale for each row and column, and sums by the matrix units' fast accumulation.
"""

# Shapes: N tokens in grouped order, K summed axis, M MoE heads, e experts, D head dim

from __future__ import annotations

from itertools import accumulate

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from magi2.kernels import experts, fp8_rows, limits, mhc, rows, sorting
from magi2.kernels.fp8_experts import ExpertWeights, Scaled, fp8_expert_rows, fp8_expert_settings
from magi2.kernels.proof import fp8_expert_features
from magi2.kernels.settings import Features
from magi2.models.preview.config import PreviewConfig
from magi2.models.preview.expert_share import ExpertShare
from magi2.models.preview.mlp import SparseMlp
from magi2.models.preview.moe import Routes
from magi2.models.preview.ops import ExpertBranches, Sizes
from magi2.models.preview.quantised import E4M3, HIDDEN_SCALE, Quantised, QuantisedExperts, quantise_hidden

_MULTIPLE = 16  # of both axes of a weight
_FEWEST_ROWS = 16  # of tokens, which the library takes


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
    """Entries of `PreviewOps` for layers whose products are all of e4m3 weights.

    What only such products read is handed on as e4m3: its scales are remembered as long as it lives, and so are the
    rows of what is read in bf16 as well. Nobody changes either in place.
    """

    def __init__(self) -> None:
        self._scales = WeakTensorKeyDictionary()
        self._rows = WeakTensorKeyDictionary()

    def rows(self, x: Tensor) -> Quantised:
        """Tokens `x` [N, K] with a scale each: as remembered, else quantised now."""
        if x.dtype == E4M3:
            return Quantised(x, self._scales[x])
        found: Quantised | None = self._rows.get(x)
        if found is None:
            self._rows[x] = found = Quantised(*fp8_rows.quantise_rows(x))
        return found

    def mhc_input(self, streams: Tensor, pre: Tensor, norm_weight: Tensor, group_sizes: Sizes) -> Tensor:
        num_tokens, _, size = streams.shape
        made = Quantised(*_empty(num_tokens, size, like=streams))
        y = mhc.half_input(streams.contiguous(), pre, norm_weight, group_sizes, made)
        self._rows[y] = made
        return y

    def gate_heads(
        self, out: Tensor, gate_logits: Tensor, to_grouped: Tensor, sink: tuple[Tensor, Tensor] | None = None
    ) -> Tensor:
        """Gated heads as e4m3."""
        scales = gate_logits.new_empty(gate_logits.shape[0], dtype=torch.float32)
        gated = rows.gate_heads(out, gate_logits, to_grouped, sink, scales)
        self._scales[gated] = scales
        return gated

    def swiglu7(self, x: Tensor) -> Tensor:
        """What `linear` takes for `hidden`: eight times the activation, as e4m3."""
        return fp8_rows.swiglu7_e4m3(x)

    def linear(self, x: Tensor, weight: Quantised, group_sizes: Sizes, sets: int, hidden: bool) -> Tensor:
        """`quantised_linear` for tokens `x` [N, K] in bf16, or what another entry made of them: [N, out] in bf16."""
        return _linear(_hidden(x) if hidden else self.rows(x), weight, group_sizes, sets)

    def sparse_mlp(self, mlp: ExpertBranches, y: Tensor, group_sizes: Sizes) -> Tensor:
        """The sum of the branches; experts that are all here hand over e4m3."""
        run = mlp.start_experts(mlp.split_heads(y, group_sizes))
        shared = mlp.shared(y, group_sizes)
        run.compute()
        specific = mlp.specific(y, group_sizes)
        return fp8_rows.sum_rows_(self._merge(mlp, run.result(), group_sizes), shared, specific)

    def _merge(self, mlp: ExpertBranches, heads: Tensor, group_sizes: Sizes) -> Tensor:
        if heads.dtype != E4M3 or not isinstance(mlp, SparseMlp):
            return mlp.merge(heads, group_sizes)
        tokens = Quantised(heads.flatten(1), self._scales[heads])
        weight = Quantised(mlp.merge_linear.weight, mlp.merge_linear.get_parameter("weight_scale"))
        return _linear(tokens, weight, group_sizes, 1)

    def run_experts(
        self, x: Tensor, routes: Routes, weights: QuantisedExperts, share: ExpertShare, buffer: Tensor
    ) -> Tensor:
        """`run_quantised_experts`; e4m3 where all experts are here, else their sums go home as they are."""
        plan = expert_rows(x, routes, weights, share, buffer)
        if share.num_held < x.shape[1] * share.num_experts:
            return experts.combine(buffer, plan, x.new_empty(x.shape))
        out = x.new_empty(x.shape, dtype=E4M3)
        self._scales[out] = scales = x.new_empty(x.shape[:1], dtype=torch.float32)
        return experts.combine(buffer, plan, out, scales)


def expert_rows(
    x: Tensor, routes: Routes, weights: QuantisedExperts, share: ExpertShare, buffer: Tensor
) -> sorting.Plan:
    """Write the rows of all routes to `buffer` [R, D]; their order comes back."""
    dim, width, top_k = x.shape[2], weights.gate.values.shape[1], routes.expert_ids.shape[2]
    available = fp8_expert_features(dim, width, share.num_experts, top_k, x.dtype, x.device)
    settings = fp8_expert_settings(available, dim, width)
    ids, held = routes.expert_ids.int().contiguous(), (share.first_row, share.first_row + share.num_held)
    plan = sorting.sort_routes(ids, share.num_experts, settings.block_rows, *held)
    tokens, parts = Scaled(*fp8_rows.quantise_rows(x)), ExpertWeights(*(Scaled(*part) for part in weights))
    fp8_expert_rows(tokens, routes.weights.contiguous(), plan, parts, available, settings, buffer)
    return plan


def _empty(num_tokens: int, size: int, like: Tensor) -> tuple[Tensor, Tensor]:
    return like.new_empty(num_tokens, size, dtype=E4M3), like.new_empty(num_tokens, dtype=torch.float32)


def _hidden(x: Tensor) -> Quantised:
    """The result of `swiglu7`, which is plain where its kernel does not take the width."""
    if x.dtype != E4M3:
        return quantise_hidden(x)
    return Quantised(x, x.new_full(x.shape[:1], HIDDEN_SCALE, dtype=torch.float32))


def _linear(tokens: Quantised, weight: Quantised, group_sizes: Sizes, sets: int) -> Tensor:
    """Products [N, out] in bf16 of tokens [N, K] with the blocks of `weight` [sets * out, K]."""
    blocks = list(zip(weight.values.chunk(sets), weight.scales.chunk(sets), strict=True))
    sizes = [len(tokens.values)] if sets == 1 else list(group_sizes)
    out = tokens.scales.new_empty(len(tokens.values), len(blocks[0][0]), dtype=torch.bfloat16)
    for first, size, (matrix, channels) in zip(accumulate(sizes, initial=0), sizes, blocks, strict=False):
        if size:
            here = slice(first, first + size)
            _multiply(tokens.values[here], tokens.scales[here], matrix, channels, out[here])
    return out


def _multiply(x: Tensor, x_scales: Tensor, weight: Tensor, channel_scales: Tensor, out: Tensor) -> None:
    """Write e4m3 `x` [N, K] times `weight` [out, K] to the rows of `out` [N, out]."""
    if len(x) < _FEWEST_ROWS:
        more = _FEWEST_ROWS - len(x)
        values = F.pad(x.view(torch.uint8), (0, 0, 0, more)).view(E4M3)
        padded = out.new_empty(_FEWEST_ROWS, out.shape[1])
        _multiply(values, F.pad(x_scales, (0, more)), weight, channel_scales, padded)
        out.copy_(padded[: len(x)])
        return
    torch._scaled_mm(
        x,
        weight.t(),
        # The library wants scales at whole 16 bytes, where a modality's rows need not begin.
        scale_a=(x_scales.clone() if x_scales.storage_offset() % 4 else x_scales).unsqueeze(1),
        scale_b=channel_scales.unsqueeze(0),
        out_dtype=out.dtype,
        use_fast_accum=True,
        out=out,
    )
