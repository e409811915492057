"""A stage whose clips are made by several ranks: rank 0 reads and publishes, all of them compute."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

import torch
from torch import Tensor

from magi2 import platform
from magi2.artifacts.recipe import Recipe
from magi2.errors import GroupLostError, InfrastructureError, Magi2Error
from magi2.recipes.result import StageResult
from magi2.stages.base import Models, Product, Stage
from magi2.stages.snapshots import LoopState, SnapshotWriter, snapshot_name
from magi2.types import Clip

logger = logging.getLogger(__name__)

Inputs = TypeVar("Inputs")
Outputs = TypeVar("Outputs")


@dataclass(frozen=True)
class _Order(Generic[Inputs]):
    """What rank 0 tells the others: to make a clip, or without one to load the models."""

    clip: Clip | None = None
    inputs: Inputs | None = None


class TeamStage(Stage[Models], Generic[Models, Inputs, Outputs]):
    """Base of stages for many ranks.

    Rank 0 calls `run`, all others `follow`: they hear what to compute, with everything it takes, and never look at the
    store. So all ranks pass the same collectives in the same order, whatever was reused, skipped or failed before.
    """

    @abstractmethod
    def read(self, clip: Clip) -> Inputs:
        """What it takes to make the clip, on the host; called on rank 0."""

    @abstractmethod
    def compute(self, clip: Clip, inputs: Inputs, models: Models, folder: Path | None) -> Outputs:
        """This rank's part of the clip. `folder` is that of the artifact, None on ranks that do not publish it."""

    @abstractmethod
    def write(self, clip: Clip, outputs: Outputs, folder: Path) -> Product:
        """The clip's artifact from what rank 0 computed."""

    def check_memory(self) -> None:
        """Raises: ConfigError when the models with the clips of this run do not fit the accelerator."""

    def before_load(self) -> None:
        self.check_memory()
        if self.context.team.leads:
            self.context.team.tell(_Order())

    def run(self, clips: Sequence[Clip]) -> list[StageResult]:
        results = super().run(clips)
        self.context.team.tell(None)
        return results

    def follow(self) -> None:
        """Do what rank 0 says until it has no more clips. Raises what `load` does, and GroupLostError."""
        while True:
            self.context.progress.waiting()
            order: _Order[Inputs] | None = self.context.team.hear()
            if order is None:
                return
            models = self.models()
            if order.clip is not None and order.inputs is not None:
                try:
                    self._compute_together(order.clip, order.inputs, models, None)
                except GroupLostError:
                    raise
                except Magi2Error as error:
                    logger.warning("clip %s failed: %s", order.clip.short_id, error)
                    platform.empty_cache(accelerator=self.context.accelerator)

    def make(self, clip: Clip, models: Models, folder: Path) -> Product:
        inputs = self.read(clip)
        self.context.team.tell(_Order(clip, inputs))
        return self.write(clip, self._compute_together(clip, inputs, models, folder), folder)

    def begin_steps(self, clip: Clip, done: int, total: int) -> None:
        """Say that the clip's denoising begins, or goes on after step `done`."""
        progress = self.context.progress
        (progress.resumed if done else progress.step)(self.name, clip, done, total)

    def snapshots(
        self, clip: Clip, generator_state: Tensor, show: Callable[[Mapping[str, Tensor]], None] | None = None
    ) -> AbstractContextManager[Callable[[LoopState], None] | None]:
        """The way to save the states of a clip's loop; none on ranks that do not lead, or when none are wanted.

        What is saved is given to `show` as well.
        """
        context = self.context
        if not context.team.leads or context.snapshot_every == 0:
            return nullcontext()
        return SnapshotWriter(context.store, self.recipe(clip), context.team.mesh.layout, generator_state, show)

    def published(self, recipe: Recipe) -> None:
        self.context.store.remove_document(snapshot_name(recipe))

    def _compute_together(self, clip: Clip, inputs: Inputs, models: Models, folder: Path | None) -> Outputs:
        """What this rank computed, once it went well on all of them. Raises as `Team.settle` does."""
        team = self.context.team
        if team.size == 1:
            return self.compute(clip, inputs, models, folder)
        try:
            outputs = self.compute(clip, inputs, models, folder)
            platform.synchronize(accelerator=self.context.accelerator)
        except torch.AcceleratorError as error:
            raise GroupLostError(InfrastructureError(f"accelerator: {error}"), clip.clip_id) from error
        except Exception as error:
            failure = self.clip_error(error)
            team.settle(clip, failure)
            raise failure from error
        team.settle(clip, None)
        return outputs
