"""Saved states inside a denoising loop, from which a clip goes on after a kill; one for each recipe, the newest.

A snapshot is a document `snapshots/<stage>/<key>.safetensors`. It is written by rank 0 in a thread of its own, while
the loop goes on, and removed when the artifact is published.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self

from magi2.artifacts.damage import look_twice
from magi2.artifacts.recipe import Recipe
from magi2.artifacts.store import ArtifactStore
from magi2.artifacts.tensors import open_sealed, seal_tensors
from magi2.errors import ContractError, CorruptedArtifactError, Magi2Error
from magi2.parallel.layout import ParallelLayout

if TYPE_CHECKING:
    from torch import Tensor

logger = logging.getLogger(__name__)

SNAPSHOTS = "snapshots"
"""The folder of their names."""
PICTURES = f"{SNAPSHOTS}/pictures"
"""The folder of pictures of clips at work."""
_FORMAT = "1"
_GENERATOR = "generator_state"


class LoopState(Protocol):
    """What a denoising loop saves: the latents, the solvers' states and the step."""

    def tensors(self) -> dict[str, Tensor]: ...


def snapshot_name(recipe: Recipe) -> str:
    """The document of a recipe's snapshot."""
    return f"{SNAPSHOTS}/{recipe.stage}/{recipe.key}.safetensors"


def picture_name(clip_id: str) -> str:
    """The document of a picture of a clip at work, see `magi2.stages.at_work`."""
    return f"{PICTURES}/{clip_id}.webp"


def load_snapshot(
    store: ArtifactStore, recipe: Recipe, generator_state: Callable[[], Tensor]
) -> dict[str, Tensor] | None:
    """The tensors of the recipe's loop state on the host, or None when there is no snapshot that fits.

    `generator_state` tells where the clip's random stream stands inside the loop. A damaged or foreign snapshot is
    named in the log and counts as none; a damaged one goes to quarantine. Raises: InfrastructureError.
    """
    name = snapshot_name(recipe)
    try:
        opened = look_twice(lambda fresh: _open(store, name, fresh=fresh))
        if opened is None:
            return None
        tensors, metadata = opened
        found, wanted = (metadata.get("format"), metadata.get("recipe")), (_FORMAT, recipe.key)
        if found != wanted:
            raise ContractError(f"{name}: is of format and recipe {found}, not {wanted}")
        stream = tensors.pop(_GENERATOR, None)
        if stream is None or not generator_state().equal(stream):
            raise ContractError(f"{name}: its random stream is another, as of another kind of device")
    except (CorruptedArtifactError, ContractError) as error:
        logger.warning("a snapshot is not used, the clip starts anew: %s", error)
        if isinstance(error, CorruptedArtifactError):
            store.condemn_document(name, why=str(error))
        return None
    logger.info("%s: from step %d, saved under layout %s", name, int(tensors["step"]), metadata.get("layout"))
    return tensors


def _open(store: ArtifactStore, name: str, *, fresh: bool) -> tuple[dict[str, Tensor], dict[str, str]] | None:
    data = store.get_document(name, fresh=fresh)
    return None if data is None else open_sealed(data, name)


class SnapshotWriter:
    """Saves the states it is given, from inside its context, in a thread; of those that wait only the newest. What was
    saved is shown to `show`, if there is one, while the clip is at work.

    What goes wrong is logged: a clip does not fail for want of a snapshot. At the end a clip that was made needs no
    further one; after an error the last one is still saved.
    """

    def __init__(
        self,
        store: ArtifactStore,
        recipe: Recipe,
        layout: ParallelLayout,
        generator_state: Tensor,
        show: Callable[[Mapping[str, Tensor]], None] | None = None,
    ) -> None:
        self._store = store
        self._name = snapshot_name(recipe)
        self._metadata = {"format": _FORMAT, "recipe": recipe.key, "layout": str(layout)}
        self._generator_state = generator_state
        self._show = show
        self._waiting: LoopState | None = None
        self._ends = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._work, name="snapshots", daemon=True)

    def __call__(self, state: LoopState) -> None:
        """Take a state to save; returns at once. No later step may write to its tensors."""
        with self._changed:
            self._waiting = state
            self._changed.notify()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._changed:
            self._ends = True
            if not isinstance(error, Exception):
                self._waiting = None
            self._changed.notify()
        if error is None or isinstance(error, Exception):  # who is told to end has no time to wait
            self._thread.join()

    def _work(self) -> None:
        while (state := self._next()) is not None:
            tensors = state.tensors()
            try:
                self._save(tensors)
            except Magi2Error as error:
                logger.warning("%s: not saved: %s", self._name, error)
            except Exception:
                logger.exception("%s: not saved", self._name)
            if self._show and not self._ends:
                self._show(tensors)

    def _next(self) -> LoopState | None:
        """The newest state, once there is one; None when there will be no more."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting is not None or self._ends)
            state, self._waiting = self._waiting, None
            return state

    def _save(self, tensors: Mapping[str, Tensor]) -> None:
        # The copies to the host are queued behind work already issued and keep only this thread waiting.
        data = seal_tensors({**tensors, _GENERATOR: self._generator_state}, self._metadata)
        self._store.put_document(self._name, data)
        logger.info("%s: saved step %d, %.1f MiB", self._name, int(tensors["step"]), len(data) / 2**20)
