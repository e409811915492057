"""The real worker around a stage that does what a test asks: STUB_ACTION names a function, STUB_VALUES its values."""

import ctypes
import json
import os
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import magi2.errors
from magi2.recipes.result import StageResult
from magi2.runtime import worker
from magi2.runtime.job import StageJob
from magi2.runtime.progress import EventProgress
from magi2.types import Clip

RANK = int(os.environ.get("RANK", "0"))
CLIPS = [Clip(prompt=f"prompt {number}", seed=number, profile_name="stub", profile_digest="0") for number in range(2)]


def succeed(job: StageJob, progress: EventProgress) -> None:
    progress.stage_started(job.stage, len(CLIPS))
    progress.models_loaded(job.stage, 0.5)
    for number, clip in enumerate(CLIPS):
        progress.step(job.stage, clip, 10, 10)
        state: Any = "failed" if number else "made"
        error = magi2.errors.ImageError("no picture") if number else None
        progress.clip_finished(StageResult(job.stage, clip, state, 2.0, "k", ("flag",), error))


def wait(job: StageJob, progress: EventProgress) -> None:
    progress.stage_started(job.stage, len(CLIPS))
    progress.step(job.stage, CLIPS[0], 3, 10)
    time.sleep(3600)


def ignore_sigterm(job: StageJob, progress: EventProgress) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    wait(job, progress)


def start_others(job: StageJob, progress: EventProgress) -> None:
    """A child, one in a session of its own, and one that ignores SIGTERM."""
    deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(3600)"
    subprocess.Popen(["sleep", "3600"])
    subprocess.Popen(["sleep", "3601"], start_new_session=True)
    subprocess.Popen([sys.executable, "-c", deaf])
    time.sleep(0.1)
    wait(job, progress)


def start_another_and_end(job: StageJob, progress: EventProgress) -> None:
    subprocess.Popen(["sleep", "3600"], start_new_session=True)
    succeed(job, progress)


def outlive_parent(job: StageJob, progress: EventProgress) -> None:
    """As if the kernel took its time over this rank's death."""
    ctypes.CDLL(None).prctl(1, 0)
    wait(job, progress)


def freeze(job: StageJob, progress: EventProgress) -> None:
    progress.stage_started(job.stage, len(CLIPS))
    progress.step(job.stage, CLIPS[0], 3, 10)
    os.kill(os.getpid(), signal.SIGSTOP)


def freeze_rank(job: StageJob, progress: EventProgress, *, rank: int) -> None:
    freeze(job, progress) if rank == RANK else hang_rank(job, progress, rank=rank)


def hang_rank(job: StageJob, progress: EventProgress, *, rank: int) -> None:
    """One rank stands still, the others step on."""
    progress.stage_started(job.stage, len(CLIPS))
    progress.step(job.stage, CLIPS[0], 3, 10)
    while rank != RANK:
        progress.step(job.stage, CLIPS[0], 4, 10)
        time.sleep(0.1)
    time.sleep(3600)


def die(job: StageJob, progress: EventProgress, *, number: int, rank: int = 0) -> None:
    progress.stage_started(job.stage, len(CLIPS))
    progress.step(job.stage, CLIPS[0], 3, 10)
    if rank == RANK:
        time.sleep(0.3)
        os.kill(os.getpid(), number)
    time.sleep(3600)


def fail(job: StageJob, progress: EventProgress, *, kind: str, message: str, rank: int = 0) -> None:
    if rank != RANK:
        time.sleep(3600)
    raise getattr(magi2.errors, kind, RuntimeError)(message)


def leave(job: StageJob, progress: EventProgress, *, code: int) -> None:
    print("last words", file=sys.stderr, flush=True)
    os._exit(code)


def flood(job: StageJob, progress: EventProgress, *, megabytes: int) -> None:
    progress.stage_started(job.stage, len(CLIPS))
    for number in range(megabytes * 8):
        os.write(1 + number % 2, b"all work and no play makes jack a dull boy\n" * 1500)
    succeed(job, progress)


def talk_garbage(job: StageJob, progress: EventProgress) -> None:
    connection = next(fd for fd in map(int, os.listdir("/proc/self/fd")) if _is_socket(fd))
    for garbage in (b"\n", b"hello\n", b"\xff\x00\n", b'{"v":1,"kind":"step"}\n', b'{"v":9}\n', b"x" * 300_000 + b"\n"):
        os.write(connection, garbage)
    os.write(connection, b'{"v":1,"kind":"unheard_of","what":1}\n')
    succeed(job, progress)


def stay(job: StageJob, progress: EventProgress) -> None:
    """Does its work, but a thread keeps the process from exiting."""
    threading.Thread(target=time.sleep, args=(3600,)).start()
    succeed(job, progress)


def _is_socket(fd: int) -> bool:
    try:
        return os.readlink(f"/proc/self/fd/{fd}").startswith("socket:")
    except OSError:
        return False


def run_job(job: StageJob, scratch: Path, progress: EventProgress, *, publishes_results: bool) -> None:
    globals()[os.environ["STUB_ACTION"]](job, progress, **json.loads(os.environ["STUB_VALUES"]))


if __name__ == "__main__":
    worker.run_job = run_job
    worker._peak_memory = lambda: 12345
    worker.EventProgress = partial(EventProgress, heartbeat_s=0.1)  # type: ignore[assignment,attr-defined,misc]
    sys.exit(worker.main())
