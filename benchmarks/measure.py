"""Milliseconds of a call by device events, and what the device's own ceilings allow.

The floor of a part is the larger of its operations over the device's rate on a large bf16 product and its bytes over
the device's copy rate, both measured in the same run.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch


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
    """A measured part: milliseconds, those of its floor, and their ratio."""

    part: str
    tokens: int
    ms: float
    floor_ms: float

    def as_json(self) -> dict[str, Any]:
        """Fields and the ratio, rounded for reading."""
        values = {
            "ms": round(self.ms, 3),
            "floor_ms": round(self.floor_ms, 3),
            "ratio": round(self.ms / self.floor_ms, 2),
        }
        return asdict(self) | values


def timed(function: Callable[[], object], repeats: int = 7, *, warm_up: int = 2) -> float:
    """Median milliseconds of a call, by device events, after some calls that do not count."""
    for _ in range(warm_up):
        function()
    spans = []
    for _ in range(repeats):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        function()
        end.record()
        spans.append((start, end))
    torch.cuda.synchronize()
    return float(statistics.median(start.elapsed_time(end) for start, end in spans))


def replayed(function: Callable[[], object]) -> Callable[[], None]:
    """The call as a captured graph, which takes the host out of the measurement."""
    function()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        function()
    return graph.replay


def measure_ceilings(device: torch.device) -> Ceilings:
    """Both ceilings, on random data far larger than the cache."""
    source = torch.randn(2**30, device=device).bfloat16()
    target = torch.empty_like(source)
    copy = timed(lambda: target.copy_(source))
    a, b = (torch.randn(8192, 8192, device=device).bfloat16() for _ in range(2))
    product = timed(lambda: a @ b)
    return Ceilings(2 * source.nbytes / copy * 1e3, 2 * 8192**3 / product * 1e3)
