"""On one card the models of a stage leave room for those of the next: 27B parameters of text do not lie beside 114B."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from magi2.stages.render import STAGES, run_stage
from magi2.types import StageName
from tests.render_helpers import make_context, remove_stages
from tests.stages.stage_renders import Rendered

LOADING = (StageName.ENCODE, StageName.PREVIEW, StageName.DECODE)


def _modules() -> set[nn.Module]:
    """All there are; by their own type, since a lazy stand-in of another library imports when it is asked for it."""
    return {found for found in gc.get_objects() if issubclass(type(found), nn.Module)}


class Watch:
    """What each stage's `load` brought, and which of it still lived, with garbage not collected, at the next `load`."""

    def __init__(self) -> None:
        self.brought: dict[StageName, weakref.WeakSet[nn.Module]] = {}
        self.counts: dict[StageName, int] = {}
        self.left: dict[StageName, list[StageName]] = {}

    def around(self, stage: StageName, load: Any) -> Any:
        def watched(this: Any) -> Any:
            self.left[stage] = [earlier for earlier, modules in self.brought.items() if len(modules)]
            before = _modules()
            models = load(this)
            new = _modules() - before
            self.brought[stage], self.counts[stage] = weakref.WeakSet(new), len(new)
            return models

        return watched


def test_models_of_a_stage_are_gone_when_the_next_one_loads_its_own(
    preview_render: Rendered, tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    preview_render.copy(tmp_path / "store")
    for outcome in preview_render.outcomes:
        remove_stages(tmp_path / "store", outcome, *(stage.value for stage in LOADING), "mux")
    context = make_context(tiny_checkpoint, tmp_path / "store", preview_render.profile, preview_render.clips)
    watch = Watch()
    for stage in LOADING:
        monkeypatch.setattr(STAGES[stage], "load", watch.around(stage, STAGES[stage].load))
    gc.collect()
    gc.disable()  # what only a collection frees would lie on the card until one comes
    try:
        for stage in LOADING:
            run_stage(context, stage, preview_render.clips[:1])
        left = {stage: len(modules) for stage, modules in watch.brought.items()}
    finally:
        gc.enable()
    assert all(watch.counts[stage] > 0 for stage in LOADING)
    assert watch.left == {StageName.ENCODE: [], StageName.PREVIEW: [], StageName.DECODE: []}
    assert not any(left.values())
