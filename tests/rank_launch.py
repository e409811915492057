"""Runs a function on several gloo ranks, forked from one process that has imported torch once."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

TIMEOUT_S = 180


def launch(script: Path, ranks: int, folder: Path) -> None:
    """Run `script`, which calls `on_ranks`, for that many ranks; what they find they write into `folder`."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, str(script), str(ranks), str(folder)],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        env=environment,
    )
    assert done.returncode == 0, done.stderr[-6000:]


def on_ranks(work: Callable[[int, Path], None]) -> None:
    """The main program of such a script: `work(ranks, folder)` in each rank, with the process group set up."""
    ranks, folder = int(sys.argv[1]), Path(sys.argv[2])
    fork = multiprocessing.get_context("fork")
    processes = [fork.Process(target=_rank, args=(work, rank, ranks, folder)) for rank in range(ranks)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    sys.exit(max(abs(process.exitcode or 0) for process in processes))


def _rank(work: Callable[[int, Path], None], rank: int, ranks: int, folder: Path) -> None:
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=ranks)
    work(ranks, folder)
    dist.destroy_process_group()
