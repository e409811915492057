"""`python -m benchmarks.group_start [--ranks N] [--out FILE]`: from the launch of a group to its first clip.

The preview of one small clip with random weights, by the launcher, in a process group of N ranks; three times, since
the first one finds cold caches. Seconds until rank 0 has met the others and begins its stage, has its models, has made
the first denoising step and the clip; and what the group's processes took of the CPU.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.installed import measured_set
from magi2 import platform
from magi2.artifacts.address import open_store
from magi2.batches.plan import BatchOptions, BatchPlan, pack_shards, save_plan
from magi2.checkpoints.tiny import make_tiny
from magi2.config.load import load_profile
from magi2.config.settings import Settings
from magi2.parallel.layout import ParallelLayout
from magi2.runtime.events import ClipFinished, Event, ModelsLoaded, StageStarted, Step
from magi2.runtime.job import StageJob
from magi2.runtime.launcher import Launcher
from magi2.stages.prepare import prepare
from magi2.stages.render import run_stage
from magi2.types import Clip, StageName

BATCH = "group-start"
RUNS = 3
NAMES = {StageStarted: "begun_s", ModelsLoaded: "models_s", Step: "first_step_s", ClipFinished: "clip_s"}


def main() -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--out", type=Path, help="write the results there as JSON")
    parser.add_argument("--deterministic", action="store_true", help="as with MAGI2_DETERMINISTIC=1")
    arguments = parser.parse_args()
    device = platform.current().name
    with tempfile.TemporaryDirectory(prefix="group-start-") as folder:
        place = Path(folder)
        os.environ |= {
            "MAGI2_CKPT_ROOT": str(place / "weights"),
            "MAGI2_STORE": str(place / "store"),
            "MAGI2_DEVICE": device,
            "MAGI2_DETERMINISTIC": str(int(arguments.deterministic)),
        }
        _plan(place)
        layout = ParallelLayout(cp=arguments.ranks, ep=arguments.ranks)
        runs = [_launch(place, layout) for _ in range(RUNS)]
    found = {"ranks": arguments.ranks, "versions": measured_set(platform.device()), "runs": runs}
    print(json.dumps(found, indent=1))
    if arguments.out:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps(found, indent=1) + "\n")
    return 0


def _plan(place: Path) -> None:
    """A batch of one clip that is ready for its preview."""
    settings = Settings.from_environment()
    overrides = ("preview.steps=2", "preview.width=64", "preview.height=32")
    profile = load_profile("tiny-preview", settings.configs, overrides)
    make_tiny(place / "weights", profile.architectures, seed=1)
    clip = Clip("a heron takes off", 7, profile.name, profile.digest())
    context = prepare(profile, settings, [clip])
    for stage in (StageName.ENHANCE, StageName.ENCODE):
        run_stage(context, stage, [clip])
    profiles = {profile.digest(): profile}
    plan = BatchPlan(
        batch_id=BATCH,
        name="group start",
        source="benchmark",
        options=BatchOptions(),
        shards=pack_shards([clip], profiles, clips_per_shard=1),
        cached=(),
        refused=(),
        missing={},
        profiles=profiles,
    )
    save_plan(plan, open_store(settings.store))


def _launch(place: Path, layout: ParallelLayout) -> dict[str, float]:
    """Seconds from the launch to each first event, and CPU seconds of all processes."""
    found: dict[str, float] = {}
    job = StageJob(BATCH, 0, StageName.PREVIEW, str(place / "store"), force=True, layout=layout)
    used, started = _children_cpu_s(), time.monotonic()

    def hear(event: Event) -> None:
        found.setdefault(NAMES[type(event)], round(time.monotonic() - started, 2))

    (place / "run").mkdir(exist_ok=True)
    Launcher(folder=place / "run").run(job, on_event=hear)
    ended = round(time.monotonic() - started, 2)
    return {**found, "ended_s": ended, "cpu_s": round(_children_cpu_s() - used, 2)}


def _children_cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    sys.exit(main())
