"""Gradient steps of one module, and the moving average of its weights, which is what is shipped."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from tools.demo_checkpoint.training.muon import Muon
from tools.demo_checkpoint.training.pace import Pace

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
    """Trains the fp32 parameters of `module` in place."""

    def __init__(self, module: nn.Module, rates: LearningRates) -> None:
        self.module, self.rates, self.step_count = module, rates, 0
        self._parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
        matrices = [parameter for parameter in self._parameters if parameter[0].numel() > 1]
        others = [parameter for parameter in self._parameters if parameter[0].numel() == 1]
        self._muon = Muon([{"params": matrices}], lr=rates.matrices)
        self._adam = torch.optim.AdamW(others, lr=rates.others, betas=(0.9, 0.98), weight_decay=0.0)
        self.averaged = {name: tensor.detach().clone() for name, tensor in module.state_dict().items()}

    def step(self, loss: Tensor, pace: Pace) -> None:
        """Learn from `loss` at the rate that fits the run's pace."""
        for parameter in self._parameters:
            parameter.grad = None
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self._parameters, CLIP_NORM)
        share = pace.rate(warm_up=WARM_UP_STEPS, steady=self.rates.steady)
        for optimiser, rate in ((self._muon, self.rates.matrices), (self._adam, self.rates.others)):
            optimiser.param_groups[0]["lr"] = rate * share
            optimiser.step()
        self.step_count += 1
        self._average()

    @torch.no_grad()
    def _average(self) -> None:
        """Early averages follow closely, so that the start is soon forgotten."""
        keep = min(AVERAGE, (self.step_count + 1) / (self.step_count + 10))
        current = self.module.state_dict()
        torch._foreach_lerp_(list(self.averaged.values()), [current[name] for name in self.averaged], 1 - keep)
