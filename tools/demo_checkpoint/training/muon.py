"""Muon: momentum whose matrices are orthogonalised, so that every direction of a matrix learns at the same pace."""

# Shapes: E blocks (stacked matrices), R rows, C columns

from __future__ import annotations

import torch
from torch import Tensor

NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
"""Coefficients of the quintic iteration that takes singular values to about 1. Source: Keller Jordan, Muon (2024)."""
ITERATIONS = 5
MATCHED_RMS = 0.2
"""Size of an update per entry that Adam's learning rates fit. Source: Moonshot AI, Muon is scalable (2025)."""


def orthogonalise(matrices: Tensor) -> Tensor:
    """The nearest semi-orthogonal matrices, roughly: [E, R, C] with singular values between 0.7 and 1.2."""
    first, third, fifth = NEWTON_SCHULZ
    is_tall = matrices.shape[-2] > matrices.shape[-1]
    x = matrices.mT if is_tall else matrices
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(ITERATIONS):
        gram = x @ x.mT
        x = first * x + (third * gram + fifth * gram @ gram) @ x
    result: Tensor = x.mT if is_tall else x
    return result


class Muon(torch.optim.Optimizer):
    """For matrices [R, C], stacks of them [E, R, C] and convolutions; `sets` says how many are stacked along R."""

    def __init__(self, groups: list[dict[str, object]], *, lr: float, momentum: float = 0.95) -> None:
        super().__init__(groups, {"lr": lr, "momentum": momentum, "sets": 1})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """One update from the gradients."""
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                momentum: Tensor = state.setdefault("momentum", torch.zeros_like(parameter))
                momentum.mul_(group["momentum"]).add_(parameter.grad)
                ahead = parameter.grad + group["momentum"] * momentum
                if ahead.dim() > 3:  # a convolution's kernels, one row for each output
                    ahead = ahead.flatten(1)
                blocks = ahead.view(-1, ahead.shape[-2] // group["sets"], ahead.shape[-1])
                scale = MATCHED_RMS * max(blocks.shape[1:]) ** 0.5
                parameter.sub_(orthogonalise(blocks).reshape(parameter.shape), alpha=group["lr"] * scale)
