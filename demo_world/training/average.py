"""The moving average of a module's weights, which is what is shipped."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor


class MovingAverage:
    """Averages in fp32, by name. An update keeps at most `keep` of what was; early ones, by `head_start`, keep less,
    so that the start is soon forgotten.
    """

    def __init__(self, tensors: Mapping[str, Tensor], *, keep: float, head_start: int) -> None:
        self.tensors = {name: tensor.detach().float().clone() for name, tensor in tensors.items()}
        self._keep, self._head_start, self._updates = keep, head_start, 0

    @torch.no_grad()
    def update(self, current: Mapping[str, Tensor]) -> None:
        """Move toward the values that the tensors have now."""
        self._updates += 1
        keep = min(self._keep, (self._updates + 1) / (self._updates + self._head_start))
        torch._foreach_lerp_(list(self.tensors.values()), [current[name].float() for name in self.tensors], 1 - keep)
