"""The commands around a hollow folder: made, checked, planned on, and never rendered from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from magi2.checkpoints.layout import COMPONENTS
from tests.cli.cli_said import Magi2


@pytest.mark.slow
def test_a_hollow_folder_is_made_checked_and_planned_on_and_refused_for_rendering(
    magi2: Magi2, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = tmp_path / "hollow"
    made = magi2("checkpoint", "make-hollow", str(folder))
    assert made.code == 0 and "296.7 GB in name" in made.out and "nothing is rendered from it" in made.out
    said = magi2("checkpoint", "verify", str(folder))
    assert said.code == 0 and said.out.count("hollow, without values") == len(COMPONENTS)
    monkeypatch.setenv("MAGI2_CKPT_ROOT", str(folder))
    batch = tmp_path / "batch.jsonl"
    batch.write_text(json.dumps({"prompt": "a heron takes off"}))
    assert magi2("plan", str(batch), "--profile", "1080p").code == 0
    refused = magi2("render", "--prompts", str(batch), "--profile", "1080p", "--out", str(tmp_path / "clips"))
    assert refused.code != 0 and f"{folder / 'text_encoder'} is hollow" in refused.err
    assert "MAGI2_CKPT_ROOT" in refused.err
