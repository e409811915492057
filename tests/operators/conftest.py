"""A deployment for each test, and a home for Airflow that is not the user's."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile

# Airflow reads its settings when it is first imported, and would write into the user's home folder.
if "AIRFLOW_HOME" not in os.environ:
    os.environ["AIRFLOW_HOME"] = tempfile.mkdtemp(prefix="magi2-airflow-")
    atexit.register(shutil.rmtree, os.environ["AIRFLOW_HOME"], ignore_errors=True)

from pathlib import Path

import pytest

from magi2.artifacts.local import LocalStore
from tests.operators.operator_helpers import Deployment, Task

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture
def task() -> Task:
    return Task()


@pytest.fixture
def deployment(tmp_path: Path, tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> Deployment:
    for name in [name for name in os.environ if name.startswith("MAGI2_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("MAGI2_CKPT_ROOT", str(tiny_checkpoint))
    monkeypatch.setenv("MAGI2_STORE", str(tmp_path / "store"))
    inbox = tmp_path / "inbox"
    inbox.mkdir()
    monkeypatch.setenv("MAGI2_INBOX", str(inbox))
    monkeypatch.setenv("MAGI2_INPUT_ROOTS", str(tmp_path / "batches"))
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    return Deployment(tmp_path, LocalStore(tmp_path / "store"), inbox)
