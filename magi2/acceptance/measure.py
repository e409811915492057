"""Milliseconds of a call by the device's own clock, and what the device's ceilings allow.

The floor of a part is the larger of its operations over the device's rate on a large bf16 product and its bytes over
the device's copy rate, both measured in the same run.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import torch

from magi2 import platform

GIB = 2**30


@dataclass(frozen=True)
class Ceilings:
    """Bytes per second of a copy (read and written), operations per second of a bf16 product."""

    bytes_per_s: float
    flops_per_s: float

    def floor_ms(self, flops: float, size: float) -> float:
        """Milliseconds that neither ceiling allows to undercut."""
        return 1e3 * max(flops / self.flops_per_s, size / self.bytes_per_s)

    def __str__(self) -> str:
        return f"copy {self.bytes_per_s / 1e12:.2f} TB/s, bf16 product {self.flops_per_s / 1e12:.0f} TFLOP/s"


@dataclass(frozen=True)
class Result:
    """A measured part: milliseconds, those of its floor (0 where it has none), and their ratio."""

    part: str
    tokens: int
    ms: float
    floor_ms: float

    def as_json(self) -> dict[str, Any]:
        """Fields and the ratio, rounded for reading."""
        values = {
            "ms": round(self.ms, 3),
            "floor_ms": round(self.floor_ms, 3),
            "ratio": round(self.ms / self.floor_ms, 2) if self.floor_ms else None,
        }
        return asdict(self) | values


class Mark(Protocol):
    """A moment of a device's work."""

    def elapsed_time(self, end: Any, /) -> float: ...


class _HostMark:
    """A moment of the host's clock, where the host computes."""

    def __init__(self) -> None:
        self._s = time.perf_counter()

    def elapsed_time(self, end: _HostMark, /) -> float:
        return 1e3 * (end._s - self._s)


def mark(device: torch.device) -> Mark:
    """Now, in the order of the device's work; milliseconds to a later mark can be asked for after `settle`."""
    if device.type == "cpu":
        return _HostMark()
    event: Mark = torch.get_device_module(device).Event(enable_timing=True)
    event.record()  # type: ignore[attr-defined]
    return event


def settle(device: torch.device) -> None:
    """Wait for all that the device was given."""
    if device.type != "cpu":
        torch.get_device_module(device).synchronize()


def release() -> None:
    """Give back memory that nothing uses any more."""
    gc.collect()
    platform.empty_cache()


def timed(
    function: Callable[[], object], repeats: int = 7, *, warm_up: int = 2, device: torch.device | None = None
) -> float:
    """Median milliseconds of a call after some calls that do not count; `device` is by default the accelerator."""
    at = device or platform.device()
    for _ in range(warm_up):
        function()
    spans = []
    for _ in range(repeats):
        start = mark(at)
        function()
        spans.append((start, mark(at)))
    settle(at)
    return float(statistics.median(start.elapsed_time(end) for start, end in spans))


def measure_ceilings(device: torch.device) -> Ceilings:
    """Both ceilings, on random data far larger than the cache; on the CPU on as much as takes no time."""
    elements, side = (2**22, 256) if device.type == "cpu" else (2**30, 8192)
    source = torch.randn(elements, device=device).bfloat16()
    target = torch.empty_like(source)
    copy = timed(lambda: target.copy_(source), device=device)
    a, b = (torch.randn(side, side, device=device).bfloat16() for _ in range(2))
    product = timed(lambda: a @ b, device=device)
    return Ceilings(2 * source.nbytes / copy * 1e3, 2 * side**3 / product * 1e3)
