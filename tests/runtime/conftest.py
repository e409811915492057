"""A corner of the host for each test, cleared afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.runtime.runtime_helpers import Machine


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    machine = Machine(tmp_path, monkeypatch)
    yield machine
    left = machine.processes()
    machine.clear()
    assert not left, "processes were left behind"
    assert not list(machine.folder.glob("job-*")), "a job's folder was left behind"
