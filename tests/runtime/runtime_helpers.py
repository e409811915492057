"""Real processes for the runtime's tests: finding them, waiting for them, and jobs whose worker is a stub."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from magi2.parallel.layout import ParallelLayout
from magi2.runtime.job import StageJob
from magi2.runtime.launcher import Launcher
from magi2.runtime.watch import Limits
from magi2.types import StageName

REPOSITORY = Path(__file__).parents[2]
WORKER = "tests.runtime.stub_worker"
LAUNCHER = "tests.runtime.stub_launcher"
MARK = "TEST_GROUP_MARK"
QUICK = Limits(start=30, meet=30, heartbeat=30, step=30, hang=30, exit=5, grace=1, lock=10, stacks=0.3)


def wait_until(condition: Callable[[], object], timeout_s: float = 10.0) -> float:
    """Seconds until the condition held; fails the test when it does not within the time."""
    started = time.monotonic()
    while not condition():
        assert time.monotonic() - started < timeout_s, "it never came true"
        time.sleep(0.01)
    return time.monotonic() - started


class Machine:
    """A test's own corner of the host: its processes are told by a variable in their environment."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder / "run"
        self.store = folder / "store"
        self.mark = folder.name + os.urandom(6).hex()
        self._monkeypatch = monkeypatch
        monkeypatch.setenv(MARK, self.mark)
        monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
        monkeypatch.setenv("OMP_NUM_THREADS", "1")

    def act(self, action: str, **values: object) -> None:
        """What the stub worker shall do."""
        self._monkeypatch.setenv("STUB_ACTION", action)
        self._monkeypatch.setenv("STUB_VALUES", json.dumps(values))

    def job(
        self, stage: StageName = StageName.PREVIEW, *, module: str = WORKER, ranks: int = 1, **values: Any
    ) -> StageJob:
        return StageJob(
            "batch", 0, stage, str(self.store), layout=ParallelLayout(ranks), worker_module=module, **values
        )

    def launcher(self, limits: Limits = QUICK) -> Launcher:
        return Launcher(folder=self.folder, limits=limits)

    def processes(self) -> dict[int, str]:
        """Command lines of the live processes that this test started, by process id."""
        mark, found = f"{MARK}={self.mark}".encode(), {}
        for folder in Path("/proc").iterdir():
            if folder.name.isdigit() and int(folder.name) != os.getpid():
                try:
                    if mark in (folder / "environ").read_bytes().split(b"\0"):
                        found[int(folder.name)] = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                except OSError:
                    continue
        return found

    def find(self, *parts: str) -> list[int]:
        """Processes whose command line has all the parts."""
        return [pid for pid, line in self.processes().items() if all(part in line for part in parts)]

    def wait_until_empty(self, timeout_s: float = 5.0) -> float:
        return wait_until(lambda: not self.processes(), timeout_s)

    def lock_is_free(self) -> bool:
        """Whether no job of this corner holds a lock, on accelerators or on its work."""
        return all(map(_is_unlocked, self.folder.glob("*.lock")))

    @contextmanager
    def launched(self, **values: object) -> Iterator[subprocess.Popen[str]]:
        """A launcher in a process of its own; its stdout has a line for each event and one for the outcome."""
        command = [sys.executable, "-m", LAUNCHER, str(self.folder), str(self.store), json.dumps(values)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, preexec_fn=_hear_interrupts) as process:
            try:
                yield process
            finally:
                process.kill()

    def clear(self) -> None:
        """End whatever a failed test left."""
        for pid in self.processes():
            try:
                os.kill(pid, 9)
            except ProcessLookupError:
                continue


def _is_unlocked(path: Path) -> bool:
    with suppress(FileNotFoundError), path.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def _hear_interrupts() -> None:
    """A shell starts its background jobs deaf to Ctrl-C, and so would be the launcher of a suite that is one."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def wait_for_line(process: subprocess.Popen[str], word: str) -> None:
    """Read a launcher's lines up to the one with the word."""
    assert process.stdout is not None
    for line in process.stdout:
        if word in line:
            return
    raise AssertionError(f"the launcher ended without saying {word!r}")
