"""How much of a shard's time goes into loading weights: `python -m benchmarks.weight_loading [--clips 48]`.

Renders a batch on the tiny checkpoint, stage by stage as a shard does, and prints the seconds of every stage and the
share that loading its models took. With real weights both are far larger; what carries over is that the load is paid
once per stage and shard, so that its share falls with the number of clips.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections import defaultdict
from pathlib import Path

from magi2.checkpoints.tiny import make_tiny
from magi2.config.load import load_profile
from magi2.config.settings import Settings
from magi2.stages.prepare import prepare
from magi2.stages.progress import Silent
from magi2.stages.render import run_stage
from magi2.types import Clip, StageName


class LoadTimes(Silent):
    """Remembers how long each stage's models took to load."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)

    def models_loaded(self, stage: StageName, seconds: float) -> None:
        self.seconds[stage.value] += seconds


def main() -> None:
    """Print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clips", type=int, default=48)
    parser.add_argument("--profile", default="tiny-preview")
    parser.add_argument("--set", dest="overrides", action="append", default=[])
    arguments = parser.parse_args()
    profile = load_profile(arguments.profile, Settings().configs, arguments.overrides)
    clips = [
        Clip(f"a heron takes off, take {number}", number, profile.name, profile.digest())
        for number in range(arguments.clips)
    ]
    loads, stages = LoadTimes(), {}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        make_tiny(folder / "checkpoint", profile.architectures, seed=1)
        settings = Settings(ckpt_root=folder / "checkpoint", store=str(folder / "store"))
        context = prepare(profile, settings, clips, progress=loads)
        for stage in profile.stages:
            started = time.monotonic()
            results = run_stage(context, stage, clips)
            if failed := [result for result in results if result.error]:
                raise SystemExit(f"{stage.value}: {failed[0].error}")
            stages[stage.value] = time.monotonic() - started
    total, loading = sum(stages.values()), sum(loads.seconds.values())
    print(
        json.dumps(
            {
                "clips": len(clips),
                "total_s": round(total, 1),
                "loading_s": round(loading, 2),
                "loading_share": round(loading / total, 4),
                "stages_s": {name: round(seconds, 2) for name, seconds in stages.items()},
                "loading_by_stage_s": {name: round(seconds, 2) for name, seconds in loads.seconds.items()},
            }
        )
    )


if __name__ == "__main__":
    main()
