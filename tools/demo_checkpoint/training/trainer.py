"""One step of training the preview model: loss, gradients, two optimisers, expert balance, averaged weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from magi2.models.preview.grouped import GroupedLinear
from magi2.models.preview.model import PreviewModel
from tools.demo_checkpoint.training.balance import ExpertBalance
from tools.demo_checkpoint.training.batches import Example
from tools.demo_checkpoint.training.flow import AUDIO_WEIGHT, draw_sigmas, flow_loss
from tools.demo_checkpoint.training.muon import Muon

WARM_UP_STEPS = 100
STEADY_SHARE = 0.35
"""Of all steps, before the learning rate falls to zero in a line."""
GATE_RATE = 0.2
"""Router gates learn at this share of the rate; at the full one, experts starve."""
AVERAGE = 0.9985
CLIP_NORM = 1.0


@dataclass(frozen=True)
class Rates:
    """Learning rates of matrices inside the layers (Muon) and of everything else (AdamW)."""

    matrices: float = 4e-3
    others: float = 2e-3


class PreviewTrainer:
    """Trains `model` in place. Optimisers work on fp32 copies, whatever dtype the model computes in.

    `averaged` holds the moving average of the weights under the published names: what is shipped in the end.
    """

    def __init__(
        self, model: PreviewModel, *, total_steps: int, generator: torch.Generator, rates: Rates | None = None
    ) -> None:
        self.model, self.generator, self.total_steps = model, generator, total_steps
        self.step_count = 0
        self.balance = ExpertBalance(model)
        self._masters = {name: nn.Parameter(p.detach().float().clone()) for name, p in model.named_parameters()}
        self._optimisers = _optimisers(model, self._masters, rates or Rates())
        self._base_rates = [[group["lr"] for group in one.param_groups] for one in self._optimisers]
        self.averaged = {name: tensor.detach().float().clone() for name, tensor in model.state_dict().items()}

    def step(self, examples: Sequence[Example]) -> tuple[Tensor, Tensor]:
        """Learn from one batch with freshly drawn noise; gives the losses (video, audio) before the update."""
        sigmas = draw_sigmas(len(examples), self.generator).to(self.model.device)
        noise = [(self._noise(example.video), self._noise(example.audio)) for example in examples]
        self.model.zero_grad(set_to_none=True)
        video_loss, audio_loss = flow_loss(self.model, examples, sigmas, noise)
        (video_loss + AUDIO_WEIGHT * audio_loss).backward()  # type: ignore[no-untyped-call]
        self._update()
        return video_loss.detach(), audio_loss.detach()

    def _noise(self, like: Tensor) -> Tensor:
        return torch.randn(like.shape, generator=self.generator).to(like.device)

    def _update(self) -> None:
        parameters = dict(self.model.named_parameters())
        for name, master in self._masters.items():
            gradient = parameters[name].grad
            master.grad = torch.zeros_like(master) if gradient is None else gradient.float()
        nn.utils.clip_grad_norm_(self._masters.values(), CLIP_NORM)
        for optimiser, base_rates in zip(self._optimisers, self._base_rates, strict=True):
            for group, base in zip(optimiser.param_groups, base_rates, strict=True):
                group["lr"] = base * self._rate_share()
            optimiser.step()
        self.step_count += 1
        self.balance.rebalance()
        with torch.no_grad():
            for name, master in self._masters.items():
                parameters[name].copy_(master)
            self._average()

    def _rate_share(self) -> float:
        left = 1 - self.step_count / self.total_steps
        return min(1.0, (self.step_count + 1) / WARM_UP_STEPS, max(0.0, left / (1 - STEADY_SHARE)))

    def _average(self) -> None:
        """Early averages follow closely, so that the start is soon forgotten."""
        keep = min(AVERAGE, (self.step_count + 1) / (self.step_count + 20))
        current = self.model.state_dict() | self._masters
        for name, average in self.averaged.items():
            average.lerp_(current[name].float(), 1 - keep)


def _optimisers(model: PreviewModel, masters: dict[str, nn.Parameter], rates: Rates) -> tuple[Muon, torch.optim.AdamW]:
    """Muon for every matrix of the layers, one modality's and one expert's at a time; AdamW for the rest."""
    sets = {f"{name}.weight": part.sets for name, part in model.named_modules() if isinstance(part, GroupedLinear)}
    matrices: dict[int, list[nn.Parameter]] = {}
    gates, others = [], []
    for name, master in masters.items():
        if name in sets or ".W_" in name:
            matrices.setdefault(sets.get(name, 1), []).append(master)
        elif name.endswith("moe_mlp.gate"):
            gates.append(master)
        else:
            others.append(master)
    muon = Muon([{"params": group, "sets": count} for count, group in matrices.items()], lr=rates.matrices)
    groups: list[dict[str, Any]] = [{"params": others}, {"params": gates, "lr": GATE_RATE * rates.others}]
    return muon, torch.optim.AdamW(groups, lr=rates.others, betas=(0.9, 0.98), weight_decay=0.0)
