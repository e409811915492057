"""Keeping experts evenly busy: the selection bias of each moves a little toward equal load after every step."""

# Shapes: M MoE heads, E experts per head, N tokens, K routes

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from magi2.models.preview.mlp import MultiHeadMoe
from magi2.models.preview.model import PreviewModel
from magi2.models.preview.moe import Routes
from magi2.models.preview.ops import PreviewOps

BIAS_STEP = 4e-3
"""With half of it experts starved within a few hundred steps."""


class ExpertBalance:
    """Watches the routing of a model that computes with `ops`; passes without gradients are not counted.

    `is_token` [N] bool, set before a pass, says which rows count. `loads` [layer, M, E] are what the last pass saw: the
    experts' shares of their heads' routes.
    """

    def __init__(self, model: PreviewModel, ops: PreviewOps, is_token: Tensor) -> None:
        self.is_token = is_token
        self._experts = [module for module in model.modules() if isinstance(module, MultiHeadMoe)]
        moe = model.config.moe_config
        self.loads = torch.zeros(len(self._experts), moe.num_heads, moe.num_experts, device=model.device)
        model.use_ops(ops)
        for index, experts in enumerate(self._experts):
            experts.ops = replace(ops, route=partial(self._route, ops, index))

    def _route(
        self, ops: PreviewOps, index: int, x: Tensor, gate: Tensor, bias: Tensor, top_k: int, norm: bool, scale: float
    ) -> Routes:
        routes = ops.route(x, gate, bias, top_k, norm, scale)
        if torch.is_grad_enabled():
            experts = torch.arange(self.loads.shape[2], device=x.device)
            is_chosen = (routes.expert_ids[..., None] == experts) & self.is_token[:, None, None]
            counts = is_chosen.sum((1, 2))
            self.loads[index].copy_(counts / counts.sum(1, keepdim=True))
        return routes

    @torch.no_grad()
    def rebalance(self) -> None:
        """Move the biases by what the last pass saw.

        Both stored biases are the same: there is no average to keep when the step is this small.
        """
        toward = BIAS_STEP * torch.sign(1 / self.loads.shape[2] - self.loads)
        for experts, moved in zip(self._experts, toward, strict=True):
            experts.router.expert_bias.add_(moved.flatten())
            experts.router.expert_bias_ema.copy_(experts.router.expert_bias)
