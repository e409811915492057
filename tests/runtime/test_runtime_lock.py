"""Locks on accelerators and on work: exclusive on a host, told to people, freed by the kernel alone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from magi2.errors import CancelledError, ConfigError, InfrastructureError
from magi2.runtime.job import Devices
from magi2.runtime.lock import accelerator_lock, work_lock
from magi2.runtime.run_folder import run_folder
from tests.runtime.runtime_helpers import wait_until

HOLD = """
import subprocess, sys, time
from pathlib import Path
from magi2.runtime.lock import accelerator_lock
with accelerator_lock("all", timeout_s=0, folder=Path(sys.argv[1])) as lock:
    lock.describe(group=4242, title="batch b")
    if sys.argv[2] == "child":
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], pass_fds=lock.fds)
        print(child.pid, flush=True)
    print("held", flush=True)
    time.sleep(60)
"""


def is_free(folder: Path, devices: Devices = "all") -> bool:
    try:
        with accelerator_lock(devices, timeout_s=0, folder=folder):
            return True
    except InfrastructureError:
        return False


def hold(folder: Path, how: str) -> subprocess.Popen[str]:
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(folder), how], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.child = int(process.stdout.readline()) if how == "child" else None  # type: ignore[attr-defined]
    assert process.stdout.readline() == "held\n"
    return process


@pytest.mark.slow
def test_killed_holder_frees_the_lock(tmp_path: Path) -> None:
    with hold(tmp_path, "alone") as process:
        assert not is_free(tmp_path)
        with pytest.raises(InfrastructureError, match=rf"group 4242, launcher {process.pid}, since 20\d\d.*, batch b"):
            accelerator_lock("all", timeout_s=0, folder=tmp_path).__enter__()
        process.kill()
        wait_until(lambda: is_free(tmp_path))


@pytest.mark.slow
def test_lock_stays_until_the_last_heir_is_dead(tmp_path: Path) -> None:
    with hold(tmp_path, "child") as process:
        process.kill()
        process.wait()
        assert not is_free(tmp_path)
        os.kill(process.child, signal.SIGKILL)  # type: ignore[attr-defined]
        wait_until(lambda: is_free(tmp_path))


@pytest.mark.slow
def test_leaving_the_context_does_not_unlock_for_heirs(tmp_path: Path) -> None:
    with accelerator_lock("all", timeout_s=0, folder=tmp_path) as lock:
        child = subprocess.Popen(["sleep", "60"], pass_fds=lock.fds)
    assert not is_free(tmp_path)
    child.kill()
    child.wait()
    assert is_free(tmp_path)


@pytest.mark.parametrize(
    ("first", "second", "excluded"),
    [
        ("all", "all", True),
        ("all", (0,), True),
        ((0,), "all", True),
        ((0,), (0,), True),
        ((0, 1), (1, 2), True),
        ((0, 1), (2, 3), False),
        ("all", (), False),
        ((), "all", False),
    ],
)
def test_devices_exclude_each_other_where_they_overlap(
    tmp_path: Path, first: Devices, second: Devices, excluded: bool
) -> None:
    with accelerator_lock(first, timeout_s=0, folder=tmp_path):
        assert is_free(tmp_path, second) is not excluded
    assert is_free(tmp_path, second)


def test_waiter_hears_the_holder_and_gets_the_lock(tmp_path: Path) -> None:
    held, heard = threading.Event(), list[str]()

    def hold_until_heard_of() -> None:
        with accelerator_lock("all", timeout_s=0, folder=tmp_path) as lock:
            lock.describe(group=7, title="the other")
            held.set()
            wait_until(lambda: heard)

    thread = threading.Thread(target=hold_until_heard_of)
    thread.start()
    held.wait()
    with accelerator_lock("all", timeout_s=10, on_wait=heard.append, folder=tmp_path):
        thread.join()
    assert len(heard) == 1
    assert "group 7" in heard[0]


def test_waiting_ends_when_told(tmp_path: Path) -> None:
    with accelerator_lock("all", timeout_s=0, folder=tmp_path), pytest.raises(CancelledError):
        accelerator_lock("all", timeout_s=60, should_stop=lambda: True, folder=tmp_path).__enter__()


def test_removed_lock_file_does_not_let_two_in(tmp_path: Path) -> None:
    with accelerator_lock("all", timeout_s=0, folder=tmp_path):
        path = tmp_path / "accelerators.lock"
        stale = os.open(path, os.O_RDWR)
        path.unlink()
    with accelerator_lock("all", timeout_s=0, folder=tmp_path):
        assert not is_free(tmp_path)
    os.close(stale)


def work_is_free(folder: Path, store: str = "/store", stage: str = "mux", key: str = "batch/0") -> bool:
    try:
        with work_lock(store, stage, key, timeout_s=0, folder=folder):
            return True
    except InfrastructureError:
        return False


def test_work_is_locked_by_store_stage_and_key(tmp_path: Path) -> None:
    with work_lock("/store", "mux", "batch/0", timeout_s=0, folder=tmp_path):
        assert not work_is_free(tmp_path)
        assert not work_is_free(tmp_path, store="file:///store")
        assert work_is_free(tmp_path, store="/other")
        assert work_is_free(tmp_path, stage="decode")
        assert work_is_free(tmp_path, key="batch/1")
        assert is_free(tmp_path)
    assert work_is_free(tmp_path)


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        ("s3://bucket/renders", "s3://bucket/renders/?endpoint=https://s3.amazonaws.com", True),
        ("s3://bucket/renders", "s3://bucket/others", False),
        ("s3://bucket/renders", "s3://bucket/renders?endpoint=http://localhost:9000", False),
    ],
)
def test_work_in_a_bucket_is_locked_whatever_the_spelling(tmp_path: Path, one: str, other: str, is_same: bool) -> None:
    with work_lock(one, "mux", "batch/0", timeout_s=0, folder=tmp_path):
        assert work_is_free(tmp_path, store=other) is not is_same


@pytest.mark.slow
def test_file_of_a_work_lock_goes_when_it_is_free_and_stays_while_an_heir_has_it(tmp_path: Path) -> None:
    with work_lock("/store", "mux", "batch/0", timeout_s=0, folder=tmp_path) as lock:
        child = subprocess.Popen(["sleep", "60"], pass_fds=lock.fds)
    assert not work_is_free(tmp_path)
    child.kill()
    child.wait()
    assert work_is_free(tmp_path)
    assert not list(tmp_path.iterdir())


def test_run_folder_is_private_and_the_same_whatever_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    default = run_folder()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    assert run_folder() == default == Path(f"/tmp/magi2-{os.getuid()}")
    loose = tmp_path / "loose"
    loose.mkdir(mode=0o777)
    assert run_folder(loose).stat().st_mode & 0o777 == 0o700


def test_run_folder_that_another_could_have_planted_is_refused(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / "file").touch()
    for name in ("link", "file"):
        with pytest.raises(ConfigError):
            run_folder(tmp_path / name)
    if os.getuid() == 0:
        (tmp_path / "foreign").mkdir()
        os.chown(tmp_path / "foreign", 12345, 12345)
        with pytest.raises(ConfigError, match="another user"):
            run_folder(tmp_path / "foreign")
    with pytest.raises(InfrastructureError):
        run_folder(Path("/proc/nothing/here"))
