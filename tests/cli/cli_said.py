"""Calling a command of `magi2` in this process, and what it gives back."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from magi2.cli.main import main


@dataclass(frozen=True)
class Said:
    """Exit code and what was written."""

    code: int
    out: str
    err: str

    @property
    def error_lines(self) -> list[str]:
        return [line for line in self.err.splitlines() if line.strip()]


Magi2 = Callable[..., Said]
"""Runs `magi2` with these arguments."""


def called_here(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Magi2:
    """`magi2 ARGUMENTS` in an environment without any setting yet."""
    for name in [name for name in os.environ if name.startswith("MAGI2_")]:
        monkeypatch.delenv(name)

    def run(*arguments: object) -> Said:
        monkeypatch.setattr("sys.argv", ["magi2", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        captured = capsys.readouterr()
        return Said(int(ended.value.code or 0), captured.out, captured.err)

    return run
