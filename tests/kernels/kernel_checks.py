"""Random inputs for kernels, and how far a result may be from plain torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import triton.language as tl
from torch import Tensor
from triton.runtime import interpreter

TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3}


def error(actual: Tensor, expected: Tensor) -> float:
    return float((actual.double() - expected.double()).norm() / expected.double().norm())


def random(device: torch.device, *shape: int, seed: int = 0, scale: float = 1.0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(shape, generator=generator) * scale).to(device)


def random_ids(device: torch.device, heads: int, tokens: int, top_k: int, num_experts: int) -> Tensor:
    generator = torch.Generator().manual_seed(tokens)
    scores = torch.rand(heads, tokens, num_experts, generator=generator)
    return scores.topk(top_k).indices.int().to(device)


def round_e4m3_exactly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let Triton's interpreter round to e4m3 as devices do: its own cast cuts some bits off, and knows no NaN."""
    stock = interpreter._convert_float

    def convert(values: np.ndarray, source: Any, target: Any, rounding: Any) -> np.ndarray:
        if source == tl.float32 and target == tl.float8e4nv:
            rounded: np.ndarray = torch.from_numpy(values).to(torch.float8_e4m3fn).view(torch.uint8).numpy()
            return rounded
        converted: np.ndarray = stock(values, source, target, rounding)
        return converted

    monkeypatch.setattr(interpreter, "_convert_float", convert)
