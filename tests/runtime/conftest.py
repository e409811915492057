"""A corner of the host for each test, cleared afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from runtime_helpers import Machine

from magi2.checkpoints.tiny import make_tiny
from magi2.config.load import load_profile
from magi2.config.settings import Settings


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    machine = Machine(tmp_path, monkeypatch)
    yield machine
    left = machine.processes()
    machine.clear()
    assert not left, "processes were left behind"
    assert not list(machine.folder.glob("job-*")), "a job's folder was left behind"


@pytest.fixture(scope="session")
def tiny_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random weights in the published layout."""
    folder = tmp_path_factory.mktemp("checkpoint")
    make_tiny(folder, load_profile("tiny", Settings().configs).architectures, seed=1)
    return folder
