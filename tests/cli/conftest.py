"""Calling the command line in this process, in an environment that has only what the test sets."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from magi2.cli.main import main
from tests.cli.cli_said import Magi2, Said
from tests.random_weights import NOISE_IS_GOOD


@pytest.fixture
def magi2(
    tmp_path: Path, tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Magi2:
    """Run `magi2 ARGUMENTS`, with a store of the test's own and the tiny weights unless the test says otherwise."""
    for name in os.environ:
        if name.startswith("MAGI2_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("MAGI2_CKPT_ROOT", str(tiny_checkpoint))
    monkeypatch.setenv("MAGI2_STORE", str(tmp_path / "store"))
    for name, value in NOISE_IS_GOOD.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(tmp_path)

    def run(*arguments: object) -> Said:
        monkeypatch.setattr("sys.argv", ["magi2", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        captured = capsys.readouterr()
        return Said(int(ended.value.code or 0), captured.out, captured.err)

    return run
