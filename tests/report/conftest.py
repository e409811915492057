"""Stores for reports."""

from __future__ import annotations

from pathlib import Path

import pytest

from magi2.artifacts.local import LocalStore


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "store")
