"""A model that does not fit is refused before its weights are read."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from render_helpers import make_clip, make_context, small_profile

from magi2 import platform
from magi2.errors import ConfigError
from magi2.stages import preview
from magi2.stages.preview import PreviewStage


def test_preview_that_exceeds_the_card_reads_no_weights(
    tmp_path: Path, tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    profile = small_profile()
    context = make_context(tiny_checkpoint, tmp_path / "store", profile, [make_clip(profile)])
    context = replace(context, accelerator=platform.ACCELERATORS["cuda"])
    card = platform.MemoryStats(allocated=0, peak=0, total=1 << 30)
    monkeypatch.setattr(platform, "memory_stats", lambda *, accelerator: card)
    read: list[Path] = []
    monkeypatch.setattr(preview, "load_preview", lambda folder, *arguments, **options: read.append(folder))
    with pytest.raises(ConfigError, match=r"layout sp1\.cfg1\.ep1 needs .*GiB a rank.*a card has 1\.0 GiB"):
        PreviewStage(context).load()
    assert not read
