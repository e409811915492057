"""Memory for exchanges, taken once and used in every layer and step."""

from __future__ import annotations

from math import prod

import torch
from torch import Tensor


class Buffers:
    """One buffer for each name, dtype and device, grown when a clip needs more. What it held before is lost."""

    def __init__(self) -> None:
        self._held: dict[tuple[str, torch.dtype, torch.device], Tensor] = {}

    def take(self, name: str, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """A contiguous tensor of `shape` with the dtype and device of `like`, of undefined values."""
        key, count = (name, like.dtype, like.device), prod(shape)
        held = self._held.get(key)
        if held is None or held.numel() < count:
            self._held[key] = held = like.new_empty(count)
        return held[:count].view(shape)
