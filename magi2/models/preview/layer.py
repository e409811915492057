"""One transformer layer: attention, then MLP, each between hyper-connections.

Source: MAGI-2 preview inference code.
"""

# Shapes: N tokens in grouped order, n streams, c hidden size, m weight sets, H query heads, G key/value heads

from __future__ import annotations

from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn

from magi2.models.preview.config import BF16, PreviewConfig, Weights
from magi2.models.preview.grouped import GroupedLinear, GroupedRMSNorm
from magi2.models.preview.layout import ClipLayout
from magi2.models.preview.linear import large_linear
from magi2.models.preview.mhc import MhcCoefficients, MhcWeights
from magi2.models.preview.mlp import DenseMlp, SparseMlp
from magi2.models.preview.ops import PreviewOps

Half = Literal["attn", "mlp"]


class Attention(nn.Module):
    """Norm, projections, attention with sinks in packed order, one gate per head, output projection."""

    def __init__(self, config: PreviewConfig, *, sets: int, dtype: torch.dtype, weights: Weights = BF16) -> None:
        super().__init__()
        self.ops = PreviewOps()
        self.num_heads = (config.num_heads, config.num_query_groups)
        self.softcap = config.attn_softcap
        size, width = config.hidden_size, config.num_heads * config.head_dim
        self.pre_norm = GroupedRMSNorm(size, sets=sets)
        linear = partial(large_linear, sets=sets, dtype=dtype, weights=weights)
        self.linear_qkv = linear(size, width + 2 * config.num_query_groups * config.head_dim)
        self.linear_g = GroupedLinear(size, config.num_heads, sets=sets, dtype=dtype)
        self.linear_proj = linear(width, size)
        self.q_norm = GroupedRMSNorm(config.head_dim, sets=sets)
        self.k_norm = GroupedRMSNorm(config.head_dim, sets=sets)
        self.sinks = nn.Parameter(torch.zeros(config.attn_sinks.sink_token_num, config.num_heads))

    def forward(self, x: Tensor, layout: ClipLayout) -> Tensor:
        """[N, c] for `x` [N, c]."""
        return self.from_normed(self.pre_norm(x, layout.group_sizes), layout)

    def from_normed(self, y: Tensor, layout: ClipLayout) -> Tensor:
        """[N, c] for normed tokens [N, c]."""
        qkv = self.linear_qkv(y, layout.group_sizes)
        gate_logits = self.linear_g(y, layout.group_sizes)
        norms = self.q_norm.weight, self.k_norm.weight
        heads = self.ops.packed_heads(qkv, *norms, layout.rope, layout.to_packed, layout.group_sizes, self.num_heads)
        gated = self.ops.gated_attention(
            self.ops, heads, self.sinks, layout.sequences, self.softcap, gate_logits, layout.to_grouped
        )
        projected: Tensor = self.linear_proj(gated, layout.group_sizes)
        return projected


class Layer(nn.Module):
    """Attention and MLP on the residual streams; both halves share the hyper-connection norm and nothing else."""

    def __init__(self, config: PreviewConfig, index: int, *, dtype: torch.dtype, weights: Weights = BF16) -> None:
        super().__init__()
        self.ops = PreviewOps()
        sets, streams = config.weight_sets(index), config.mhc_config.num_stream
        halves: tuple[Half, ...] = ("attn", "mlp")
        for half in halves:
            for part in ("pre", "post", "res"):
                alpha = torch.full((1,), config.mhc_config.alpha_init)
                bias = torch.zeros(streams, streams) if part == "res" else torch.zeros(streams)
                self.register_parameter(f"mhc_alpha_{part}_{half}", nn.Parameter(alpha))
                self.register_parameter(f"mhc_bias_{part}_{half}", nn.Parameter(bias))
            phi = torch.empty(config.stream_width, 2 * streams + streams**2)
            self.register_parameter(f"mhc_phi_fused_{half}", nn.Parameter(phi))
        self.mhc_norm = GroupedRMSNorm(config.stream_width, sets=sets)
        self.attention = Attention(config, sets=sets, dtype=dtype, weights=weights)
        is_sparse = index in config.moe_config.moe_layers
        self.mlp = (
            SparseMlp(config, dtype=dtype, weights=weights)
            if is_sparse
            else DenseMlp(config, sets=sets, dtype=dtype, weights=weights)
        )

    def forward(self, streams: Tensor, layout: ClipLayout) -> Tensor:
        """[N, n, c] for `streams` [N, n, c]."""
        sizes = layout.group_sizes
        hyper = self._coefficients(streams, sizes, "attn")
        y = self.ops.mhc_input(streams, hyper.pre, self.attention.pre_norm.weight, sizes)
        out = self.attention.from_normed(y, layout)
        streams = self.ops.mhc_post(streams, hyper.res, hyper.post, out)
        hyper = self._coefficients(streams, sizes, "mlp")
        y = self.ops.mhc_input(streams, hyper.pre, self.mlp.pre_norm.weight, sizes)
        out = self.mlp.from_normed(y, sizes)
        return self.ops.mhc_post(streams, hyper.res, hyper.post, out)

    def mhc_weights(self, half: Half) -> MhcWeights:
        """The parameters of one half's hyper-connections."""
        names = [f"{kind}_{part}_{half}" for kind in ("alpha", "bias") for part in ("pre", "post", "res")]
        return MhcWeights(*(self.get_parameter(f"mhc_{name}") for name in [*names, f"phi_fused_{half}"]))

    def _coefficients(self, streams: Tensor, group_sizes: tuple[int, ...], half: Half) -> MhcCoefficients:
        return self.ops.mhc_coefficients(streams, self.mhc_norm.weight, self.mhc_weights(half), group_sizes)
