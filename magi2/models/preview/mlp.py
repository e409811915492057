"""The MLP half of a layer: dense, or sparse with routed, shared and modality-specific experts.

Source: MAGI-2 preview inference code.
"""

# Shapes: N tokens in grouped order, c hidden size, M MoE heads, E experts per head, D head dim, F expert width

from __future__ import annotations

from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn

from magi2.models.layers import NUM_MODALITIES
from magi2.models.preview.config import BF16, PreviewConfig, Weights
from magi2.models.preview.expert_share import ExpertShare, whole_heads
from magi2.models.preview.grouped import GroupedRMSNorm
from magi2.models.preview.linear import large_linear
from magi2.models.preview.ops import ExpertRun, PreviewOps
from magi2.models.preview.quantised import E4M3, Quantised, QuantisedExperts

RouterBias = Literal["ema", "main"]


class DenseMlp(nn.Module):
    """Norm, fused gate and up product, SwiGLU7, down product."""

    def __init__(self, config: PreviewConfig, *, sets: int, dtype: torch.dtype, weights: Weights = BF16) -> None:
        super().__init__()
        size, width = config.hidden_size, config.intermediate_size
        linear = partial(large_linear, sets=sets, dtype=dtype, weights=weights)
        self.ops = PreviewOps()
        self.pre_norm = GroupedRMSNorm(size, sets=sets)
        self.up_gate_proj = linear(size, 2 * width)
        self.down_proj = linear(width, size, hidden=True)

    def forward(self, x: Tensor, group_sizes: tuple[int, ...]) -> Tensor:
        """[N, c] for `x` [N, c]."""
        return self.from_normed(self.pre_norm(x, group_sizes), group_sizes)

    def from_normed(self, y: Tensor, group_sizes: tuple[int, ...]) -> Tensor:
        """[N, c] for normed tokens [N, c]."""
        out: Tensor = self.down_proj(self.ops.swiglu7(self.up_gate_proj(y, group_sizes)), group_sizes)
        return out


class Router(nn.Module):
    """The selection biases of all experts, [M*E] fp32: as trained, and their moving average, which is the default."""

    def __init__(self, num_rows: int) -> None:
        super().__init__()
        self.source: RouterBias = "ema"
        self.expert_bias: Tensor
        self.expert_bias_ema: Tensor
        self.register_buffer("expert_bias", torch.zeros(num_rows))
        self.register_buffer("expert_bias_ema", torch.zeros(num_rows))

    def forward(self) -> Tensor:
        return self.expert_bias_ema if self.source == "ema" else self.expert_bias


class MultiHeadMoe(nn.Module):
    """Routed experts per MoE head, all or a share of them; the (head, expert) axis of the weights is head-major.

    Quantised weights have their output axis before their input axis, and fp32 scales [rows, out] beside them.
    """

    W_gate: nn.Parameter
    W_up: nn.Parameter
    W_down: nn.Parameter

    def __init__(
        self,
        config: PreviewConfig,
        *,
        dtype: torch.dtype,
        share: ExpertShare | None = None,
        weights: Weights = BF16,
    ) -> None:
        super().__init__()
        self.config = config.moe_config
        self.share = share or whole_heads(self.config.num_heads, self.config.num_experts)
        self.ops = PreviewOps()
        self.is_quantised = weights != BF16
        rows, router_rows = len(self.share.expert_rows), len(self.share.router_rows)
        width = self.config.expert_intermediate_size
        head_dim = config.split_merge_size // self.config.num_heads
        self.gate = nn.Parameter(torch.empty(router_rows, head_dim))
        for name, inputs, outputs in (
            ("W_gate", head_dim, width),
            ("W_up", head_dim, width),
            ("W_down", width, head_dim),
        ):
            if self.is_quantised:
                values = torch.empty(rows, outputs, inputs, dtype=E4M3)
                self.register_parameter(name, nn.Parameter(values, requires_grad=False))
                scales = nn.Parameter(torch.empty(rows, outputs), requires_grad=False)
                self.register_parameter(f"{name}_scale", scales)
            else:
                self.register_parameter(name, nn.Parameter(torch.empty(rows, inputs, outputs, dtype=dtype)))
        self.router = Router(router_rows)

    def forward(self, x: Tensor) -> Tensor:
        """[N, m, D] for `x` [N, m, D]: tokens of the share's m heads, and the canonical sum over its experts."""
        config = self.config
        routes = self.ops.route(x, self.gate, self.router(), config.top_k, config.route_norm, config.route_scale)
        if self.is_quantised:
            return self.ops.run_quantised_experts(x, routes, self.quantised(), self.share)
        return self.ops.run_experts(x, routes, self.W_gate, self.W_up, self.W_down, self.share)

    def quantised(self) -> QuantisedExperts:
        """The weights with their scales."""
        gate, up, down = (
            Quantised(self.get_parameter(name), self.get_parameter(f"{name}_scale"))
            for name in ("W_gate", "W_up", "W_down")
        )
        return QuantisedExperts(gate, up, down)


