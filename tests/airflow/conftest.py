"""An Airflow for all tests of a file: plain processes on SQLite, with a real tiny checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.airflow.airflow_site import Site
from tools.local_airflow import LocalAirflow


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, tiny_checkpoint: Path, airflow_template: Path) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("site")
    (folder / "inbox").mkdir()
    environment = {
        "MAGI2_CKPT_ROOT": str(tiny_checkpoint),
        "MAGI2_STORE": str(folder / "store"),
        "MAGI2_INBOX": str(folder / "inbox"),
        "MAGI2_INPUT_ROOTS": str(folder / "batches"),
        "AIRFLOW__WORKERS__MIN_HEARTBEAT_INTERVAL": "1",  # a task that is set failed hears of it by its heartbeat
        "OMP_NUM_THREADS": "1",
    }
    with LocalAirflow(folder / "airflow", environment=environment, template=airflow_template) as airflow:
        airflow.unpause("magi2_render_batch")
        yield Site(airflow, folder)
