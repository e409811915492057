"""Which kernel does a step in this process: what was chosen when a model asked, by the step's name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

_CHOSEN: dict[str, str] = {}

CHOSEN: Mapping[str, str] = MappingProxyType(_CHOSEN)
"""`attention`, `experts`, `FP8 experts` and `window attention`, as far as asked for, to what computes them."""


def kernels_at_work(steps: Iterable[str], chosen: Mapping[str, str] = CHOSEN) -> str:
    """What computes each of the steps, as one line; plain torch where no kernel was chosen."""
    return ", ".join(f"{step}: {chosen.get(step, 'torch')}" for step in steps) or "none"


def choose(step: str, kernel: str) -> None:
    """Remember it."""
    _CHOSEN[step] = kernel
