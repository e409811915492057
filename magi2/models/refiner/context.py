"""What is prepared for a text before the steps, and what a stage may ask of a refiner."""

# Shapes: S tokens (video in block order, audio, text), T tail tokens (audio, text), D hidden, R rotary angles,
# H query heads, G key-value heads, d head size

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from magi2.models.refiner.ops import RefinerOps
from magi2.models.refiner.windows import WindowGrid

Run = tuple[int, int, int]  # expert, first token, token after the last


@dataclass(frozen=True, eq=False)
class RefinerContext:
    """All that one text (and audio) gives the model; the same in every step of a clip."""

    grid: WindowGrid
    tail: Tensor  # [T, D] embedded audio and text rows, compute dtype
    rope: Tensor  # [S, R] fp32 rotary table
    num_audio: int
    ops: RefinerOps
    plan: Any  # what `ops.attend` wants
    shared_runs: tuple[Run, ...]
    modality_runs: tuple[Run, ...]

    def runs(self, experts: int) -> tuple[Run, ...]:
        """The chunks of tokens for a layer with so many sets of weights."""
        return self.shared_runs if experts == 1 else self.modality_runs

    def attend(self, q_SHd: Tensor, k_SGd: Tensor, v_SGd: Tensor) -> Tensor:
        """Windowed attention [S, H, d] of video queries, and of the tail's unless they are left out, over all keys."""
        return self.ops.attend(q_SHd, k_SGd, v_SGd, self.grid, self.plan)


class Refiner(Protocol):
    """What a stage needs of a refiner, on one rank or on many. Full velocities on every rank."""

    def prepare_grid(self, size: tuple[int, int, int]) -> WindowGrid: ...

    def prepare(self, grid: WindowGrid, text_embeds: Tensor, audio: Tensor | None = None) -> RefinerContext: ...

    def __call__(self, latents: Tensor, context: RefinerContext) -> Tensor: ...
