"""What a command of `magi2` gives back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


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
