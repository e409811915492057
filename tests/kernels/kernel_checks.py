"""Random inputs for kernels, and how far a result may be from plain torch."""

from __future__ import annotations

import torch
from torch import Tensor

TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3}


def error(actual: Tensor, expected: Tensor) -> float:
    return float((actual.double() - expected.double()).norm() / expected.double().norm())


def random(device: torch.device, *shape: int, seed: int = 0, scale: float = 1.0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(shape, generator=generator) * scale).to(device)