class SparseMlp(nn.Module):
    """Routed experts between a split and a merge linear, plus a shared expert and one per modality."""

    def __init__(self, config: PreviewConfig, *, dtype: torch.dtype, weights: Weights = BF16) -> None:
        super().__init__()
        linear = partial(large_linear, dtype=dtype, weights=weights)
        moe, size, split = config.moe_config, config.hidden_size, config.split_merge_size
        shared, specific = moe.shared_expert_intermediate_size, moe.modality_specific_expert_intermediate_size
        self.ops = PreviewOps()
        self.num_heads = moe.num_heads
        # The norm and one expert have a weight set per modality here, in whatever layer.
        self.pre_norm = GroupedRMSNorm(size, sets=NUM_MODALITIES)
        self.split_linear = linear(size, split, sets=1)
        self.merge_linear = linear(split, size, sets=1)
        self.shared_expert_fc1 = linear(size, 2 * shared, sets=1)
        self.shared_expert_fc2 = linear(shared, size, sets=1, hidden=True)
        self.modality_specific_shared_expert_fc1 = linear(size, 2 * specific, sets=NUM_MODALITIES)
        self.modality_specific_shared_expert_fc2 = linear(specific, size, sets=NUM_MODALITIES, hidden=True)
        self.moe_mlp = MultiHeadMoe(config, dtype=dtype, weights=weights)

    def forward(self, x: Tensor, group_sizes: tuple[int, ...]) -> Tensor:
        """[N, c] for `x` [N, c]."""
        return self.from_normed(self.pre_norm(x, group_sizes), group_sizes)

    def from_normed(self, y: Tensor, group_sizes: tuple[int, ...]) -> Tensor:
        """[N, c] for normed tokens [N, c]."""
        return self.ops.sparse_mlp(self, y, group_sizes)

    def split_heads(self, y: Tensor, group_sizes: tuple[int, ...]) -> Tensor:
        """What the routed experts get: [N, M, D] for normed tokens [N, c]."""
        heads: Tensor = self.split_linear(y, group_sizes)
        return heads.view(y.shape[0], self.num_heads, -1)

    def start_experts(self, heads: Tensor) -> ExpertRun:
        """Begin to send tokens [N, M, D] to their experts."""
        return self.ops.start_experts(self.moe_mlp, heads)

    def merge(self, heads: Tensor, group_sizes: tuple[int, ...]) -> Tensor:
        """Output [N, c] of the routed branch from that of its experts [N, M, D]."""
        out: Tensor = self.merge_linear(heads.flatten(1), group_sizes)
        return out

    def shared(self, y: Tensor, group_sizes: tuple[int, ...]) -> Tensor:
        """Output [N, c] of the shared expert for normed tokens [N, c]."""
        out: Tensor = self.shared_expert_fc2(self.ops.swiglu7(self.shared_expert_fc1(y, group_sizes)), group_sizes)
        return out

    def specific(self, y: Tensor, group_sizes: tuple[int, ...]) -> Tensor:
        """Output [N, c] of the modality-specific expert for normed tokens [N, c]."""
        hidden = self.ops.swiglu7(self.modality_specific_shared_expert_fc1(y, group_sizes))
        out: Tensor = self.modality_specific_shared_expert_fc2(hidden, group_sizes)
        return out
