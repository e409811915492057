"""Calling the command line in this process, in an environment that has only what the test sets."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.cli_said import Magi2, called_here
from tests.random_weights import NOISE_IS_GOOD


@pytest.fixture
def magi2(
    tmp_path: Path, tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Magi2:
    """Run `magi2 ARGUMENTS`, with a store of the test's own and the tiny weights unless the test says otherwise."""
    run = called_here(monkeypatch, capsys)
    monkeypatch.setenv("MAGI2_CKPT_ROOT", str(tiny_checkpoint))
    monkeypatch.setenv("MAGI2_STORE", str(tmp_path / "store"))
    for name, value in NOISE_IS_GOOD.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(tmp_path)
    return run
