"""The real worker and real stages, with faults in the preview of clips where STUB_FAULTS says."""

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch

from magi2.runtime import meeting, worker
from magi2.stages.preview import PreviewStage
from magi2.stages.team import Team

FAULTS = {fault["seed"]: fault for fault in json.loads(os.environ["STUB_FAULTS"])}
RANK = int(os.environ.get("RANK", "0"))


def strike(fault: dict[str, Any], step: int) -> None:
    """Do what the fault is, if it is this rank's and this step's."""
    if fault.get("rank") not in (None, RANK) or step != fault.get("step", 0):
        return
    if fault["kind"] == "oom":
        raise torch.OutOfMemoryError("Tried to allocate 141.00 GiB. GPU 0 has a total capacity of 139.80 GiB")
    try:
        os.close(os.open(fault["once"], os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return  # it was in an earlier attempt
    os.kill(os.getpid(), signal.SIGSTOP if fault["kind"] == "freeze" else signal.SIGKILL)


class FaultyPreview(PreviewStage):
    """A preview that fails on the clip of a certain seed, when a step is done or, for step 0, before the first."""

    def compute(self, clip: Any, inputs: Any, models: Any, folder: Path | None) -> Any:
        self._fault = FAULTS.get(clip.seed)
        if self._fault:
            strike(self._fault, 0)
        return super().compute(clip, inputs, models, folder)

    def on_step(self, clip: Any) -> Any:
        tell = super().on_step(clip)

        def step(done: int, total: int) -> None:
            tell(done, total)
            if self._fault and done:
                self._wait_for_snapshot(clip, self._fault, done)
                strike(self._fault, done)

        return step

    def _wait_for_snapshot(self, clip: Any, fault: dict[str, Any], done: int) -> None:
        """So that every run loses the same steps: what is due is saved before the fault strikes."""
        if done != fault.get("step") or fault["kind"] == "oom":
            return
        wanted = done // self.context.snapshot_every * self.context.snapshot_every
        while wanted and f"step {wanted}" not in _saved(self, clip):
            time.sleep(0.05)


def _saved(stage: Any, clip: Any) -> str:
    from magi2.stages.snapshots import load_snapshot

    tensors = load_snapshot(stage.context.store, stage.recipe(clip), lambda: stage._noise(clip)[0].state())
    return f"step {int(tensors['step'])}" if tensors else ""


if __name__ == "__main__":
    from magi2.stages import render

    render.STAGES[PreviewStage.name] = FaultyPreview
    if any("rank" in fault for fault in FAULTS.values()):  # the others will never come to the same point
        meeting.Team = lambda mesh, control: Team(mesh, control, patience_s=10.0)  # type: ignore[assignment,attr-defined,misc]
    sys.exit(worker.main())
