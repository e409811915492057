"""`python -m tests.runtime.forked_ranks RANKS MODULE ...`: torchrun's part, but the ranks are forked.

This process imports what a stage needs once, where under torchrun every rank does. When a rank fails the others are
ended, as torchrun does.
"""

from __future__ import annotations

import os
import runpy
import signal
import socket
import sys
from contextlib import suppress

import magi2.runtime.meeting
import magi2.stages.prepare
import magi2.stages.render  # noqa: F401  what the ranks need is imported before they are forked


def main() -> int:
    """0 when every rank ended well, else 1."""
    ranks = int(sys.argv[1])
    port = _free_port()
    running = {_fork(rank, ranks, port) for rank in range(ranks)}
    is_well = True
    while running:
        pid, status = os.wait()
        running.discard(pid)
        if status and is_well:
            is_well = False
            for other in running:
                with suppress(ProcessLookupError):
                    os.kill(other, signal.SIGTERM)
    return 0 if is_well else 1


def _fork(rank: int, ranks: int, port: int) -> int:
    if pid := os.fork():
        return pid
    os.setsid()
    place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    os.environ |= {name: str(value) for name, value in place.items()}
    module, *sys.argv[1:] = sys.argv[2:]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
    raise AssertionError(f"{module} did not exit")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


if __name__ == "__main__":
    sys.exit(main())
