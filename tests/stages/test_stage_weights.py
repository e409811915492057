"""A preview with FP8 weights: the same artifact whether they are quantised as they are loaded or before."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from magi2 import platform
from magi2.checkpoints.quantise import quantise_checkpoint
from magi2.errors import ConfigError
from magi2.stages.render import run_stage
from magi2.types import StageName
from tests.render_helpers import make_clip, make_context, small_profile
from tests.stages.stage_renders import Rendered

PROFILE = small_profile("compute.weights=fp8")


def test_a_folder_made_before_gives_the_key_and_the_latents_of_quantising_at_load(
    preview_render: Rendered, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    quantise_checkpoint(tiny_checkpoint, tmp_path / "fp8", PROFILE.architectures, "fp8")
    found = []
    for weights in (tiny_checkpoint, tmp_path / "fp8"):
        store, clips = tmp_path / f"store-{weights.name}", [make_clip(PROFILE)]
        context = make_context(weights, preview_render.copy(store), PROFILE, clips)
        (result,) = run_stage(context, StageName.PREVIEW, clips)
        assert result.state == "made" and result.key is not None, "texts are there, latents are not"
        manifest = context.store.find(StageName.PREVIEW.value, result.key)
        assert manifest is not None and manifest.recipe.config["weights"] == "fp8"
        assert manifest.report["made_by"]["kernels"] == "attention: torch, FP8 experts: torch"
        found.append((result.key, {name: payload.sha256 for name, payload in manifest.payloads.items()}))
        shutil.rmtree(store)
    assert found[0] == found[1]
    plain = preview_render.outcomes[0].results
    assert found[0][0] not in {result.key for result in plain}, "bf16 has its own key"


def test_a_card_without_fp8_is_refused_before_the_store_is_opened(
    tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform, "fp8_refusal", lambda *, accelerator: "this card has no FP8 products")
    with pytest.raises(ConfigError, match=r"profile tiny-preview: this card has no FP8 products"):
        make_context(tiny_checkpoint, tmp_path / "store", PROFILE)
    assert not (tmp_path / "store").exists()
    make_context(tiny_checkpoint, tmp_path / "store", small_profile())
