"""The guard that other tests rely on must notice every way to wait for the device."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
from torch import Tensor


@pytest.mark.parametrize(
    "wait",
    [
        lambda values: values[0].item(),
        lambda values: values.nonzero(),
        lambda values: values[values > 1],
        lambda values: bool(values[0]),
    ],
)
def test_waiting_is_noticed(
    wait: Callable[[Tensor], Any], device: torch.device, no_host_sync: Callable[[], AbstractContextManager[None]]
) -> None:
    values = torch.arange(3, device=device)
    with pytest.raises((AssertionError, RuntimeError)), no_host_sync():
        wait(values)
    with no_host_sync():
        values.add(1)
