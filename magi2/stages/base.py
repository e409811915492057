"""A stage: for each clip find its artifact, or load the models once, make the artifact, check it and publish it."""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Generic, Literal, TypeVar

import torch
from torch import Tensor

from magi2 import platform
from magi2.artifacts.manifest import MADE_BY, Manifest, ManifestDraft
from magi2.artifacts.recipe import Recipe, sha256_file
from magi2.artifacts.tensors import save_tensors
from magi2.errors import (
    CancelledError,
    CorruptedArtifactError,
    GroupLostError,
    InfrastructureError,
    Magi2Error,
    OutOfMemoryError,
    in_one_line,
)
from magi2.files import machine_error
from magi2.recipes.result import StageResult, measures_of
from magi2.stages.context import StageContext
from magi2.stages.contracts import TENSORS, Contract, check_contract, check_promise, contract_of
from magi2.stages.software import made_by
from magi2.types import Clip, StageName

logger = logging.getLogger(__name__)

Models = TypeVar("Models")

DIFFERS = "differs_from_stored:"
"""Flag of a forced stage whose payload, named after it, came out with another digest than the stored one."""


@dataclass(frozen=True)
class Product:
    """What a stage made: payload files, flags for people, a report; `recipe` when another mode than planned ran."""

    files: Mapping[str, Path]
    flags: tuple[str, ...] = ()
    report: Mapping[str, Any] = field(default_factory=dict)
    recipe: Recipe | None = None


