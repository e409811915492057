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
    """For matrices [R, C], stacks of them [E, R, C] and convolutions; `sets` says how many more are stacked along R."""

    def __init__(self, groups: list[dict[str, object]], *, lr: float, momentum: float = 0.95) -> None:
        super().__init__(groups, {"lr": lr, "momentum": momentum, "sets": 1})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """One update from the gradients. Matrices of one size, whosever they are, go through the products together."""
        alike: dict[torch.Size, list[tuple[Tensor, Tensor, float]]] = {}
        for group in self.param_groups:
            for parameter in group["params"]:
                blocks = self._blocks(parameter, group["momentum"], group["sets"])
                rate = group["lr"] * MATCHED_RMS * max(blocks.shape[1:]) ** 0.5
                alike.setdefault(blocks.shape[1:], []).append((parameter, blocks, rate))
        for members in alike.values():
            updates = orthogonalise(torch.cat([blocks for _, blocks, _ in members]))
            parts = updates.split([len(blocks) for _, blocks, _ in members])
            for (parameter, _, rate), update in zip(members, parts, strict=True):
                parameter.sub_(update.reshape(parameter.shape), alpha=rate)

    def _blocks(self, parameter: Tensor, keep: float, sets: int) -> Tensor:
        """The momentum after this gradient, looking ahead, as matrices [E, R, C]."""
        state = self.state[parameter]
        if not state:
            state["momentum"] = torch.zeros_like(parameter)
        gradient = parameter.grad
        assert gradient is not None
        momentum: Tensor = state["momentum"].mul_(keep).add_(gradient)
        ahead = gradient + keep * momentum
        if ahead.dim() > 3:  # a convolution's kernels, one row for each output
            ahead = ahead.flatten(1)
        return ahead.view(-1, ahead.shape[-2] // sets, ahead.shape[-1])
