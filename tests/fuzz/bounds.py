"""Bounds on what reading may take: memory by the kernel, time by the processor's clock, which no busy machine moves."""

from __future__ import annotations

import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import NoReturn

MAX_MORE_BYTES = 2**30
MAX_CPU_S = 120
"""So long as only what never ends takes."""


@contextmanager
def bounded() -> Iterator[None]:
    """Inside, memory beyond a GiB more than now is refused, and what goes on and on is ended by a TimeoutError."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    before = signal.signal(signal.SIGVTALRM, _end)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MAX_MORE_BYTES, hard))
    signal.setitimer(signal.ITIMER_VIRTUAL, MAX_CPU_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _end(number: int, frame: FrameType | None) -> NoReturn:
    raise TimeoutError(f"no end after {MAX_CPU_S} s of computing")
