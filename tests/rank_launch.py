"""Runs a function on several gloo ranks, forked from one process that has imported torch once."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
TIMEOUT_S = 600
# The most by which fp32 results of ranks differ from one rank's, relative. Products of fewer rows are summed in another
# order, and what that makes depends on MKL's kernels for the processor: for AVX-512, AVX2 and any processor at most
# 1.19e-6, 1.03e-6 and 0.91e-6 in the preview, 0.95e-6, 0.88e-6 and 0.81e-6 in the refiner. One rank alone differs by
# 1.04e-6, 1.00e-6 and 0.79e-6 from itself when the preview packs no unconditional branch.
SUMMATION_ERROR = 2e-6


def launch(module: str, worlds: Sequence[int], folder: Path) -> None:
    """Run `module`, which calls `on_ranks`, for each number of ranks; what n ranks find they write into `folder`/n."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(
        [sys.executable, "-m", module, str(folder), *map(str, worlds)],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        env=environment,
    )
    assert done.returncode == 0, done.stderr[-6000:]


def on_ranks(work: Callable[[int, Path], None]) -> None:
    """The main program of such a module: `work(ranks, folder)` in each rank, with the process group set up."""
    folder, worlds = Path(sys.argv[1]), map(int, sys.argv[2:])
    fork = multiprocessing.get_context("fork")
    for ranks in worlds:
        own = folder / str(ranks)
        own.mkdir()
        processes = [fork.Process(target=_rank, args=(work, rank, ranks, own)) for rank in range(ranks)]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        if any(process.exitcode for process in processes):
            sys.exit(1)


def _rank(work: Callable[[int, Path], None], rank: int, ranks: int, folder: Path) -> None:
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=ranks)
    work(ranks, folder)
    dist.destroy_process_group()
