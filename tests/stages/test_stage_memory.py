"""A model that does not fit is refused before its weights are read."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from magi2 import platform
from magi2.errors import ConfigError, InputError
from magi2.models.preview.footprint import check_footprint
from magi2.parallel.layout import ParallelLayout
from magi2.parallel.mesh import Mesh
from magi2.stages import preview
from magi2.stages.context import StageContext
from magi2.stages.preview import PreviewStage
from magi2.stages.team import Team
from tests.render_helpers import make_clip, make_context, remove_stages, small_profile
from tests.stages.stage_renders import Rendered


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The folders that weights were read from."""
    folders: list[Path] = []
    monkeypatch.setattr(preview, "load_preview", lambda folder, *arguments, **options: folders.append(folder))
    return folders


def on_card(context: StageContext, size_bytes: int, monkeypatch: pytest.MonkeyPatch) -> StageContext:
    """The context as if on an accelerator of that size."""
    card = platform.MemoryStats(allocated=0, peak=0, total=size_bytes)
    monkeypatch.setattr(platform, "memory_stats", lambda *, accelerator: card)
    return replace(context, accelerator=platform.ACCELERATORS["cuda"])


def rendered_again(
    preview_render: Rendered, checkpoint: Path, store: Path, monkeypatch: pytest.MonkeyPatch
) -> StageContext:
    """Both clips, without their previews, on a card that has exactly what the one without image needs."""
    preview_render.copy(store)
    for outcome in preview_render.outcomes:
        remove_stages(store, outcome, "preview", "decode", "mux")
    profile = preview_render.profile
    context = make_context(checkpoint, store, profile, preview_render.clips)
    need = check_footprint(
        profile.architectures.preview,
        ParallelLayout(),
        {"video": 256, "audio": 250, "text": profile.text.max_tokens},
        card_bytes=1 << 40,
        compute_dtype=context.compute_dtype,
    )
    return on_card(context, need.total, monkeypatch)


def test_preview_that_exceeds_the_card_reads_no_weights(
    tmp_path: Path, tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch, read: list[Path]
) -> None:
    profile = small_profile()
    context = make_context(tiny_checkpoint, tmp_path / "store", profile, [make_clip(profile)])
    with pytest.raises(ConfigError, match=r"layout sp1\.cfg1\.ep1 needs .*GiB a rank.*a card has 1\.0 GiB"):
        PreviewStage(on_card(context, 1 << 30, monkeypatch)).check_memory()
    assert not read


def test_reference_images_of_a_batch_count_before_weights_are_read(
    preview_render: Rendered,
    tiny_checkpoint: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    read: list[Path],
) -> None:
    context = rendered_again(preview_render, tiny_checkpoint, tmp_path / "store", monkeypatch)
    # The image of 160x90 becomes one of 64x32 pixels: 4 x 2 cells and a figure token.
    with pytest.raises(ConfigError, match=r"256 video \+ 250 audio \+ 7000 text \+ 9 image tokens a branch"):
        PreviewStage(context).run(preview_render.clips)
    assert not read


def test_clip_whose_images_were_not_encoded_keeps_no_other_from_being_made(
    preview_render: Rendered, tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = rendered_again(preview_render, tiny_checkpoint, tmp_path / "store", monkeypatch)
    remove_stages(tmp_path / "store", preview_render.outcomes[1], "encode")
    stage = PreviewStage(context)
    stage.clips = preview_render.clips
    stage.check_memory()
    with pytest.raises(InputError, match="no encode artifact"):
        stage.read(preview_render.clips[1])


def test_other_ranks_hear_nothing_of_a_model_that_rank_0_refuses(
    preview_render: Rendered, tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = rendered_again(preview_render, tiny_checkpoint, tmp_path / "store", monkeypatch)
    told: list[object] = []
    monkeypatch.setattr(Team, "tell", lambda self, order: told.append(order))
    mesh = replace(Mesh.single(context.device), layout=ParallelLayout(2))
    small = on_card(replace(context, team=Team(mesh)), 1 << 30, monkeypatch)
    with pytest.raises(ConfigError):
        PreviewStage(small).run(preview_render.clips)
    assert not told
