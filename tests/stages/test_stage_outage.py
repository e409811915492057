"""A store that goes away in the midst of a stage costs no clip: what was made is kept, what could not be is made."""

from __future__ import annotations

from pathlib import Path

import pytest

from magi2.artifacts.local import LocalStore
from magi2.config.settings import Settings
from magi2.deployment import Deployment
from magi2.errors import AwayError
from magi2.runtime.store_wait import StoreWait
from magi2.stages.base import Product
from magi2.stages.context import StageContext
from magi2.stages.enhance import EnhanceStage
from magi2.types import Clip
from tests.render_helpers import make_clip, make_context, small_profile

PROFILE = small_profile()


class Leaving(LocalStore):
    """A store that goes away at the next call of this name, for some calls of any name."""

    leaves_at, calls_left = "", 0

    def _answer(self, name: str) -> None:
        if name == self.leaves_at:
            self.leaves_at, self.calls_left = "", 5
        if self.calls_left:
            self.calls_left -= 1
            raise AwayError("refused")

    def _read(self, name: str) -> bytes | None:
        self._answer("read")
        return super()._read(name)

    def _create(self, name: str, content: bytes) -> bool:
        self._answer("create")
        return super()._create(name, content)

    def _upload(self, path: Path, name: str, sha256: str) -> None:
        self._answer("upload")
        super()._upload(path, name, sha256)


class Enhance(EnhanceStage):
    """Counts what it makes, and lets the store leave in the midst of it."""

    def __init__(self, context: StageContext, leaves_at: str) -> None:
        super().__init__(context)
        self.leaves_at, self.made = leaves_at, list[int]()

    def make(self, clip: Clip, models: None, folder: Path) -> Product:
        self.made.append(clip.seed)
        product = super().make(clip, models, folder)
        if len(self.made) == 2:
            self.store.leaves_at = self.leaves_at
            if self.leaves_at == "read":
                self.store.get_document("anything")
        return product

    store: Leaving


@pytest.mark.parametrize(
    ("leaves_at", "made"), [("upload", [0, 1, 2]), ("create", [0, 1, 2]), ("read", [0, 1, 1, 2]), ("", [0, 1, 2])]
)
@pytest.mark.parametrize("wait_s", [600.0, 0.0])
def test_clip_is_stored_when_the_store_is_back_and_made_again_only_if_it_was_not_made(
    tiny_checkpoint: Path, tmp_path: Path, leaves_at: str, made: list[int], wait_s: float
) -> None:
    context = make_context(tiny_checkpoint, tmp_path / "store", PROFILE)
    deployment, store = (
        Deployment(Settings(store=str(tmp_path / "store"), store_wait_s=wait_s)),
        Leaving(tmp_path / "store"),
    )
    deployment.store = context.store = store
    context.patience = StoreWait(deployment, sleep=lambda seconds: None)
    stage = Enhance(context, leaves_at)
    stage.store = store
    results = stage.run([make_clip(PROFILE, f"a heron of lake {seed}", seed) for seed in range(3)])
    if wait_s or not leaves_at:
        assert [result.state for result in results] == ["made"] * 3
        assert stage.made == made
        assert len(list(store.keys("enhance"))) == 3
    else:  # a try is spent, and the store is asked no more than it takes
        assert results[1].state == "failed" and results[1].error and results[1].error.retryable
