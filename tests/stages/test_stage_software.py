"""What made an artifact stands in its manifest, and in no recipe."""

from __future__ import annotations

import torch

from magi2.artifacts.local import LocalStore
from magi2.artifacts.manifest import MADE_BY
from magi2.media.ffmpeg import find_ffmpeg
from tests.stages.stage_renders import Rendered


def test_every_manifest_names_the_set_that_made_it(preview_render: Rendered) -> None:
    store, stages = LocalStore(preview_render.store), {}
    for result in preview_render.outcomes[0].results:
        manifest = store.find(result.stage, result.key or "")
        assert manifest is not None
        stages[result.stage.value] = manifest.report[MADE_BY]
        assert "ffmpeg" not in str(manifest.recipe.to_dict()["config"])
    assert {made_by["torch"] for made_by in stages.values()} == {torch.__version__}
    assert {made_by["ffmpeg"] for made_by in stages.values()} == {find_ffmpeg().version}
    assert stages["preview"]["kernels"] == "attention: torch, experts: torch"
    assert stages["mux"]["kernels"] == "none"
    assert {"triton", "attention"} <= stages["decode"].keys()
