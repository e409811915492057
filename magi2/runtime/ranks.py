"""`python -m magi2.runtime.ranks RANKS MODULE ARGUMENT ...`: the ranks of a group, forked from one process.

This process imports once what a stage needs, which takes longer than anything else at a group's start, and never
touches the accelerator: each rank opens its own after the fork. Each runs `python -m MODULE ARGUMENT ...` in a session
of its own and learns its number and where to meet from RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT. When
one fails the others are ended.
"""

from __future__ import annotations

import importlib
import os
import runpy
import signal
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from magi2.config.settings import Settings
from magi2.runtime.process import die_with_parent, name_process
from magi2.stages.layouts import is_cpu

_STAGES = (
    "magi2.batches.plan",
    "magi2.catalog.gate",
    "magi2.deployment",
    "magi2.runtime.meeting",
    "magi2.stages.prepare",
    "magi2.stages.render",
)
_KERNELS = ("magi2.models.preview.fast_ops", "magi2.models.refiner.fast_ops")
"""What ranks with an accelerator need as well; elsewhere there need be no Triton."""


def main() -> int:
    """0 when every rank ended well, else 1."""
    ranks, module, *arguments = sys.argv[1:]
    passed = _passed_descriptors()
    preload()
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port()), "WORLD_SIZE": ranks}
    running: set[int] = set()
    with _passing_on_sigterm(running):
        for rank in range(int(ranks)):
            number = {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            running.add(_fork(module, arguments, place | number, passed))
        return _wait(running)


def preload() -> None:
    """Import what stages need. Raises: RuntimeError when that has opened an accelerator, which no fork survives."""
    for module in _STAGES if is_cpu(Settings.from_environment().device) else (*_STAGES, *_KERNELS):
        importlib.import_module(module)
    import torch

    if torch.cuda.is_initialized():
        raise RuntimeError("an import has opened the accelerator: ranks cannot be forked")


def _passed_descriptors() -> list[int]:
    """What the launcher has passed on: the lock, which each rank gets from it by a connection of its own."""
    return [fd for fd in map(int, os.listdir("/proc/self/fd")) if fd > 2 and Path(f"/proc/self/fd/{fd}").exists()]


def _fork(module: str, arguments: Sequence[str], environment: dict[str, str], passed: Sequence[int]) -> int:
    """Process id of a new rank. SIGTERM reaches it only once it has forgotten what this process does about it."""
    parent = os.getpid()
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    if pid := os.fork():
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
        return pid
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
    for fd in passed:
        os.close(fd)
    os.setsid()
    die_with_parent()
    if os.getppid() != parent:  # it died before the kernel knew what to do about it
        os._exit(128 + signal.SIGKILL)
    name_process(f"rank {environment['RANK']}")
    os.environ |= environment
    sys.argv[1:] = arguments
    runpy.run_module(module, run_name="__main__", alter_sys=True)
    raise AssertionError(f"{module} did not exit")


def _wait(running: set[int]) -> int:
    """Until no rank runs any more; after the first that fails the others are asked to end."""
    is_well = True
    while running:
        pid, status = os.wait()
        running.discard(pid)
        if status and is_well:
            is_well = False
            _end(running)
    return 0 if is_well else 1


def _end(ranks: set[int]) -> None:
    for pid in ranks:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)


@contextmanager
def _passing_on_sigterm(running: set[int]) -> Iterator[None]:
    """This process outlives its ranks, which may have to clear up: the launcher ends it otherwise, if need be."""
    before = signal.signal(signal.SIGTERM, lambda number, frame: _end(running))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


if __name__ == "__main__":
    sys.exit(main())
