"""Fixtures shared by every test."""

from __future__ import annotations

import fcntl
import gc
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.pop("COLUMNS", None)  # xdist sets it for its workers, and a console that is made then ignores what tests set

import pytest
import setuptools  # noqa: F401  torch's compiler refuses to load it after somebody has imported Python's distutils
import torch
from hypothesis import settings as made_up_inputs

from tests.no_device_read import NoDeviceRead

gc.disable()  # until all is collected, which makes millions of objects and next to no garbage
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # kernels run in the interpreter; triton reads this when it is imported

pytest_plugins = [
    "pytester",
    "tests.cpu_seconds",
    "tests.no_processes",
    "tests.programs",
    "tests.tiers",
    "tests.workers",
]

# The same inputs in every run: what is made up anew, and may fail for the first time, is for `make fuzz`.
made_up_inputs.register_profile("repeatable", derandomize=True, deadline=None)
made_up_inputs.load_profile("repeatable")

GOLDEN = Path(__file__).parent / "golden"


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop() -> None:
    """What has been imported and collected stays to the end: no search for garbage looks through it again."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session", autouse=True)
def careless_disk() -> Iterator[None]:
    """No store in this process waits for the disk, which takes longer than the rest: processes of their own do."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda handle: None)
        yield


@pytest.fixture(scope="session")
def golden() -> Path:
    """Folder of the golden vectors."""
    return GOLDEN


@pytest.fixture(scope="session")
def device() -> torch.device:
    """The accelerator when there is one (set MAGI2_TEST_DEVICE to choose), else the CPU."""
    chosen = os.environ.get("MAGI2_TEST_DEVICE")
    device = torch.device(chosen or ("cuda" if torch.cuda.is_available() else "cpu"))
    if device.type == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = False
        torch.backends.cudnn.allow_tf32 = False
    return device


@pytest.fixture(scope="session")
def no_host_sync(device: torch.device) -> Callable[[], AbstractContextManager[None]]:
    """A context in which waiting for the device is an error: by CUDA's own check there, by operation elsewhere."""

    @contextmanager
    def refuse() -> Iterator[None]:
        if device.type != "cuda":
            with NoDeviceRead():
                yield
            return
        torch.cuda.set_sync_debug_mode("error")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode("default")

    return refuse


@pytest.fixture(scope="session")
def tiny_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random weights of the tiny profile in the published layout. Read only: copy it to change it."""
    from magi2.checkpoints.tiny import make_tiny
    from magi2.config.load import load_profile
    from magi2.config.settings import Settings

    folder = tmp_path_factory.mktemp("weights") / "tiny"
    make_tiny(folder, load_profile("tiny", Settings().configs).architectures, seed=1)
    return folder


@pytest.fixture(scope="session")
def airflow_template(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    """A database of Airflow with its tables and our pools, made once for all workers. Read only: copy it."""
    from tools.local_airflow import LocalAirflow

    own = tmp_path_factory.getbasetemp()
    home = (own if worker_id == "master" else own.parent) / "airflow-template"
    home.mkdir(exist_ok=True)
    airflow, ready = LocalAirflow(home, environment={}), home / "ready"
    with (home / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not ready.exists():
            airflow.prepare()
            ready.touch()
    return airflow.database_file
