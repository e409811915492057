"""`magi2 checkpoint quantise`: a folder is made, named in its format, and planned on under that format alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.cli_said import Magi2


def test_weights_are_quantised_verified_and_planned_on(
    magi2: Magi2, monkeypatch: pytest.MonkeyPatch, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    folder, batch = tmp_path / "fp8", tmp_path / "batch.jsonl"
    made = magi2("checkpoint", "quantise", str(tiny_checkpoint), str(folder), "--profile", "tiny")
    assert made.code == 0 and "3 of 3 files" in made.out and "preview in fp8, made of" in made.out
    said = magi2("checkpoint", "verify", str(folder), "--profile", "tiny")
    assert said.code == 0 and "compute.weights=fp8" in said.out
    monkeypatch.setenv("MAGI2_CKPT_ROOT", str(folder))
    batch.write_text(json.dumps({"prompt": "a heron takes off"}))
    assert magi2("plan", str(batch), "--profile", "tiny", "--set", "compute.weights=fp8").code == 0
    refused = magi2("plan", str(batch), "--profile", "tiny")
    assert refused.code != 0 and "weights are stored as fp8, compute.weights is bf16" in refused.err
    assert magi2("checkpoint", "quantise", str(folder), str(tmp_path / "again"), "--profile", "tiny").code != 0
