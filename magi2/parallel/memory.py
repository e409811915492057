"""Whether a layout fits the cards, by arithmetic, before any weight is read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from magi2.errors import ConfigError
from magi2.parallel.layout import ParallelLayout, name_layouts, nearest_layouts

RESERVE_BYTES = 3 << 30
"""Context of the runtime, channels of the collectives and workspaces of the libraries on an accelerator."""

_GIB = 1 << 30


@dataclass(frozen=True)
class Footprint:
    """Bytes that one rank needs: weights, what a step holds at its fullest, exchange buffers, libraries' own memory."""

    weights: int
    activations: int
    buffers: int
    reserve: int

    @property
    def total(self) -> int:
        """All of it."""
        return self.weights + self.activations + self.buffers + self.reserve

    def __str__(self) -> str:
        parts = ", ".join(f"{name} {size / _GIB:.1f}" for name, size in vars(self).items())
        return f"{self.total / _GIB:.1f} GiB a rank ({parts})"


def check_memory(
    layout: ParallelLayout, footprint: Callable[[ParallelLayout], Footprint | None], *, tokens: str, card_bytes: int
) -> Footprint:
    """What one rank of `layout` needs, if cards of `card_bytes` have it. `footprint` is None where heads do not divide.

    Raises: ConfigError naming need, `tokens` (what it was counted for), card and the nearest layouts that fit.
    """

    def fits(other: ParallelLayout) -> bool:
        need = footprint(other)
        return need is not None and need.total <= card_bytes

    need = footprint(layout)
    if need is None or need.total > card_bytes:
        message = f"layout {layout} needs {need} for {tokens}, a card has {card_bytes / _GIB:.1f} GiB"
        raise ConfigError(message, hint=name_layouts(nearest_layouts(layout, fits)))
    return need
