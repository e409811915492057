"""Stores for reports."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from magi2.artifacts.local import LocalStore


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LocalStore:
    """A store that does not wait for the disk, which takes longer than everything else here."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)
    return LocalStore(tmp_path / "store")
