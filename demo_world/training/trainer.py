"""One step of training the preview model: loss, gradients, two optimisers, expert balance, averaged weights."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from demo_world.training.average import MovingAverage
from demo_world.training.balance import ExpertBalance
from demo_world.training.batches import Batch, clip_rows
from demo_world.training.flow import AUDIO_WEIGHT, draw_sigmas, flow_loss
from demo_world.training.muon import Muon
from demo_world.training.ops import training_ops
from magi2.models.preview.grouped import GroupedLinear
from magi2.models.preview.layout import ClipLayout
from magi2.models.preview.model import PreviewModel

MATRIX_RATE, OTHER_RATE = 4e-3, 2e-3
"""Of matrices inside the layers (Muon) and of everything else (AdamW)."""
GATE_SHARE = 0.2
"""Router gates learn at this share of the other rate; at all of it, experts starve."""
AVERAGE = 0.9985
CLIP_NORM = 1.0


class PreviewTrainer:
    """Trains `model` in place on batches of one layout. Optimisers work on fp32 copies, whatever it computes in.

    `generator` is on the model's device. A step reads nothing back to the host.
    """

    def __init__(self, model: PreviewModel, layout: ClipLayout, *, generator: torch.Generator) -> None:
        self.model, self.layout, self.generator = model, layout, generator
        self.balance = ExpertBalance(model, training_ops(), clip_rows(layout).is_token())
        self._masters = {name: nn.Parameter(p.detach().float().clone()) for name, p in model.named_parameters()}
        self._optimisers = _optimisers(model, self._masters)
        self._base_rates = [[group["lr"] for group in one.param_groups] for one in self._optimisers]
        self._average = MovingAverage(model.state_dict(), keep=AVERAGE, head_start=20)

    def step(self, batch: Batch, *, rate: float) -> tuple[Tensor, Tensor]:
        """Learn from one batch with freshly drawn noise; gives the losses (video, audio) before the update.

        `rate` is the share of the full learning rates.
        """
        sigmas = draw_sigmas(len(batch.video), self.generator)
        noise = self._noise(batch.video), self._noise(batch.audio)
        self.balance.is_token.copy_(clip_rows(self.layout).with_text(batch.is_text).is_token())
        self.model.zero_grad(set_to_none=True)
        video_loss, audio_loss = flow_loss(self.model, batch, sigmas, noise, self.layout)
        (video_loss + AUDIO_WEIGHT * audio_loss).backward()  # type: ignore[no-untyped-call]
        self._update(rate)
        return video_loss.detach(), audio_loss.detach()

    def _noise(self, like: Tensor) -> Tensor:
        return torch.randn(like.shape, generator=self.generator, device=like.device)

    def _update(self, rate: float) -> None:
        parameters = dict(self.model.named_parameters())
        for name, master in self._masters.items():
            gradient = parameters[name].grad
            master.grad = torch.zeros_like(master) if gradient is None else gradient.float()
        nn.utils.clip_grad_norm_(self._masters.values(), CLIP_NORM)
        for optimiser, base_rates in zip(self._optimisers, self._base_rates, strict=True):
            for group, base in zip(optimiser.param_groups, base_rates, strict=True):
                group["lr"] = base * rate
            optimiser.step()
        self.balance.rebalance()
        with torch.no_grad():
            for name, master in self._masters.items():
                parameters[name].copy_(master)
        self._average.update(self.model.state_dict() | self._masters)

    @property
    def averaged(self) -> dict[str, Tensor]:
        """The moving average of the weights under the published names: what is shipped in the end."""
        return self._average.tensors


def _optimisers(model: PreviewModel, masters: dict[str, nn.Parameter]) -> tuple[Muon, torch.optim.AdamW]:
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
    muon = Muon([{"params": group, "sets": count} for count, group in matrices.items()], lr=MATRIX_RATE)
    groups: list[dict[str, Any]] = [{"params": others}, {"params": gates, "lr": GATE_SHARE * OTHER_RATE}]
    return muon, torch.optim.AdamW(groups, lr=OTHER_RATE, betas=(0.9, 0.98), weight_decay=0.0)
