"""Bytes that went to other ranks, and time that the model stood still for them."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


class Meter:
    """Counts bytes always, and measures waiting between `start` and `exposed_s`.

    Waiting on an accelerator is measured by events in its stream; the host only waits for them when asked.
    """

    def __init__(self, device: torch.device | None = None) -> None:
        self.sent_bytes: Counter[str] = Counter()
        self._device = device or torch.device("cpu")
        self._is_measuring = False
        self._seconds = 0.0
        self._events: list[tuple[Any, Any]] = []

    def count(self, name: str, size_bytes: int) -> None:
        """Note that this rank sends `size_bytes` to other ranks."""
        self.sent_bytes[name] += size_bytes

    def start(self) -> None:
        """Begin anew, with measuring."""
        self.sent_bytes.clear()
        self._events.clear()
        self._seconds, self._is_measuring = 0.0, True

    def exposed_s(self) -> float:
        """Seconds since `start` in which this rank's stream had nothing to do but wait; ends measuring."""
        self._is_measuring = False
        if self._events:
            torch.get_device_module(self._device).synchronize()
            self._seconds += sum(begin.elapsed_time(end) for begin, end in self._events) / 1000
            self._events.clear()
        return self._seconds

    @contextmanager
    def exposed(self) -> Iterator[None]:
        """Around a wait."""
        if not self._is_measuring:
            yield
        elif self._device.type == "cpu":
            begin = time.perf_counter()
            yield
            self._seconds += time.perf_counter() - begin
        else:
            events = torch.get_device_module(self._device).Event
            begin_event, end_event = events(enable_timing=True), events(enable_timing=True)
            begin_event.record()
            yield
            end_event.record()
            self._events.append((begin_event, end_event))
