"""Keeping experts evenly busy: the selection bias of each moves a little toward equal load after every step."""

# Shapes: M MoE heads, E experts per head, N tokens, K routes

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from magi2.models.preview.mlp import MultiHeadMoe
from magi2.models.preview.model import PreviewModel
from magi2.models.preview.moe import Routes, route
from magi2.models.preview.ops import PreviewOps

BIAS_STEP = 4e-3
"""With half of it experts starved within a few hundred steps."""


class ExpertBalance:
    """Watches the routing of a model from outside, through its table of operations; passes without gradients not."""

    def __init__(self, model: PreviewModel) -> None:
        self._experts = [module for module in model.modules() if isinstance(module, MultiHeadMoe)]
        self._loads: list[Tensor] = []
        self._num_experts = model.config.moe_config.num_experts
        model.use_ops(replace(PreviewOps(), route=self._route))

    def _route(self, x: Tensor, gate: Tensor, bias: Tensor, top_k: int, normalise: bool, scale: float) -> Routes:
        routes = route(x, gate, bias, top_k, normalise, scale)
        if torch.is_grad_enabled():
            self._loads.append(self._shares(routes))
        return routes

    def _shares(self, routes: Routes) -> Tensor:
        chosen = torch.nn.functional.one_hot(routes.expert_ids, self._num_experts).sum((1, 2))
        return chosen / chosen.sum(1, keepdim=True)

    @torch.no_grad()
    def rebalance(self) -> Tensor:
        """Move the biases by what one forward pass saw; gives the experts' shares of their heads' routes [layer, M, E].

        Both stored biases are the same: there is no average to keep when the step is this small.
        """
        loads, self._loads = torch.stack(self._loads), []
        for experts, load in zip(self._experts, loads, strict=True):
            toward = BIAS_STEP * torch.sign(1 / self._num_experts - load).flatten()
            experts.router.expert_bias.add_(toward)
            experts.router.expert_bias_ema.copy_(experts.router.expert_bias)
        return loads