class Stage(ABC, Generic[Models]):
    """Base of all stages. Subclasses say what determines the artifact, what to load, and how to make one."""

    name: ClassVar[StageName]
    kernels: tuple[str, ...] = ()
    """Steps of `magi2.kernels.chosen` that this stage may compute by kernels."""

    def __init__(self, context: StageContext) -> None:
        self.context = context
        self.clips: Sequence[Clip] = ()  # of this run; none on a rank that only follows
        self._models: Models | None = None

    @abstractmethod
    def recipe(self, clip: Clip) -> Recipe:
        """The recipe of the clip's artifact. Raises InputError when an earlier stage has not run."""

    @abstractmethod
    def load(self) -> Models:
        """The models, on the device. Called once, before the first clip that is not in the store."""

    @abstractmethod
    def make(self, clip: Clip, models: Models, folder: Path) -> Product:
        """The clip's artifact, written into `folder`."""

    def run(self, clips: Sequence[Clip]) -> list[StageResult]:
        """One result per clip, in order. A clip that fails does not touch its neighbours.

        Raises: errors in loading the models, which are everybody's; what `before_clip` raises; GroupLostError when
        nothing more may run here.
        """
        self.context.progress.stage_started(self.name, len(clips))
        self.clips = clips
        results: list[StageResult] = []
        try:
            self.context.patience(lambda: self.make_shared(clips))
            for clip in clips:
                self.context.before_clip()
                results.append(self._run_clip(clip))
                self.context.progress.clip_finished(results[-1])
        except _LoadError as error:
            raise error.cause from None
        return results

    def make_shared(self, clips: Sequence[Clip]) -> None:
        """Make what many clips need, before the first one; its errors are everybody's."""

    def before_load(self) -> None:
        """Do what has to come before `load`; its errors are everybody's."""

    def models(self) -> Models:
        """The models, loaded on first use."""
        if self._models is None:
            started = time.monotonic()
            self.context.progress.loading(self.name)
            try:
                self.context.patience(self.before_load)
                self._models = self.load()
            except Exception as error:
                raise _LoadError(error) from error
            seconds = time.monotonic() - started
            logger.info("stage %s loaded its models in %.1f s", self.name.value, seconds)
            self.context.progress.models_loaded(self.name, seconds)
        return self._models

    def flags(self, manifest: Manifest, product: Product | None) -> tuple[str, ...]:
        """The flags of a clip: its artifact's, and those of a product that found an equal artifact in the store."""
        return tuple(dict.fromkeys([*manifest.flags, *(product.flags if product else ())]))

    def obtain(self, recipe: Recipe, make: Callable[[Models, Path], Product]) -> tuple[Manifest, Product | None]:
        """The artifact of `recipe`, and what had to be made for it. A damaged one goes to quarantine and is made anew.

        A stage that is forced makes its artifact again, compares digests and leaves the stored one as it is.
        """
        with self.context.artifact_lock(recipe):
            return self._find_or_make(recipe, make)

    def _find_or_make(self, recipe: Recipe, make: Callable[[Models, Path], Product]) -> tuple[Manifest, Product | None]:
        store = self.context.store
        try:
            found = store.find(recipe.stage, recipe.key)
            if found is not None:
                self.check_found(found)
        except CorruptedArtifactError as error:
            logger.error("artifact %s/%s is damaged and is made anew: %s", recipe.stage, recipe.key, error)
            store.condemn(recipe.stage, recipe.key, why=str(error))
            found = None
        if found is not None:
            return found, self._audit(found, make) if self.name in self.context.force else None
        models = self.models()
        platform.reset_peak_memory(accelerator=self.context.accelerator)
        started = time.monotonic()
        with store.stage_folder(recipe.stage, recipe.key) as folder:
            logger.info("artifact %s/%s is being made", recipe.stage, recipe.key)
            product = make(models, folder)
            platform.synchronize(accelerator=self.context.accelerator)
            peak = platform.memory_stats(accelerator=self.context.accelerator).peak
            draft = ManifestDraft(
                recipe=product.recipe or recipe,
                device=self.context.device.type,
                timings={"make_s": time.monotonic() - started},
                flags=product.flags,
                report={**product.report, **self._circumstances(), "peak_memory_bytes": peak},
            )
            # What was made is kept while the store is away, rather than made once more.
            manifest = self.context.patience(lambda: store.publish(draft, product.files))
        self.context.patience(lambda: self.published(recipe))
        return manifest, product

    def check_found(self, manifest: Manifest) -> None:
        """Raises CorruptedArtifactError when a stored artifact is of no use; by default its manifest tells."""
        check_promise(manifest, contract_of(manifest.recipe, self.context.book.profile))

    def published(self, recipe: Recipe) -> None:
        """The artifact of `recipe` is stored, or made again and compared: what was kept to make it may go."""

    def differences(self, manifest: Manifest, product: Product) -> tuple[str, ...]:
        """Payloads of a stored artifact that came out otherwise this time; a file that it lacks is no difference."""
        stored = {name: payload.sha256 for name, payload in manifest.payloads.items()}
        both = ((name, path) for name, path in product.files.items() if name in stored)
        return tuple(name for name, path in both if stored[name] != sha256_file(path))

    def _audit(self, manifest: Manifest, make: Callable[[Models, Path], Product]) -> Product:
        with self.context.store.stage_folder(manifest.stage, manifest.key) as folder:
            product = make(self.models(), folder)
            differing = tuple(f"{DIFFERS}{name}" for name in self.differences(manifest, product))
        self.context.patience(lambda: self.published(manifest.recipe))
        return replace(product, flags=(*product.flags, *differing))

    def save(self, folder: Path, tensors: Mapping[str, Tensor], contract: Contract) -> dict[str, Path]:
        """Write the tensors of an artifact after checking them. Raises ContractError (shape, dtype, non-finite)."""
        path = folder / TENSORS
        check_contract(save_tensors(path, tensors), contract, self.name.value)
        return {TENSORS: path}

    def on_step(self, clip: Clip) -> Callable[[int, int], None]:
        """A callback that reports the clip's denoising steps."""
        return lambda done, total: self.context.progress.step(self.name, clip, done, total)

    def _circumstances(self) -> dict[str, Any]:
        """What no recipe names, for people: the settings' names, and the set of libraries and programs at work."""
        context = self.context
        return {
            "profile": context.book.profile.name,
            "layout": str(context.team.mesh.layout),
            MADE_BY: made_by(context.ffmpeg, self.kernels, context.accelerator),
        }

    def clip_error(self, error: Exception) -> Magi2Error:
        """The error as one of a single clip, with the sizes when memory was short."""
        if isinstance(error, Magi2Error):
            return machine_error(error) or error
        if isinstance(error, torch.OutOfMemoryError | MemoryError):
            memory = platform.memory_stats(accelerator=self.context.accelerator)
            held, peak, total = (size / 2**30 for size in memory)
            sizes = f"rank {self.context.team.mesh.rank} held {held:.2f} GiB, {peak:.2f} at most, of {total:.2f} GiB"
            return OutOfMemoryError(f"out of memory: {in_one_line(error)}; {sizes}")
        if isinstance(error, torch.distributed.DistError):
            return InfrastructureError(f"{type(error).__name__}: {in_one_line(error)}")
        if fault := machine_error(error):
            return fault
        logger.exception("unforeseen error, the other clips go on")
        return Magi2Error(f"unforeseen {type(error).__name__}: {in_one_line(error)}")

    def _run_clip(self, clip: Clip) -> StageResult:
        started = time.monotonic()
        try:
            manifest, product = self.context.patience(lambda: self._obtain(clip))
        except (_LoadError, GroupLostError, CancelledError):
            raise
        except Magi2Error as error:
            return self._failed(clip, started, error)
        state: Literal["made", "reused"] = "made" if product else "reused"
        logger.info("clip %s %s: %s", clip.short_id, self.name.value, state)
        seconds, flags = time.monotonic() - started, self.flags(manifest, product)
        return StageResult(
            self.name, clip, state, seconds, manifest.key, flags, measures=measures_of(manifest), manifest=manifest
        )

    def _obtain(self, clip: Clip) -> tuple[Manifest, Product | None]:
        """The clip's artifact. Raises: the clip's error, in our classes; GroupLostError, or an error of `load`."""
        try:
            return self.obtain(self.recipe(clip), lambda models, folder: self.make(clip, models, folder))
        except (_LoadError, GroupLostError, CancelledError):
            raise
        except torch.AcceleratorError as error:
            # The device is in an unknown state: nothing more may run in this process.
            raise GroupLostError(InfrastructureError(f"accelerator: {in_one_line(error)}"), clip.clip_id) from error
        except Exception as error:
            raise self.clip_error(error) from error

    def _failed(self, clip: Clip, started: float, error: Magi2Error) -> StageResult:
        logger.error("clip %s %s failed: %s", clip.short_id, self.name.value, error)
        # Their frames would keep the failed clip's tensors in memory as long as the result.
        error.__traceback__ = error.__cause__ = error.__context__ = None
        platform.empty_cache(accelerator=self.context.accelerator)
        return StageResult(self.name, clip, "failed", time.monotonic() - started, error=error)


class _LoadError(Exception):
    """Carries an error of `load` past the handling of errors that belong to one clip."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(str(cause))
        self.cause = cause
