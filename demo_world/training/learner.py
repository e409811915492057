"""Gradient steps of one module, and the moving average of its weights, which is what is shipped."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from demo_world.training.average import MovingAverage
from demo_world.training.muon import Muon
from demo_world.training.pace import Pace

AVERAGE = 0.998
CLIP_NORM = 2.0
WARM_UP_STEPS = 30


@dataclass(frozen=True)
class LearningRates:
    """Of matrices and kernels (Muon) and of everything else (AdamW); `steady` is the share of the run before decay."""

    matrices: float
    others: float
    steady: float = 0.3


class Learner:
    """Trains the fp32 parameters of `module` in place by the gradients that they have.

    `stacks` says, by name, how many matrices a parameter holds along its first axis, where it is more than one.
    """

    def __init__(self, module: nn.Module, rates: LearningRates, *, stacks: Mapping[str, int] | None = None) -> None:
        self.module, self.rates = module, rates
        matrices: dict[int, list[nn.Parameter]] = {}
        others = []
        for name, parameter in module.named_parameters():
            if not parameter.requires_grad:
                continue
            if parameter[0].numel() > 1:
                matrices.setdefault((stacks or {}).get(name, 1), []).append(parameter)
            else:
                others.append(parameter)
        self._parameters = [*others, *(parameter for group in matrices.values() for parameter in group)]
        muon = Muon([{"params": group, "sets": count} for count, group in matrices.items()], lr=rates.matrices)
        adam = torch.optim.AdamW(others, lr=rates.others, betas=(0.9, 0.98), weight_decay=0.0)
        self._optimisers = ((muon, rates.matrices), (adam, rates.others))
        self._average = MovingAverage(module.state_dict(), keep=AVERAGE, head_start=10)

    def update(self, pace: Pace) -> None:
        """Learn from the gradients at the rate that fits the run's pace, and clear them."""
        nn.utils.clip_grad_norm_(self._parameters, CLIP_NORM)
        share = pace.rate(warm_up=WARM_UP_STEPS, steady=self.rates.steady)
        for optimiser, rate in self._optimisers:
            for group in optimiser.param_groups:
                group["lr"] = rate * share
            optimiser.step()
            optimiser.zero_grad()
        self._average.update(self.module.state_dict())

    @property
    def averaged(self) -> dict[str, Tensor]:
        """The moving average of the weights under their names."""
        return self._average.tensors
