"""The real worker around cheap stages that publish into a real store, and die once where STUB_FAULT says."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from magi2.artifacts import ManifestDraft, Recipe, open_store
from magi2.artifacts.store import ArtifactStore
from magi2.batches.results import write_results
from magi2.errors import InputError
from magi2.recipes.result import StageResult
from magi2.runtime import worker
from magi2.runtime.job import StageJob
from magi2.runtime.progress import EventProgress
from magi2.types import Clip, StageName

STAGES: list[StageName] = list(StageName)
CLIPS = [Clip(prompt=f"prompt {n}", seed=n, profile_name="stub", profile_digest="0") for n in range(3)]
STEPS = 3
PAYLOADS = ("latents.bin", "sound.bin")
WATCHED = ("artifacts/base.py", "artifacts/local.py", "artifacts/disk.py", "magi2/files.py")


def recipe(stage: StageName, clip: Clip) -> Recipe:
    """Of a chain in which every stage reads the one before."""
    inputs = {stage.before[-1].value: recipe(stage.before[-1], clip).key} if stage.before else {}
    return Recipe(stage.value, 1, seed=clip.seed, inputs=inputs)


def content(stage: StageName, clip: Clip, name: str, before: bytes) -> bytes:
    """What the stage makes of the payload before it."""
    return hashlib.sha256(f"{stage.value} {clip.seed} {name} ".encode() + before).digest() * 2000


class Fault:
    """Sends a signal when the run comes to a certain point, once for all attempts."""

    def __init__(self, folder: Path) -> None:
        self._wish = json.loads(os.environ.get("STUB_FAULT") or "{}")
        self._fired = folder / "fired"

    def at(self, stage: StageName, clip: int, point: str) -> None:
        """Fire if this is the point."""
        wish = self._wish
        if (wish.get("stage"), wish.get("clip"), wish.get("point")) != (stage.value, clip, point):
            return
        try:
            os.close(os.open(self._fired, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return
        os.kill(os.getppid() if wish["victim"] == "launcher" else os.getpid(), wish["signal"])
        time.sleep(60)  # to be ended with the launcher

    def in_publication(self, stage: StageName, clip: int) -> Callable[[FrameType, str, object], None]:
        """A profiler that may fire right before any call from the artifact code into the operating system."""
        calls = 0

        def trace(frame: FrameType, event: str, called: object) -> None:
            nonlocal calls
            if event == "c_call" and _is_system_call(called) and _is_publishing(frame):
                calls += 1
                self.at(stage, clip, f"publish {calls}")

        return trace


def _is_system_call(called: object) -> bool:
    module = getattr(called, "__module__", None) or type(getattr(called, "__self__", None)).__module__
    return module in ("posix", "io", "_io")


def _is_publishing(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename.endswith(WATCHED):
            return True
        if not frame.f_code.co_filename.endswith(("pathlib.py", "contextlib.py", "shutil.py")):
            return False
        frame = frame.f_back
    return False


def run_job(job: StageJob, scratch: Path, progress: EventProgress, *, publishes_results: bool) -> None:
    store, root = open_store(job.store), Path(job.store).parent
    root.mkdir(parents=True, exist_ok=True)
    fault, results = Fault(root), []
    progress.stage_started(job.stage, len(CLIPS))
    fault.at(job.stage, 0, "loading")
    for number, clip in enumerate(CLIPS):
        results.append(run_clip(store, job.stage, number, clip, progress, fault, root / "journal"))
        fault.at(job.stage, number, "published")
        progress.clip_finished(results[-1])
        fault.at(job.stage, number, "told")
    write_results(store, job.batch_id, job.shard, job.stage, job.attempt, results)
    fault.at(job.stage, 0, "results")


def run_clip(
    store: ArtifactStore,
    stage: StageName,
    number: int,
    clip: Clip,
    progress: EventProgress,
    fault: Fault,
    journal: Path,
) -> StageResult:
    wanted = recipe(stage, clip)
    if store.find(wanted.stage, wanted.key):
        return StageResult(stage, clip, "reused", 0.0, wanted.key)
    with journal.open("a") as stream:
        stream.write(f"{stage.value} {number}\n")
    with store.stage_folder(wanted.stage, wanted.key) as folder:
        for name in PAYLOADS:
            (folder / name).write_bytes(content(stage, clip, name, before(store, wanted, name)))
        for step in range(1, STEPS + 1):
            progress.step(stage, clip, step, STEPS)
            fault.at(stage, number, f"step {step}")
        sys.setprofile(fault.in_publication(stage, number))
        store.publish(ManifestDraft(wanted), {name: folder / name for name in PAYLOADS})
        sys.setprofile(None)
    return StageResult(stage, clip, "made", 0.1, wanted.key)


def before(store: ArtifactStore, wanted: Recipe, name: str) -> bytes:
    for stage, key in wanted.inputs.items():
        if store.find(stage, key) is None:
            raise InputError(f"{stage} has not run")
        return store.fetch(stage, key, name).read_bytes()
    return b""


if __name__ == "__main__":
    worker.run_job = run_job
    worker._peak_memory = lambda: 0
    signal.alarm(120)
    sys.exit(worker.main())
