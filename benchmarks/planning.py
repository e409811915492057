"""How long planning takes: `python -m benchmarks.planning [COUNT ...]`, by default 1,000 and 50,000 prompts.

Every other prompt has one of a hundred pictures. Three times for each: reading and planning a fresh batch (every key
worked out, tokens counted, every stage looked for in the store), writing its documents, and entering it in the catalog;
`cpu_s` is what all of it took of a processor. The goal is 90 s of a processor for 50,000 prompts.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from itertools import pairwise
from pathlib import Path

from PIL import Image

from magi2.artifacts.local import LocalStore
from magi2.batches.intake import plan_location
from magi2.batches.plan import BatchOptions, save_plan
from magi2.checkpoints.tiny import make_tiny
from magi2.config.load import load_profile
from magi2.config.settings import Settings
from magi2.deployment import Deployment
from magi2.jobs.recorder import CatalogRecorder

PICTURES = 100


def measure(count: int, folder: Path, settings: Settings) -> dict[str, float]:
    """Seconds of each step for `count` different prompts."""
    pictures = _pictures(folder)
    rows = [
        json.dumps(
            {"prompt": f"a heron takes off from the water, take {number}"}
            | ({"image": pictures[number // 2 % PICTURES]} if number % 2 else {})
        )
        for number in range(count)
    ]
    batch = folder / f"{count}.jsonl"
    batch.write_text("\n".join(rows))
    store = LocalStore(Path(settings.store))
    moments, cpu = [time.perf_counter()], time.process_time()
    plan = plan_location(
        str(batch),
        settings=settings,
        store=store,
        profile="tiny",
        options=BatchOptions(),
        origin={"run_id": str(count)},
    )
    moments.append(time.perf_counter())
    save_plan(plan, store)
    moments.append(time.perf_counter())
    CatalogRecorder.of(Deployment(settings)).on_plan(plan)
    moments.append(time.perf_counter())
    names = ("plan_s", "write_s", "catalog_s")
    seconds = {name: after - before for name, (before, after) in zip(names, pairwise(moments), strict=True)}
    total = {"total_s": moments[-1] - moments[0], "cpu_s": time.process_time() - cpu}
    return {"prompts": count, "shards": len(plan.shards), **seconds, **total}


def _pictures(folder: Path) -> list[str]:
    """Names of different pictures in `folder`."""
    names = [f"{number}.png" for number in range(PICTURES)]
    for number, name in enumerate(names):
        Image.linear_gradient("L").rotate(number).convert("RGB").save(folder / name)
    return names


def main() -> None:
    """Print one JSON object per batch size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("counts", nargs="*", type=int, default=[1_000, 50_000])
    counts = parser.parse_args().counts
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        architectures = load_profile("tiny", Settings().configs).architectures
        make_tiny(folder / "checkpoint", architectures, seed=1)
        settings = Settings(ckpt_root=folder / "checkpoint", store=str(folder / "store"))
        for count in counts:
            result = measure(count, folder, settings)
            print(json.dumps({k: round(v, 2) if isinstance(v, float) else v for k, v in result.items()}), flush=True)


if __name__ == "__main__":
    main()
